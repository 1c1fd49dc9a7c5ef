"""Two schedules, one above the other on one time axis, with the ops that moved.

::

    A   gpu0/0  ▇▇a▇▇▓▓▓b▓▓▓▒▒c▒▒      grey: the same in both; blue: earlier in B; red: later; pale: a little
    B   gpu0/0  ▇▇a▇▇▓▓▓▓▓b▓▓▓▓▓▒▒c▒▒  green: starts at the same time, and lasts longer or shorter
                     ┊                 yellow: in only one of them
                     the first op that moved

Both have the same lanes, from top to bottom, so an op appears at the same height unless it changed its lane.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sim.base.arrays import IntArray
from sim.base.intervals import levels
from sim.diff.differences import Differences
from sim.diff.schedule import OpSchedule
from sim.plot.bar_polygons import HEIGHT, draw_bars, forms, name_lanes, write_names
from sim.plot.bars import Bars
from sim.plot.figure import new_figure, scale_time, time_text
from sim.plot.legend import Entry, handles_of
from sim.plot.theme import ink, is_print, plain, shade

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_SAME, _EARLIER, _EARLIER_A_LITTLE, _LATER, _LATER_A_LITTLE, _RESIZED, _ONLY, _FILLER = range(8)
_COLOURS: Final = {
    "the same in both": "#BBBBBB",
    "starts earlier in B": "#0072B2",
    "a little earlier (by less than a tenth of the most)": "#8FC3E3",
    "starts later in B": "#D55E00",
    "a little later (by less than a tenth of the most)": "#F2B48A",
    "starts at the same time, lasts longer or shorter": "#009E73",
    "in one of them only": "#F0E442",
    "a gap of the recording": "#EEEEEE",
}
"""Okabe and Ito's colours and tints of them; grey for what does not matter."""
_WORDS: Final = list(_COLOURS)
_LITTLE_DIVISOR: Final = 10
"""An op that moved by less than the largest move divided by this moved a little."""
_LANE_INCHES: Final = 0.3
_MOST_LANES: Final = 60
_MOST_NAMES: Final = 400


def diff_gantt(differences: Differences) -> Figure:
    """Draw two schedules on one time axis.

    Parameters
    ----------
    differences : Differences

    Returns
    -------
    Figure

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> from sim.diff.differences import differences
    >>> from sim.diff.schedule import schedule_of
    >>> def run(title, ns):
    ...     b = GraphBuilder("one")
    ...     _ = b.op("a", duration_ns=ns)
    ...     return schedule_of(simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue()), title)
    >>> figure = diff_gantt(differences(run("before", 1500), run("after", 2500)))
    >>> [ax.get_title(loc="left") for ax in figure.axes]
    ['A  before: 1.5 us', 'B  after: 2.5 us']
    """
    d = differences
    end_ns = max(d.a.makespan_ns, d.b.makespan_ns, 1)
    lanes = _lanes(d)
    inches = _LANE_INCHES * max(1, len(lanes))
    figure, axes = new_figure(2, height=1.4 + 2 * (0.4 + inches))
    kinds: set[int] = set()
    for ax, letter, schedule, changes in zip(axes, "AB", (d.a, d.b), _changes(d), strict=True):
        bars = _bars(schedule, lanes, changes)
        kinds |= set(bars.kind[bars.end > bars.start].tolist())
        scale = scale_time(ax, end_ns)
        draw_bars(ax, bars.pack(end_ns), _COLOURS, end_ns)
        name_lanes(ax, lanes, 72 * _LANE_INCHES)
        _names(ax, schedule, bars, end_ns)
        plain(ax, f"{letter}  {schedule.title}: {time_text(schedule.makespan_ns, end_ns)}", "x")
        ax.axvline(schedule.makespan_ns / scale, color=ink(), linewidth=0.8, linestyle=":")
        if d.first is not None:
            _mark_first(ax, d, letter == "A", lanes, scale)
        ax.label_outer()
    _legend(figure, kinds, d)
    return figure


