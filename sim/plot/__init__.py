"""Pictures of traces. Every plot takes `ax` and returns it; what a table could hold is computed elsewhere.

`compare_gantt` draws a figure of one or several runs, with the memory of their devices below if there was an
allocator. `gantt` and `memory` draw one chart, or the memory of one device, into given axes, `utilisation`
how devices spent their time, `link_heat_map` the load of links, `roofline` the ops under the roofs of their
devices. `with theme("dark")`, or ``"print"``, sets the look of all of them.

matplotlib is imported only when something is drawn, and its global state never: figures are made with
`new_figure` and saved with `save`. `save_page` writes a page with everything about a run.
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
