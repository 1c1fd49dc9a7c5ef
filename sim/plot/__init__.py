"""Pictures of traces. Every plot takes `ax` and returns it; nothing is computed here that a table could hold.

`compare_gantt` makes a figure of one run or several, each with the memory of its devices below it where there
was an allocator. `gantt` and `memory` draw one chart, or what one device holds, into axes of the caller's,
`utilisation` where the time of devices went, `link_heat_map` how much of links was used, `roofline` the ops
under the roofs of their devices. `with theme("dark")`, or ``"print"``: how all of them look.

matplotlib is imported when something is drawn, and never its global state: figures are made with
`new_figure`, saved with `save`. `save_page` writes a page with all there is to say of a run.
"""

from sim.plot.figure import new_figure, save
from sim.plot.gantt import compare_gantt, gantt
from sim.plot.html import save_page
from sim.plot.memory import memory
from sim.plot.theme import theme
from sim.plot.utilisation import link_heat_map, roofline, utilisation

__all__ = [
    "compare_gantt",
    "gantt",
    "link_heat_map",
    "memory",
    "new_figure",
    "roofline",
    "save",
    "save_page",
    "theme",
    "utilisation",
]
