"""Plots of memory over time: what one device holds, band by band, and what was reserved for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from sim.base.arrays import UNSET, IntArray, group_pairs, sums_by
from sim.base.errors import list_names
from sim.base.units import format_bytes
from sim.explain.memory_use import lifetimes, memory_use
from sim.plot.figure import axes_or_new, elide, scale_time
from sim.plot.legend import Entry, add_legend, handles_of, with_bands
from sim.plot.theme import OTHER, RESIDENT, colour_of, hatches, ink, paper, plain, shade
from sim.record.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# ----------------------------------------------------------------------------------------------------------
# Memory over time as plots show it: one strip per device, and the choice of strips below a Gantt chart.
#
#     gpu0/0   ▇▇conv▇▇▇▇pool▇▇   ▇▇concat▇▇      the Gantt chart of a run, and below it
#     gpu0       ▁▃▅▅▅▇▇▇▅▃▁                      a strip for each device whose memory changes: bands by kind,
#     gpu1             ▁▃▅▅▃▁                     in the colours of the chart, on its time axis
#
# Nothing is drawn here: pictures (`sim.plot.memory`, `sim.plot.gantt`) and pages (`sim.plot.html`) both show
# the results of these functions.

MOST: Final = 8
"""Maximum devices with a strip, those with the highest peaks; more would push the charts apart."""
_MAX_STRIPS: Final = 32
"""Maximum strips of all runs together, with at least one each: some 25 inches of a picture."""
_NAMED: Final = 6
"""Maximum devices without a strip that are named; the rest are counted."""
_KINDS: Final = 5
"""Maximum kinds of op with a band of their own."""
_CAPACITY_SHARE: Final = 0.75
"""Share of the capacity from which it is shown: otherwise it would flatten the rest of the strip."""
_COLUMNS: Final = 2_000
"""Number of instants in a strip: about one per pixel of a picture 12 inches wide, at 150 per inch."""

RESERVED, NOT_IN_USE, CAPACITY = "reserved", "reserved, not in use", "capacity"
LINES: Final = {RESERVED: "black", NOT_IN_USE: "#eeeeee", CAPACITY: "#B22222"}
"""Labels besides those of bands, and their colours: a line, the area below it, and a dashed line."""


@dataclass(frozen=True)
class Strip:
    """Memory of one device over a run, in bytes.

    Attributes
    ----------
    device, kind : str
        Its name, and ``cpu``, ``gpu`` or ``npu``.
    times_ns : array of int64
        From ``times_ns[k]`` on, ``bands[label][k]`` bytes are held; the last one is the end of the run. With
        an allocator's log, an instant may appear several times, for the steps within it.
    bands : mapping of str to array of int64
        Bands from bottom to top.
    reserved : array of int64, or None
        Bytes that its allocator holds from the device; None without an allocator.
    peak_bytes, peak_ns : int
        The most in use, and the first instant at which it was.
    capacity_bytes : int, or None
        Size of the device's memory; None: unlimited.
    """

    device: str
    kind: str
    times_ns: IntArray
    bands: Mapping[str, IntArray]
    reserved: IntArray | None
    peak_bytes: int
    peak_ns: int
    capacity_bytes: int | None

    @property
    def in_use(self) -> IntArray:
        """Bytes in use at each time: the sum of all bands."""
        return _sum(self.bands.values(), len(self.times_ns))

    @property
    def top_bytes(self) -> int:
        """The most in use or reserved, at least 1."""
        return max(self.peak_bytes, 0 if self.reserved is None else int(self.reserved.max(initial=0)), 1)

    @property
    def shown_capacity(self) -> int | None:
        """Size of the device's memory, if at least three quarters of it were held at once."""
        limit = self.capacity_bytes
        return None if limit is None or self.top_bytes < _CAPACITY_SHARE * limit else limit

    def thin_out(self, until_ns: int, columns: int = _COLUMNS) -> Strip:
        """Return a strip of fewer steps that looks the same.

        Within an instant only the last step stays. If there are more instants than columns of the picture,
        each column keeps its last one, and those with the most in use and the most reserved.

        Parameters
        ----------
        until_ns : int
            Right end of the picture.
        columns : int
        """
        settled = self._select(np.flatnonzero(np.diff(self.times_ns, append=self.times_ns[-1:] + 1)))
        if len(settled.times_ns) <= 3 * columns:
            return settled
        column = settled.times_ns // max(1, -(-until_ns // columns))
        last = np.flatnonzero(np.diff(column, append=column[-1:] + 1))
        totals = [settled.in_use] if settled.reserved is None else [settled.in_use, settled.reserved]
        peaks = [np.lexsort((sums, column))[last] for sums in totals]  # columns stay in order: times rise
        return settled._select(np.unique(np.concatenate((last, *peaks))))

    def _select(self, rows: IntArray) -> Strip:
        return replace(
            self,
            times_ns=self.times_ns[rows],
            bands={label: nbytes[rows] for label, nbytes in self.bands.items()},
            reserved=None if self.reserved is None else self.reserved[rows],
        )


