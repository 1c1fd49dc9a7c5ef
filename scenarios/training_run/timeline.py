"""The picture of a training run: its states, and the workers that fail, stand by or are slow.

::

    run        ▇▇▇▇▇▇▇│▇▇▇▇░▒▒▇▇▇│▇▇▇▇▇▇        one lane for all workers of the run
    worker 3   ▇▇▇▇▇▇▇│▇▇▇▇─repair──────        and one for each that deviates, the first ones
    worker 8   spare───────▒▒▇▇▇│▇▇▇▇▇▇
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from scenarios.training_run.plan import STATES, Life
from sim.plot.bar_polygons import draw_bars
from sim.plot.bars import Bars
from sim.plot.figure import new_figure, scale_time
from sim.plot.legend import Entry, add_legend, handles_of
from sim.plot.theme import OKABE_ITO, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_WORKERS: Final = 12
"""Number of workers in a chart: those to which something happens first."""

_MACHINE_STATES: Final = ("in repair", "spare", "slow")
_KINDS: Final = [*STATES, *_MACHINE_STATES]
_BLUE, _ORANGE, _GREEN, _PINK, _SKY, _RED, _YELLOW = OKABE_ITO
_COLOURS: Final = dict(
    zip(_KINDS, (_GREEN, _SKY, _BLUE, _PINK, _ORANGE, "#999999", _RED, "#E4E4E4", _YELLOW), strict=True)
)

Interval = tuple[str, int, int]


def lanes_of(life: Life, most: int = MOST_WORKERS) -> dict[str, list[Interval]]:
    """Return lane -> (state, start, end): the run, then the workers to which something happens.

    A worker is in the state of the run unless it is spare, in repair, or slow while the run computes; a slow
    worker sets the pace for all.
    """
    changes: dict[int, list[tuple[int, str]]] = {}
    for start, machine, state in life.changes:
        changes.setdefault(machine, [(0, "job")]).append((start, state))
    begins = {
        machine: next((start for start, _ in states if start), life.end_ns)
        for machine, states in changes.items()
    }
    for start, _, machine, _ in life.slow:
        if start < life.end_ns:
            begins[machine] = min(start, begins.get(machine, start))
    machines = sorted(begins, key=lambda machine: (begins[machine], machine))[:most]
    lanes = {"run": list(life.timeline)}
    for machine in sorted(machines):
        slow = deque(sorted(event[:2] for event in life.slow if event[2] == machine))
        lanes[f"worker {machine}"] = list(_of_worker(life, changes.get(machine, [(0, "job")]), slow))
    return lanes


def _of_worker(
    life: Life, changes: list[tuple[int, str]], slow: deque[tuple[int, int]]
) -> Iterator[Interval]:
    ends = [start for start, _ in changes[1:]] + [life.end_ns]
    starts = [start for _, start, _ in life.timeline]
    for (start, state), end in zip(changes, ends, strict=True):
        if state != "job":
            if start < end:
                yield state, start, end
            continue
        meanwhile = slice(max(0, bisect_right(starts, start) - 1), bisect_left(starts, end))
        for activity, begin, stop in life.timeline[meanwhile]:
            while slow and slow[0][1] <= begin:  # over
                slow.popleft()
            computes = activity in ("computing", "redoing")
            yield from _cut_interval(activity, max(begin, start), min(stop, end), slow if computes else ())


def _cut_interval(state: str, start: int, end: int, slow: Iterable[tuple[int, int]]) -> Iterator[Interval]:
    """Yield an interval, cut where it overlaps slow ones."""
    now = start
    for begin, stop in slow:
        if begin >= end:
            break
        a, b = max(begin, now), min(stop, end)
        if a < b:
            if now < a:
                yield state, now, a
            yield "slow", a, b
            now = b
    if now < end:
        yield state, now, end


def timeline(lives: Mapping[str, Life]) -> Figure:
    """Draw runs one above the other, on one time axis.

    Parameters
    ----------
    lives : mapping of str to Life
        Title -> run.
    """
    end_ns = max(1, *(life.end_ns for life in lives.values()))
    bars = {}
    for name, life in lives.items():  # merges what is too narrow to see before each worker repeats it
        run = _bars({"run": life.timeline}).pack(end_ns)
        rows = sorted(zip(run.start.tolist(), run.end.tolist(), run.kind.tolist(), strict=True))
        visible = [(_KINDS[kind], start, end) for start, end, kind in rows]
        bars[name] = _bars(lanes_of(replace(life, timeline=visible))).pack(end_ns)
    heights = [0.4 + 0.2 * len(run_bars.lanes) for run_bars in bars.values()]
    figure, axes = new_figure(len(lives), height=min(40.0, 0.6 + sum(heights)))
    if (grid := axes[0].get_gridspec()) is not None:
        grid.set_height_ratios(heights)
    kinds = set()
    for (name, run_bars), ax in zip(bars.items(), axes, strict=True):
        scale_time(ax, end_ns)
        draw_bars(ax, run_bars, _COLOURS, end_ns)
        ax.set_yticks(range(len(run_bars.lanes)), run_bars.lanes, fontsize=7, parse_math=False)
        ax.set_ylim(len(run_bars.lanes) - 0.5, -0.5)
        plain(ax, f"{name}: goodput {100 * lives[name].goodput:.1f}%")
        ax.label_outer()
        kinds |= {run_bars.kinds[kind] for kind in np.unique(run_bars.kind)}
        kinds |= {state for state, _, _ in lives[name].timeline}  # also those too short to see: saving
    entries = [Entry(kind, (kind,), (colour,)) for kind, colour in _COLOURS.items() if kind in kinds]
    add_legend(figure, handles_of(entries, _COLOURS), alone=True)
    return figure


def _bars(lanes: Mapping[str, list[Interval]]) -> Bars:
    state, start, end = zip(*chain.from_iterable(lanes.values()), strict=True)
    lane = np.repeat(np.arange(len(lanes)), [len(intervals) for intervals in lanes.values()])
    kind = np.array([*map(dict(zip(_KINDS, range(len(_KINDS)), strict=True)).__getitem__, state)])
    nothing = np.zeros(len(lane), np.int64)
    return Bars(
        list(lanes), _KINDS, lane, kind, np.array(start), np.array(end), nothing, nothing + 1, nothing - 1
    )
