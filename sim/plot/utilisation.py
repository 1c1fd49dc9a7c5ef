"""Where the time of every device went: computing, communicating, waiting by reason, idle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from sim.base.errors import InputError
from sim.explain.communication import LinkLoad, link_loads
from sim.explain.derived import DerivedColumns
from sim.explain.idle import REASONS, idle_reasons
from sim.explain.time_use import WORD_OF_REASON, time_use
from sim.plot.bar_polygons import name_lanes, points_of
from sim.plot.figure import elided, new_figure, scale_time
from sim.plot.legend import add_legend
from sim.plot.theme import OKABE_ITO, hatches, ink, is_dark, paper, plain, shade
from sim.record.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_WAITS: Final = tuple(reason for reason in REASONS if reason not in WORD_OF_REASON)
_PARTS: Final = ("compute", "communicate", *(f"wait: {reason}" for reason in _WAITS), "idle")
_MORE: Final = (
    "black",
    "#332288",
    "#8C510A",
    "#882255",
    "#999933",
    "#B0D0A0",
    "#DDCC77",
    "#661100",
    "#EEEEEE",
)
USE_COLOURS: Final = dict(zip(_PARTS, (*OKABE_ITO, *_MORE), strict=True))
"""A part has the same colour in every picture; ``idle`` is nobody's fault and pale."""


def use_of_devices(trace: Record, facts: DerivedColumns | None = None) -> dict[str, dict[str, int]]:
    """Return, for each device, the ns of every part of `USE_COLOURS`; they add up to the makespan.

    Parameters
    ----------
    trace : Trace
    facts : Facts, optional
        Of this trace, when the caller has them already.
    """
    reasons = idle_reasons(trace, facts)
    return {
        name: {
            part: use[part] if part in use else reasons[name].get(part.removeprefix("wait: "), 0)
            for part in _PARTS
        }
        for name, use in time_use(trace, reasons).items()
    }


def utilisation(trace: Record, ax: Axes | None = None, *, title: str | None = None) -> Axes:
    """Draw one bar per device: the shares of the makespan of `sim.explain.time_use`, waiting by reason.

    Parameters
    ----------
    trace : Trace
    ax : Axes, optional
    title : str, optional

    Returns
    -------
    Axes
    """
    use = use_of_devices(trace)
    names, parts = list(use), list(use.values())
    if ax is None:
        _, (ax,) = new_figure(height=min(20.0, 1.0 + 0.36 * max(2, len(names))))
    total = max(trace.makespan_ns, 1)
    left, hatch = [0.0] * len(names), hatches(USE_COLOURS)
    for part, colour in USE_COLOURS.items():
        share = [100.0 * of[part] / total for of in parts]
        if any(share):
            ax.barh(
                *(range(len(names)), share),
                left=left,
                color=shade(colour),
                edgecolor=paper(),
                linewidth=0,
                hatch=hatch[part] or None,
                label=part,
                height=0.7,
            )
        left = [a + b for a, b in zip(left, share, strict=True)]
    name_lanes(ax, names, points_of(ax, len(names))[1])
    ax.set_xlim(0, 100)
    ax.set_xlabel("share of the makespan (%)")
    plain(ax, title)
    handles, labels = ax.get_legend_handles_labels()
    add_legend(ax, dict(zip(labels, handles, strict=True)), alone=True)
    return ax


# ----------------------------------------------------------------------------------------------------------
# How much of each link was used over time, as a heat map.
#
#     node0/up      ░░▒▒▓▓██▓▓░░░░░░     a row for each link that carried bytes; of many, those that carried
#     node1/up      ░░░░░░▒▒▓▓██▓▓░░     most of what they could
#                   0    time (ms)       paper: nothing, full colour: all of its bandwidth

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
    """Draw what share of its bandwidth each link uses (`sim.explain.communication.link_loads`).

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
