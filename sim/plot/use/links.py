"""How much of each link was used over time, as a heat map.

::

    node0/up      ░░▒▒▓▓██▓▓░░░░░░     a row for each link that carried bytes; of many, those that carried
    node1/up      ░░░░░░▒▒▓▓██▓▓░░     most of what they could
                  0    time (ms)       paper: nothing, full colour: all of its bandwidth
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from sim.analysis.transfers_on_links import LinkLoad, link_loads
from sim.plot.colours import OKABE_ITO
from sim.plot.figure import elided, new_figure, scale_time
from sim.plot.theme import ink, is_dark, paper, plain
from sim.record.record import Record
from sim.words.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["MOST_LINKS", "link_heat_map", "most_used"]

MOST_LINKS: Final = 32
"""Links that are shown."""
_COLUMNS: Final = 1_200


def most_used(loads: Sequence[LinkLoad]) -> tuple[list[LinkLoad], int]:
    """Return the links that are shown, in machine order, and how many are left out."""
    ranked = sorted(range(len(loads)), key=lambda k: -loads[k].mean)[:MOST_LINKS]
    return [loads[k] for k in sorted(ranked)], len(loads) - len(ranked)


def link_heat_map(
    trace: Record,
    ax: Axes | None = None,
    *,
    title: str | None = None,
    until_ns: int | None = None,
    legend: bool = True,
) -> Axes:
    """Draw what share of its bandwidth each link uses (`sim.analysis.transfers_on_links.link_loads`).

    Parameters
    ----------
    trace : Trace
    ax : Axes, optional
    title : str, optional
    until_ns : int, optional
        Right end of the time axis; by default the makespan.
    legend : bool
        Whether a bar beside the map explains its colours.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        Nothing to draw: no link with a bandwidth carried anything.
    """
    from matplotlib.colors import LinearSegmentedColormap

    loads = link_loads(trace)
    if not loads:
        raise InputError("there is nothing to draw: no link with a bandwidth carries anything")
    shown, left_out = most_used(loads)
    if ax is None:
        _, (ax,) = new_figure(height=1.2 + 0.24 * max(3, len(shown)))
    until = until_ns or max(trace.makespan_ns, 1)
    scale = scale_time(ax, until)
    edges = np.unique(np.linspace(0, max(trace.makespan_ns, 1), _COLUMNS + 1).round().astype(np.int64))
    shares = np.stack([load.means(edges) for load in shown])
    blues = [OKABE_ITO[0], OKABE_ITO[4]] if is_dark() else [OKABE_ITO[4], OKABE_ITO[0]]
    colours = LinearSegmentedColormap.from_list("load", [paper(), *blues])
    rows = np.arange(len(shown) + 1) - 0.5
    drawn = ax.pcolormesh(edges / scale, rows, 100 * shares, cmap=colours, vmin=0, vmax=100, rasterized=True)
    ax.hlines(rows[1:-1], 0, until / scale, color=ink(), linewidth=0.2, alpha=0.5)
    names = [f"{elided(load.link)}  {100 * load.mean:.1f} %" for load in shown]
    ax.set_yticks(range(len(shown)), names, fontsize=8)
    ax.set_ylim(len(shown) - 0.5, -0.5)
    ax.set_xlim(0, until / scale)
    note = f"without {left_out} links that are used less" if left_out else ""
    plain(ax, "; ".join(part for part in (title, note) if part))
    figure = ax.get_figure(root=True)
    if legend and figure is not None:
        figure.colorbar(drawn, ax=ax, label="bandwidth in use (%)", pad=0.01, fraction=0.03, extend="max")
    return ax