class Strips(NamedTuple):
    """The strips of a run, in machine order, and the names of devices left out because of the limit."""

    shown: list[Strip]
    left_out: list[str]

    @property
    def note(self) -> str:
        """Note on devices without a strip; empty if there are none.

        Examples
        --------
        >>> Strips([], ["gpu0", "gpu3"]).note
        'memory: the 0 of 2 devices with the highest peaks; without gpu0, gpu3'
        """
        if not self.left_out:
            return ""
        top = f"the {len(self.shown)} of {len(self.shown) + len(self.left_out)} devices"
        return f"memory: {top} with the highest peaks; without {list_names(self.left_out, _NAMED)}"


def coloured_strips(
    runs: Sequence[Record], colours: Mapping[str, str], *, memory: bool, without_log: bool = False
) -> tuple[list[Strips], dict[str, str], dict[str, int]]:
    """Return the strips of runs that are shown together, all colours, and the top of each kind of device.

    Parameters
    ----------
    runs : sequence of Trace
    colours : mapping of str to str
        The colours of their bars.
    memory : bool
        Whether any strips are wanted.
    without_log : bool
        As for `strips_of`.
    """
    run_strips = alike(strips_of(runs, without_log=without_log) if memory else [Strips([], []) for _ in runs])
    strips = [strip for run in run_strips for strip in run.shown]
    bands = {label: colour_of(label) for label in band_labels(strips)}
    return run_strips, {**colours, **bands, **LINES}, tops_of(strips)


def strip_of(trace: Record, device: str) -> Strip:
    """Return the memory of a device over a run, split by the kind of op that made it.

    With an allocator's log, bytes are as allocated; otherwise as the tensors need. Resident tensors are one
    band, the kinds that hold most have one each, and the rest is "other".

    Raises
    ------
    UnknownNameError
        There is no such device.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("chain")
    >>> _ = b.op("a", kind="conv", duration_ns=10, outputs=100)
    >>> _ = b.op("b", kind="relu", duration_ns=10, outputs=70, inputs=["a"])
    >>> strip = strip_of(simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue()), "gpu0")
    >>> strip.times_ns.tolist(), strip.in_use.tolist(), strip.peak_bytes, strip.peak_ns
    ([0, 10, 20], [100, 170, 0], 170, 10)
    >>> {label: nbytes.tolist() for label, nbytes in strip.bands.items()}
    {'conv': [100, 100, 0], 'relu': [0, 70, 0]}
    """
    index, graph, reserved = trace.job.machine.device_index(device), trace.job.graph, None
    if log := trace.log_of(index):
        times, tensor, change = log["time_ns"], log["tensor"], log["change"]
        rows, last = np.arange(len(times)), log["reserved"][-1:] if len(times) else 0
        # If the host runs ahead, the log ends long before the run.
        times, reserved = np.append(times, trace.makespan_ns), np.append(log["reserved"], last)
    else:
        lives = lifetimes(trace)
        lives = lives.of(lives.device == index)
        tensor = np.tile(lives.tensor, 2)
        change = np.concatenate((lives.nbytes, -lives.nbytes))
        times, rows = np.unique(np.concatenate((lives.start_ns, lives.end_ns)), return_inverse=True)
    producer = graph.tensor_producer[tensor]
    kind = np.where(producer == UNSET, UNSET, graph.kind_code[producer])
    steps: dict[int, IntArray] = {}
    for code in np.unique(kind).tolist():
        steps[code] = np.cumsum(sums_by(rows[kind == code], change[kind == code], len(times)))
    bands = {RESIDENT: steps.pop(UNSET)} if UNSET in steps else {}
    ranked = sorted(steps, key=lambda code: (-int(steps[code].max()), code))
    bands |= {graph.kinds[code]: steps[code] for code in ranked[:_KINDS]}
    if ranked[_KINDS:]:
        bands[OTHER] = np.sum([steps[code] for code in ranked[_KINDS:]], axis=0)
    total, hardware = _sum(bands.values(), len(times)), trace.job.machine.devices[index]
    peak_ns = int(times[total.argmax()]) if len(total) else 0
    peak = int(total.max(initial=0))
    return Strip(device, hardware.kind, times, bands, reserved, peak, peak_ns, hardware.memory_bytes)