def _lanes(d: Differences) -> list[str]:
    """Return the lanes on which anything is shown: those of A in its order, then those only in B."""
    lanes: dict[str, None] = {}
    for schedule in (d.a, d.b):
        used = np.unique(schedule.lane[_rows_shown(schedule)]).tolist()
        lanes |= dict.fromkeys(schedule.lanes[lane] for lane in used)
    # A lane of B comes after those of its device.
    order = {lane: k for k, lane in enumerate(lanes)}
    first = {lane.rpartition("/")[0] or lane: k for lane, k in reversed(order.items())}
    return sorted(lanes, key=lambda lane: (first[lane.rpartition("/")[0] or lane], order[lane]))[:_MOST_LANES]


def _rows_shown(schedule: OpSchedule) -> IntArray:
    """Return the rows that are drawn: those that took some time."""
    return np.flatnonzero(schedule.end_ns > schedule.start_ns)


def _changes(d: Differences) -> Iterator[IntArray]:
    """Yield the kind of change of each row of A, then of B."""
    of_pair = np.full(len(d.pairs.a), _SAME)
    of_pair[d.resized] = _RESIZED
    for sign, far, near in ((-1, _EARLIER, _EARLIER_A_LITTLE), (1, _LATER, _LATER_A_LITTLE)):
        shift = np.where(d.moved, sign * d.moved_ns, 0)
        of_pair[shift > 0] = near
        of_pair[(shift > 0) & (_LITTLE_DIVISOR * shift >= np.abs(d.moved_ns).max(initial=0))] = far
    for schedule, paired in ((d.a, d.pairs.a), (d.b, d.pairs.b)):
        change = np.where(schedule.compared, _ONLY, _FILLER)
        change[paired] = of_pair
        yield change


def _bars(schedule: OpSchedule, lanes: list[str], changes: IntArray) -> Bars:
    numbers = {lane: k for k, lane in enumerate(lanes)}
    lane_of = np.array([numbers.get(lane, -1) for lane in schedule.lanes], np.int64)
    rows = _rows_shown(schedule)
    rows = rows[lane_of[schedule.lane[rows]] >= 0]
    rows = rows[np.lexsort((schedule.end_ns[rows], schedule.start_ns[rows]))]
    lane, start, end = lane_of[schedule.lane[rows]], schedule.start_ns[rows], schedule.end_ns[rows]
    level, n_levels = levels(start, end, lane, len(lanes))
    return Bars(lanes, _WORDS, lane, changes[rows], start, end, level, n_levels[lane], rows)


def _names(ax: Axes, schedule: OpSchedule, bars: Bars, end_ns: int) -> None:
    """Write names into the longest bars that have room for them."""
    write_names(
        ax,
        bars,
        np.argsort(bars.start - bars.end, kind="stable")[:_MOST_NAMES],
        lambda k: forms(schedule.names[int(bars.row[k])]),
        [shade(colour) for colour in _COLOURS.values()],
        end_ns=end_ns,
        lane_points=72 * _LANE_INCHES,
    )


def _mark_first(ax: Axes, d: Differences, is_a: bool, lanes: list[str], scale: int) -> None:
    """Mark the first op that moved: a line at its earlier start in both charts, a mark at its own start."""
    assert d.first is not None
    rows = int(d.pairs.a[d.first]), int(d.pairs.b[d.first])
    starts = int(d.a.start_ns[rows[0]]), int(d.b.start_ns[rows[1]])
    ax.axvline(min(starts) / scale, color=ink(), linewidth=0.9, linestyle="--")
    schedule, row, start = (d.a, rows[0], starts[0]) if is_a else (d.b, rows[1], starts[1])
    if schedule.lane_of(row) in lanes:
        y = lanes.index(schedule.lane_of(row)) - HEIGHT / 2
        ax.plot([start / scale], [y], marker="v", markersize=7, color=ink(), clip_on=False, zorder=5)


def _legend(figure: Figure, kinds: set[int], d: Differences) -> None:
    from matplotlib.lines import Line2D

    words = [_WORDS[change] for change in sorted(kinds)]
    handles = handles_of([Entry(word, (word,), (_COLOURS[word],)) for word in words], _COLOURS)
    if d.first is not None:
        first = Line2D([], [], color=ink(), marker="v", linestyle="--", linewidth=0.9)
        handles["the first that moved"] = first
    roomy: dict[str, Any] = {"handlelength": 3.0, "handleheight": 1.7} if is_print() else {}
    location: Final = "outside lower center"
    figure.legend(handles.values(), handles, loc=location, ncols=3, frameon=False, fontsize=8, **roomy)
