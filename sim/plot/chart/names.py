"""Names in bars: the longest form of each that has room, in letters that are as high as the bar at most.

::

    gpu0/0   ▇▇▇block/conv1▇▇▇▇▇conv2▇▇        a name, or what follows one of its slashes
    rank0/0  ▇0▇▇1▇▇▇0▇▇▇2▇▇▇▇1▇▇▇▇            slots of a pipeline that have no room: micro-batches
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sim.plot.chart.bars import Bars, name_of
from sim.plot.chart.drawn import HEIGHT, points_of
from sim.plot.theme import ink, paper, printed
from sim.record.record import Record
from sim.words.arrays import UNSET, BoolArray, IntArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["by_turns", "forms", "ink_on", "names_in_bars", "write_names"]

_MOST: Final = 1_500
"""Bars of one chart that get their name; more take longer to draw than the rest of the picture."""
_WIDTH: Final = 4.5 / 7
"""Of a letter, for its size."""
_LARGEST, _SMALLEST = 7.0, 5.0
"""Points of letters."""
_EVEN: Final = 0.179
"""Relative luminance on which black and white are read as easily."""


def names_in_bars(
    ax: Axes,
    trace: Record,
    bars: Bars,
    fills: Sequence[str],
    scale: int,
    until: int,
    lane_points: float,
    marked: IntArray | None = None,
) -> None:
    """Write names into the bars of a trace that have room for theirs.

    In a pipeline whose slots are too narrow for all their names (``3F12``), all have the number of their
    micro-batch: the lane says the stage, the colour the phase. Where some rows are `marked`, the names of
    the others are as pale as their bars. In print names stand on white.

    Parameters
    ----------
    ax : Axes
    trace : Trace
    bars : Bars
    fills : sequence of str
        Colour of each kind of bar, as it is drawn.
    scale, until : int
        As for `sim.plot.chart.drawn.draw_bars`.
    lane_points : float
        Height of a lane, in points.
    marked : array of int64, optional
    """
    graph, length = trace.job.graph, bars.end - bars.start
    roomy = np.flatnonzero((length * points_of(ax)[0] > until * 6) & (bars.row != UNSET))
    slot = np.full(len(bars), UNSET)
    of_task = roomy[bars.row[roomy] < len(trace)]
    op = trace.tasks["op"][bars.row[of_task]]
    is_slot = np.array([kind in graph.phases for kind in graph.kinds], bool)[graph.kind_code[op]]
    slot[of_task[is_slot]] = graph.micro_batch[op[is_slot]]
    lanes = [lane.rpartition("/")[0] for lane in bars.lanes]

    def texts(k: int) -> list[str]:
        return forms(name_of(trace, int(bars.row[k])), lanes[int(bars.lane[k])])

    room = length / until * points_of(ax)[0] - 3
    slots = roomy[slot[roomy] != UNSET].tolist()
    numbered = any(len(texts(k)[0]) * _WIDTH * _LARGEST > room[k] for k in slots)

    def shown(k: int) -> list[str]:
        return [str(slot[k])] if numbered and slot[k] != UNSET else texts(k)

    write_names(
        ax,
        bars,
        by_turns(roomy, bars.kind[roomy], length[roomy])[:_MOST],
        shown,
        fills,
        scale=scale,
        until=until,
        lane_points=lane_points,
        pale=None if marked is None else ~np.isin(bars.row, marked),
        smaller=numbered,
    )


def forms(name: str, device: str = "") -> list[str]:
    """Return what may stand for a name: without its device, then what follows a slash, but no bare number.

    Examples
    --------
    >>> forms("gpu0/ffn/up", "gpu0"), forms("serve/2/head/0"), forms("3F12")
    (['ffn/up', 'up'], ['serve/2/head/0', '2/head/0', 'head/0'], ['3F12'])
    """
    name = (name.removeprefix(f"{device}/") if device else name) or name
    parts = name.split("/")
    rests = ("/".join(parts[k:]) for k in range(1, len(parts)))
    return [name, *(rest for rest in rests if rest and not rest.isdecimal())]


def by_turns(bars: IntArray, kind: IntArray, length: IntArray) -> IntArray:
    """Return bars in the order in which they are named: the longest of each kind, the second of each, ..."""
    order = np.lexsort((-length, kind))
    sizes = np.bincount(kind[order])
    first = np.cumsum(sizes) - sizes
    turn = np.arange(len(order)) - first[kind[order]]
    return bars[order[np.lexsort((-length[order], turn))]]


def write_names(
    ax: Axes,
    bars: Bars,
    order: IntArray,
    texts: Callable[[int], Sequence[str]],
    fills: Sequence[str],
    *,
    scale: int,
    until: int,
    lane_points: float,
    pale: BoolArray | None = None,
    smaller: bool = False,
) -> None:
    """Write into each bar the first of its texts that has room, or none.

    Parameters
    ----------
    ax : Axes
    bars : Bars
    order : array of int64
        The bars that may have a name.
    texts : callable
        What may be written into a bar, the best first.
    fills, scale, until, lane_points
        As for `names_in_bars`.
    pale : array of bool, optional
        Bars that are pale, and so their names.
    smaller : bool
        Whether letters become smaller where a text has no room.
    """
    points = points_of(ax)[0] / until
    for k in order.tolist():
        room, height = (bars.end[k] - bars.start[k]) * points - 3, HEIGHT / bars.n_levels[k]
        size = min(_LARGEST, 0.95 * height * lane_points)
        fits = (text for text in texts(k) if len(text) * _WIDTH * size <= room)
        if not (text := next(fits, "")) and smaller:
            text = texts(k)[-1]
            size = min(size, (room + 2) / (len(text) * _WIDTH))
        if not text or size < _SMALLEST:
            continue
        y = bars.lane[k] - HEIGHT / 2 + (bars.level[k] + 0.5) * height
        faint = pale is not None and bool(pale[k])
        middle = (bars.start[k] + bars.end[k]) / 2 / scale
        where: dict[str, Any] = {"ha": "center", "va": "center", "clip_on": True}
        colour = ink() if faint or printed() else ink_on(fills[int(bars.kind[k])])
        if printed():  # hatches would be read as letters
            where["bbox"] = {"facecolor": paper(), "linewidth": 0, "pad": 0.6, "clip_on": True}
        ax.text(middle, y, text, fontsize=size, color=colour, alpha=0.4 if faint else 1.0, **where)


def ink_on(colour: str) -> str:
    """Return black or white, whichever has more contrast with `colour` (relative luminance, WCAG 2.2).

    Examples
    --------
    >>> ink_on("#0072B2"), ink_on("#CC79A7")
    ('white', 'black')
    """
    from matplotlib.colors import to_rgb

    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return "black" if 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > _EVEN else "white"