def strips_of(traces: Sequence[Record], most: int = MOST, *, without_log: bool = False) -> list[Strips]:
    """Return, for each run, a strip for each device whose memory changes after time 0.

    There are strips if an allocator kept a log of at least one run. Runs without a log then show what
    their tensors need.

    If there are more devices, those with the highest peaks get strips, the same ones in all runs, for
    comparison. Ties go to the first device. A run that has none of them shows its own highest.

    Parameters
    ----------
    traces : sequence of Trace
        Runs that are shown together.
    most : int
        Maximum devices with a strip. If that makes more than 32 strips in all, fewer get one.
    without_log : bool
        Whether there are strips even if no run has a log.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from devices.memory.run_memory import tensor_memory
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("three")
    >>> for k in range(3):
    ...     _ = b.op(f"op{k}", duration_ns=10, outputs=100 * k, device=f"gpu{k}")
    >>> machine = Machine(tuple(Device(f"gpu{k}") for k in range(3)))
    >>> trace = simulate(b.build(), machine, ReadyQueue(), memory=tensor_memory())
    >>> (strips,) = strips_of([trace], most=1)
    >>> [strip.device for strip in strips.shown], strips.left_out
    (['gpu2'], ['gpu1'])
    """
    if not without_log and all(trace.memory is None for trace in traces):
        return [Strips([], []) for _ in traces]
    peaks_by_run = [_peaks(trace) for trace in traces]
    highest = Counter[str]()
    for peaks in peaks_by_run:
        highest |= Counter(peaks)
    with_memory = sum(bool(peaks) for peaks in peaks_by_run)
    limit = min(most, max(1, _MAX_STRIPS // max(1, with_memory)))
    chosen = {name for name, _ in highest.most_common(limit)}  # ties stay in order
    strips = []
    for trace, peaks in zip(traces, peaks_by_run, strict=True):
        names = [name for name in peaks if name in chosen]
        names = names or sorted(peaks, key=lambda name: -peaks[name])[:1]
        strips.append(Strips([strip_of(trace, name) for name in names], [n for n in peaks if n not in names]))
    return strips


def _peaks(trace: Record) -> dict[str, int]:
    """Return the peak in use on each device whose memory changes after time 0, in machine order."""
    log = trace.memory
    if log is None:
        needed = memory_use(trace).items()
        return {name: use.peak_bytes for name, use in needed if use.peak_bytes > use.resident_bytes}
    names = [device.name for device in trace.job.machine.devices]
    changed = np.unique(log["device"][(log["time_ns"] > 0) & (log["change"] != 0)]).tolist()
    return {names[d]: int(log["in_use"][log["device"] == d].max()) for d in changed}


def alike(runs: Sequence[Strips]) -> list[Strips]:
    """Return the strips with bands in one order: resident, kinds by the most that a device holds, other."""
    labels = band_labels(strip for run in runs for strip in run.shown)

    def in_band_order(strip: Strip) -> Strip:
        return replace(strip, bands={label: strip.bands[label] for label in labels if label in strip.bands})

    return [run._replace(shown=[in_band_order(strip) for strip in run.shown]) for run in runs]


def fold_strips(strips: Sequence[Strip]) -> list[Strip]:
    """Return strips without those that look the same; the first of equal ones names their number."""

    def look(strip: Strip) -> tuple[str | bytes, ...]:
        reserved = [] if strip.reserved is None else [strip.reserved]
        columns = (strip.times_ns, *reserved, *strip.bands.values())
        return strip.kind, *strip.bands, *(column.tobytes() for column in columns)

    return [
        replace(first, device=f"{first.device} and {len(others)} more") if others else first
        for first, *others in group_pairs((look(strip), strip) for strip in strips).values()
    ]


def band_labels(strips: Iterable[Strip]) -> list[str]:
    """Return labels of bands from bottom to top: resident, kinds by the most that a device holds, other."""
    peaks: dict[str, int] = {}
    for strip in strips:
        for label, nbytes in strip.bands.items():
            peaks[label] = max(peaks.get(label, 0), int(nbytes.max(initial=0)))
    return sorted(peaks, key=lambda label: (label != RESIDENT, label == OTHER, -peaks[label], label))


def line_labels(strips: Sequence[Strip]) -> list[str]:
    """Return which of `LINES` strips show."""
    reserved = [RESERVED, NOT_IN_USE] if any(strip.reserved is not None for strip in strips) else []
    return [*reserved, CAPACITY] if any(strip.shown_capacity for strip in strips) else reserved


def tops_of(strips: Iterable[Strip]) -> dict[str, int]:
    """Return the bytes at the top of the axis of each kind of device, for all strips, to compare heights.

    Host and GPU have axes of their own, so that the one with less is not flattened.
    """
    tops: dict[str, int] = {}
    for strip in strips:
        tops[strip.kind] = max(tops.get(strip.kind, 1), strip.top_bytes, strip.shown_capacity or 0)
    return tops


def byte_unit(top_bytes: int) -> tuple[int, str]:
    """Return (bytes in the unit, its name) of the best unit for an axis up to `top_bytes` bytes.

    Examples
    --------
    >>> byte_unit(3_000_000), byte_unit(5)
    ((1048576, 'MiB'), (1, 'B'))
    """
    units = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
    return next(((unit, name) for unit, name in units if top_bytes >= unit), (1, "B"))


def _sum(columns: Iterable[IntArray], length: int) -> IntArray:
    return np.asarray(np.sum([*columns, np.zeros(length, np.int64)], axis=0))


# ----------------------------------------------------------------------------------------------------------


def memory(trace: Record, device: str, ax: Axes | None = None, *, title: str | None = None) -> Axes:
    """Draw the bytes in use on a device over time, and mark the peak.

    One band is resident memory (parameters and inputs), the others the outputs of the kinds of op that hold
    most; with an allocator, a line shows what it reserved, and the grey below it what is not in use.

    Parameters
    ----------
    trace : Trace
    device : str
        Name of a device.
    ax : Axes, optional
    title : str, optional

    Returns
    -------
    Axes

    Raises
    ------
    UnknownNameError
        There is no such device.
    """
    strip = strip_of(trace, device)
    ax = axes_or_new(ax, height=2.6)
    colours = {label: colour_of(label) for label in strip.bands}
    draw_strip(ax, strip, colours, tops_of([strip])[strip.kind], max(trace.makespan_ns, 1))
    plain(ax, title)
    add_legend(ax, memory_handles([], [strip], colours), alone=True)
    return ax


def memory_handles(
    entries: Sequence[Entry], strips: Sequence[Strip], colours: Mapping[str, str]
) -> dict[str, Any]:
    """Return the handles of a legend: its entries, the bands of strips, and the lines that strips show.

    Parameters
    ----------
    entries : sequence of Entry
        Entries of the chart above; empty: there is none.
    strips : sequence of Strip
        All strips that the legend belongs to.
    colours : mapping of str to str
        All colours that are shown together.
    """
    from matplotlib.lines import Line2D

    style: dict[str, dict[str, Any]] = {NOT_IN_USE: {"linewidth": 6}, CAPACITY: {"linestyle": "--"}}
    return handles_of(with_bands(entries, band_labels(strips), colours), colours) | {
        label: Line2D([], [], color=shade(LINES[label]), **{"linewidth": 1, **style.get(label, {})})
        for label in line_labels(strips)
    }


def draw_strip(ax: Axes, strip: Strip, colours: Mapping[str, str], top_bytes: int, until_ns: int) -> None:
    """Draw the memory of a device: low, without a legend, with its name where lanes have theirs.

    Memory in use is stacked by band; a line shows what is reserved, a dashed one the capacity if it is near.

    Parameters
    ----------
    ax : Axes
    strip : Strip
    colours : mapping of str to str
        Label of a band → colour (`sim.plot.memory.coloured_strips`).
    top_bytes : int
        The top of the axis, the same for all strips that are compared with this one.
    until_ns : int
        Right end of the time axis.
    """
    scale, strip = scale_time(ax, until_ns), strip.thin_out(until_ns)
    unit, unit_name = byte_unit(top_bytes)
    times, below = strip.times_ns / scale, np.zeros(len(strip.times_ns), np.int64)
    hatch = hatches(colours)
    for label, nbytes in strip.bands.items():
        look = {"facecolor": shade(colours[label]), "hatch": hatch[label] or None, "edgecolor": paper()}
        ax.fill_between(times, below / unit, (below + nbytes) / unit, step="post", linewidth=0, **look)
        below = below + nbytes
    if strip.reserved is not None:
        line = strip.reserved / unit
        ax.fill_between(times, below / unit, line, step="post", color=shade(LINES[NOT_IN_USE]), linewidth=0)
        ax.step(times, line, where="post", color=shade(LINES[RESERVED]), linewidth=1)
    if (capacity := strip.shown_capacity) is not None:
        ax.axhline(capacity / unit, color=shade(LINES[CAPACITY]), linewidth=1, linestyle="--")
    ax.axvline(strip.peak_ns / scale, color=ink(), linewidth=0.7, linestyle=":")
    late = strip.peak_ns > until_ns / 2  # more room is on the other side
    ax.annotate(
        f"peak {format_bytes(strip.peak_bytes, iec=True)}",
        (strip.peak_ns / scale, top_bytes / unit),
        textcoords="offset points",
        xytext=(-4, 3) if late else (4, 3),
        ha="right" if late else "left",
        fontsize=7,
    )
    # Across, as a long name is wider than the strip is high
    name = f"{elide(strip.device)}\n({unit_name})"
    ax.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8, parse_math=False)
    ax.set_ylim(0, 1.35 * top_bytes / unit)  # room for the peak's label
    ax.locator_params(axis="y", nbins=3)
    ax.tick_params(axis="y", labelsize=7)
    plain(ax, grid="x")
