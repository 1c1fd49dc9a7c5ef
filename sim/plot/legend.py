"""The legend of a chart: one entry per colour, and no more entries than a reader can take in.

::

    ▪ conv                          the kinds that take most time first
    ▪ all_gather, reduce_scatter    kinds of one colour stand side by side
    ▪ transfer                      entries that are not kinds of op come last
    ▪ 7 other kinds (2 %)           the rest, counted; its bars keep their colours, so it shows some of them

Pictures (`handles_of`) and pages (`sim.plot.html`) show the same entries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from sim.base.arrays import group_pairs, sums_by
from sim.base.errors import list_names
from sim.plot.bars import Bars, coloured_by
from sim.plot.figure import elide
from sim.plot.theme import LAUNCH, TRANSFER, WAITING, colour_of, hatches, is_print, paper, shade
from sim.record.record import Record

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST: Final = 10
"""Maximum entries of a legend: readers cannot distinguish more colours."""
_WIDTH: Final = 32
"""Letters per line of the legend."""
_NAMED: Final = 3
"""Maximum kinds of one colour that are named; the rest are counted."""
SLICES: Final = 4
"""Number of colours shown in the entry for all other kinds."""


class Entry(NamedTuple):
    """An entry of a legend: its text, the kinds that it stands for, and their distinct colours."""

    label: str
    kinds: tuple[str, ...]
    colours: tuple[str, ...]


def colours_of(traces: Sequence[Record]) -> dict[str, str]:
    """Return kind → colour for everything visible, the kinds that take most time first.

    The colour follows from the name alone (`sim.plot.theme`): a kind looks the same in all figures.

    Parameters
    ----------
    traces : sequence of Trace
        All traces that are shown together.
    """
    busy = Counter[str]()
    for trace in traces:
        kinds, code = coloured_by(trace.job.graph)
        ns = trace.tasks["end_ns"] - trace.tasks["start_ns"]
        totals = sums_by(code[trace.tasks["op"]], ns, len(kinds))
        busy.update(dict.fromkeys(trace.job.graph.kinds, 0))
        busy.update(dict(zip(kinds, totals.tolist(), strict=True)))
    longest_first = sorted(busy, key=lambda kind: (-busy[kind], kind))
    return {kind: colour_of(kind) for kind in (*longest_first, WAITING, LAUNCH, TRANSFER)}


def legend_of(bars: Sequence[Bars], colours: Mapping[str, str]) -> list[Entry]:
    """Return the entries for the visible content of charts; only bars of some width are visible.

    Parameters
    ----------
    bars : sequence of Bars
        The bars of all charts that the legend belongs to.
    colours : mapping of str to str
        The result of `colours_of`.
    """
    times = Counter[str]()
    for chart in bars:
        ns = np.bincount(chart.kind, chart.end - chart.start, len(chart.kinds)).astype(np.int64)
        for kind, total in zip(chart.kinds, ns.tolist(), strict=True):  # an op may be of kind launch, too
            times[kind] += total
    return entries_of(+times, colours)


def entries_of(times: Mapping[str, int], colours: Mapping[str, str], most: int = MOST) -> list[Entry]:
    """Return a legend: one entry per colour, the longest first; beyond `most`, the rest form one entry.

    Parameters
    ----------
    times : mapping of str to int
        Kind → its total time.
    colours : mapping of str to str
        Kind → colour.
    most : int

    Examples
    --------
    >>> colours = {"a": "red", "b": "blue", "c": "red", "d": "pink", "e": "lime", "f": "cyan"}
    >>> for entry in entries_of({"a": 30, "b": 50, "c": 40, "d": 4, "e": 3, "f": 1}, colours, most=3):
    ...     print(entry.label, entry.colours)
    c, a ('red',)
    b ('blue',)
    3 other kinds (6 %) ('pink', 'lime', 'cyan')
    """
    extras = [kind for kind in (WAITING, LAUNCH, TRANSFER) if kind in times]
    ops = sorted((kind for kind in times if kind not in extras), key=lambda kind: (-times[kind], kind))
    groups = group_pairs((colours[kind], kind) for kind in ops).values()
    by_time = sorted(groups, key=lambda kinds: -sum(times[kind] for kind in kinds))
    room = most - len(extras)
    named, minor = (by_time, []) if len(by_time) <= room else (by_time[: room - 1], by_time[room - 1 :])
    entries = [Entry(_join_kinds(kinds), tuple(kinds), (colours[kinds[0]],)) for kinds in named]
    entries += [Entry(kind, (kind,), (colours[kind],)) for kind in extras]
    if minor:
        others = [kind for kinds in minor for kind in kinds]
        share = 100 * sum(times[kind] for kind in others) / max(1, sum(times[kind] for kind in ops))
        percent = f"{share:.0f}" if share >= 1 else "under 1"
        label = f"{len(others)} other kinds ({percent} %)"
        entries.append(Entry(label, tuple(others), tuple(colours[kinds[0]] for kinds in minor)))
    return entries


def with_bands(entries: Sequence[Entry], labels: Sequence[str], colours: Mapping[str, str]) -> list[Entry]:
    """Return entries that also name bands of memory: beside kinds of their colour, or at the end.

    Parameters
    ----------
    entries : sequence of Entry
        Entries of the chart above; empty: there is none.
    labels : sequence of str
        Labels of the bands, from bottom to top.
    colours : mapping of str to str
    """
    by_colour = group_pairs((colours[label], label) for label in labels)
    labelled = []
    for entry in entries:
        more = by_colour.pop(entry.colours[0], []) if len(entry.colours) == 1 else []
        kinds = tuple(dict.fromkeys([*entry.kinds, *more]))
        labelled.append(Entry(_join_kinds(kinds), kinds, entry.colours) if more else entry)
    memory = "memory: " if entries else ""  # resident memory, and that of other kinds
    return labelled + [
        Entry(memory + _join_kinds(kinds), tuple(kinds), (colour,)) for colour, kinds in by_colour.items()
    ]


def _join_kinds(kinds: Sequence[str]) -> str:
    """Return the names of kinds that share a colour, as one text.

    Examples
    --------
    >>> _join_kinds(["add"]), _join_kinds(["add", "mul", "sub", "div", "bias_add"])
    ('add', 'add, mul, sub and 2 more')
    """
    return list_names([elide(kind) for kind in kinds], _NAMED)


def handles_of(entries: Iterable[Entry], colours: Mapping[str, str]) -> dict[str, Any]:
    """Return label → its handle: a patch, or several for an entry of several colours.

    Parameters
    ----------
    entries : iterable of Entry
    colours : mapping of str to str
        All colours that are shown together, for the hatches of print.
    """
    from matplotlib.patches import Patch

    hatch = hatches(colours)

    def patch(kind: str) -> Artist:
        return Patch(
            facecolor=shade(colours[kind]), edgecolor=paper(), hatch=hatch[kind] or None, linewidth=0
        )

    handles: dict[str, Any] = {}
    for label, kinds, entry_colours in entries:
        firsts = [next(group) for _, group in groupby(kinds, key=lambda kind: colours[kind])]
        patches = tuple(patch(kind) for kind in firsts[:SLICES])
        handles[label] = patches if len(entry_colours) > 1 else patches[0]
    return handles


def add_legend(
    where: Axes | Figure, handles: Mapping[str, Any] | None = None, *, alone: bool = False
) -> None:
    """Put a legend beside axes, or beside a figure, where a long one takes no height from the first axes.

    Parameters
    ----------
    where : Axes or Figure
    handles : mapping of str to artist, optional
        Label → handle; by default those of the axes.
    alone : bool
        Whether even a single entry is worth a legend.
    """
    from matplotlib.figure import Figure
    from matplotlib.legend_handler import HandlerTuple

    if handles is None:
        artists, names = where.get_legend_handles_labels()  # type: ignore[union-attr]  # of axes
        handles = dict(zip(names, artists, strict=True))
    if len(handles) < (1 if alone else 2):
        return
    options: dict[str, Any] = {"loc": "outside right upper"}
    if not isinstance(where, Figure):
        options = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
    several = {tuple: HandlerTuple(ndivide=None, pad=0)}
    if is_print():  # a hatch needs room to be recognised
        options |= {"handlelength": 3.0, "handleheight": 1.7, "labelspacing": 0.8}
    labels = [fill(label, _WIDTH, break_long_words=False) for label in handles]
    legend = where.legend(handles.values(), labels, frameon=False, fontsize=8, handler_map=several, **options)
    for text in legend.get_texts():
        text.set_parse_math(False)
