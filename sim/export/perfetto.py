"""Timelines in Perfetto's own format: protobuf packets, times in whole ns.

::

    resnet, in order                one track a run: its label, or the name of the graph
      hosts      gpu0/host   ▇▇  ▇▇        tracks below it, in the order of `sim.export.timeline`
      gpu0       stream 0      ▇▇▇▇▇
                 memory      ▁▃▅▅▂         counters, below the device that they count for

    packet     track_descriptor  uuid, parent, name, rank among its siblings
               track_event       SLICE_BEGIN: name, category, arrows that leave or end here, annotations
               track_event       SLICE_END
               track_event       COUNTER

Streams and links are tracks of their own rather than threads of made-up processes: so the file says in
which order they are shown. An arrow is a flow: its id stands in ``flow_ids`` of the slice where it begins
and in ``terminating_flow_ids`` of the one where it ends. Launches lead to what they launched, producers to
consumers on other lanes.

What the format asks of the order: the packets of a track in order of time, where one slice ends and the
next begins at the same instant the end first, and an arrow's beginning before its end.

Format: "Writing TrackEvent Protos Synthetically" of the Perfetto documentation; numbers of fields:
``trace_packet.proto``, ``track_descriptor.proto``, ``counter_descriptor.proto``, ``track_event.proto`` and
``debug_annotation.proto`` (https://github.com/google/perfetto, protos/perfetto/trace). Packets are written
some thousands at a time; what is held of a run besides are a few whole numbers a slice.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from functools import cache
from typing import IO, Final

import numpy as np

from sim.base.arrays import Csr, IntArray
from sim.base.files import atomic_path
from sim.export.timeline import CATEGORIES, Lane, Timeline, Titles, in_pieces, launch_call
from sim.graph.failures import STATUSES
from sim.job.costs import issue_costs_ns
from sim.record.record import WAITS, Record

# ----------------------------------------------------------------------------------------------------------
# Protocol buffers without the library: fields of a message as bytes, in the order of their numbers.
#
# A key ``number << 3 | wire type``, then a varint (0), eight bytes (1), or a length and so many bytes (2):
# https://protobuf.dev/programming-guides/encoding/. The reader is `scenarios.importers.chakra_nodes`.


def varint(value: int) -> bytes:
    """Return a number in groups of seven bits, least first; a negative one in 64 bits.

    Examples
    --------
    >>> varint(150).hex(), len(varint(-1))
    ('9601', 10)
    """
    if 0 <= value < 0x80:
        return _SMALL[value]
    if 0 <= value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    value &= 0xFFFF_FFFF_FFFF_FFFF
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


_SMALL: Final = [bytes((value,)) for value in range(0x80)]


@cache
def _key(field: int, wire: int) -> bytes:
    return varint(field << 3 | wire)


def number(field: int, value: int) -> bytes:
    """Return a field with an integer, an enumeration or a truth value."""
    return _key(field, 0) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    """Return a field with an integer of eight bytes."""
    return _key(field, 1) + value.to_bytes(8, "little")


def message(field: int, content: bytes) -> bytes:
    """Return a field with a message in it."""
    return _key(field, 2) + varint(len(content)) + content


def text(field: int, value: str) -> bytes:
    r"""Return a field with text.

    Examples
    --------
    >>> text(2, "hi")
    b'\x12\x02hi'
    """
    return message(field, value.encode())


# ----------------------------------------------------------------------------------------------------------

PERFETTO_ENDINGS: Final = (".pftrace", ".perfetto-trace")
"""How names of such files end."""

_BELOW: Final = 1 << 20
"""Rank of the counters of a device, behind its streams."""

_SEQUENCE: Final = number(10, 1)
"""``trusted_packet_sequence_id``: the one writer of all packets; ids and times hold within a sequence."""

_BEGIN, _END, _COUNTER = (number(9, kind) for kind in (1, 2, 4))
"""``TrackEvent.type``: ``TYPE_SLICE_BEGIN``, ``TYPE_SLICE_END``, ``TYPE_COUNTER``."""

_COUNT, _SIZE_BYTES = 2, 3
"""``CounterDescriptor.unit``."""

_EXPLICIT: Final = number(11, 3)
"""``TrackDescriptor.child_ordering``: by the ranks of the children."""

_AT_ONCE: Final = 20_000
"""Packets held in memory."""


def write_perfetto(
    trace: Record | Mapping[str, Record], path: str | os.PathLike[str], *, arrows: int = 20_000
) -> None:
    """Write one or several traces as a Perfetto protobuf trace, the same bytes for the same traces.

    Parameters
    ----------
    trace : Trace, or mapping of str to Trace
        Of several, each gets a track of its own, named by its label, with its devices below.
    path : path
        By custom ``.pftrace`` or ``.perfetto-trace``.
    arrows : int
        At most so many arrows from producers to consumers for each trace; a viewer is slow with more.

    Raises
    ------
    InputError
        A directory that does not exist.

    Examples
    --------
    >>> write_perfetto(trace, "run.pftrace")  # doctest: +SKIP
    """
    traces = {trace.job.graph.name: trace} if isinstance(trace, Record) else trace
    with atomic_path(path) as beside, beside.open("wb") as file:
        packets = _Packets(file)
        for run, (label, each) in enumerate(traces.items()):
            _write_run(packets, Timeline(each, run), label, arrows)
        packets.flush()


class _Packets:
    """Packets on their way into a file, and the numbers that are given out only once in it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._held: list[bytes] = []
        self._flows = 0
        self._uuids = itertools.count(1)  # 0 is the root of all tracks

    def new_flows(self, n: int) -> IntArray:
        """Return ids for so many arrows."""
        self._flows += n
        return np.arange(self._flows - n, self._flows) + 1

    def event(self, time_ns: int, fields: bytes) -> None:
        """Add a ``TrackEvent``."""
        self._add(number(8, time_ns) + _SEQUENCE + message(11, fields))

    def _add(self, packet: bytes) -> None:
        self._held.append(message(1, packet))
        if len(self._held) >= _AT_ONCE:
            self.flush()

    def flush(self) -> None:
        self._file.write(b"".join(self._held))
        self._held.clear()

    def track(self, name: str, *, parent: int = 0, rank: int = 0) -> int:
        """Describe a track whose children are shown by rank; return its uuid."""
        return self._described(name, parent, _EXPLICIT, rank)

    def counter(self, name: str, parent: int, *, in_bytes: bool) -> int:
        """Describe a counter, shown below its siblings; return its uuid."""
        unit = message(8, number(3, _SIZE_BYTES if in_bytes else _COUNT))
        return self._described(name, parent, unit, _BELOW)

    def _described(self, name: str, parent: int, more: bytes, rank: int) -> int:
        uuid = next(self._uuids)
        below = number(5, parent) if parent else b""
        self._add(_SEQUENCE + message(60, number(1, uuid) + text(2, name) + below + more + number(12, rank)))
        return uuid


def _write_run(packets: _Packets, timeline: Timeline, label: str, most: int) -> None:
    run = packets.track(label)
    tracks: dict[Lane, int] = {}
    places: dict[int, int] = {}
    for rank, group in enumerate(timeline.groups()):
        places[group.pid] = packets.track(group.name, parent=run, rank=rank)
        for below, (lane, name) in enumerate(group.lanes):
            tracks[lane] = packets.track(name, parent=places[group.pid], rank=below)
    _write_slices(packets, timeline, most, tracks)
    _write_counters(packets, timeline, places)


# -- slices -------------------------------------------------------------------------------------


class _Slices:
    """Slices as numbers: two for each task, its launch and its run, then one for each link crossed.

    ::

        slice    0         1      2         3      ...   2n         2n + 1     ...
                 launch    run    launch    run          crossing   crossing
                 of the first     of the second          of a link

    Attributes
    ----------
    start, end : arrays of int64
    real : array of bool
        What a worker runs was not launched.
    """

    def __init__(self, timeline: Timeline) -> None:
        trace, job = timeline.trace, timeline.trace.job
        self._timeline, self.rows = timeline, timeline.shown()
        tasks, moved, of = trace.tasks, trace.transfers, timeline.crossing
        issue = tasks["issue_ns"][self.rows]
        begin = issue - issue_costs_ns(job)[tasks["op"][self.rows]]
        run = (tasks["start_ns"][self.rows], tasks["end_ns"][self.rows])
        self.start = np.concatenate((np.column_stack((begin, run[0])).ravel(), moved["start_ns"][of]))
        self.end = np.concatenate((np.column_stack((issue, run[1])).ravel(), moved["end_ns"][of]))
        self.real = np.ones(len(self.start), dtype=bool)
        by_worker = np.array([device.workers > 0 for device in job.machine.devices])
        self.real[: 2 * len(self.rows) : 2] = ~by_worker[trace.device[self.rows]]

    def launches(self) -> IntArray:
        """Return the slices that are launches; the run of each is the next slice."""
        return np.flatnonzero(self.real[: 2 * len(self.rows) : 2]) * 2

    def of_rows(self) -> IntArray:
        """Return the slice that arrows of each row lead to: of a transfer, on the first link; -1: none."""
        n = len(self._timeline.trace)
        found = np.full(len(self._timeline.lane), -1)
        found[self.rows] = 2 * np.arange(len(self.rows)) + 1
        crossing = self._timeline.crossing
        found[n + crossing[::-1]] = (2 * len(self.rows) + np.arange(len(crossing)))[::-1]
        return found

    def in_order(self) -> IntArray:
        """Return ``2 * slice``, plus 1 where it ends, in the order of the file: by time, what ends first.

        A slice without length comes between those that end at its instant and those that begin.
        """
        long = self.end > self.start
        turn = np.column_stack((3 * self.start + np.where(long, 2, 1), 3 * self.end + np.where(long, 0, 1)))
        order = np.argsort(turn.ravel(), kind="stable")
        return np.asarray(order[self.real[order >> 1]])


def _arrows(timeline: Timeline, slices: _Slices, order: IntArray, most: int) -> tuple[IntArray, IntArray]:
    """Return (slice, slice): from every launch to its task, and from producers to consumers.

    Where nothing takes time a loop may go round within an instant: an arrow back is left out.
    """
    launches, of_row = slices.launches(), slices.of_rows()
    rows = np.array(timeline.arrows(most), np.int64).reshape(-1, 2)
    source = np.concatenate((launches, of_row[rows[:, 0]]))
    target = np.concatenate((launches + 1, of_row[rows[:, 1]]))
    position = np.empty(2 * len(slices.start), np.int64)
    position[order] = np.arange(len(order))
    forth = position[2 * source] < position[2 * target]
    return source[forth], target[forth]


def _by_slice(slices: IntArray, flows: IntArray, n: int) -> Csr:
    """Return the flows of each of `n` slices."""
    order = np.argsort(slices, kind="stable")
    return Csr(np.searchsorted(slices[order], np.arange(n + 1)), flows[order])


# -- packets ------------------------------------------------------------------------------------


def _write_slices(packets: _Packets, timeline: Timeline, most: int, tracks: Mapping[Lane, int]) -> None:
    slices = _Slices(timeline)
    order = slices.in_order()
    source, target = _arrows(timeline, slices, order, most)
    flows = packets.new_flows(len(source))
    leaving, ending = (_by_slice(ends, flows, len(slices.start)) for ends in (source, target))
    track_of = _tracks(timeline, slices, tracks)
    words = _Words(timeline, slices)
    for piece in in_pieces(order):
        which, ends = piece >> 1, piece & 1
        times = np.where(ends, slices.end[which], slices.start[which]).tolist()
        begun = which[ends == 0]
        said = zip(words.of(begun), leaving.take(begun).lists(), ending.take(begun).lists(), strict=True)
        for at, track, ended in zip(times, track_of[which].tolist(), ends.tolist(), strict=True):
            on = number(11, track)
            if ended:
                packets.event(at, _END + on)
                continue
            (notes, names), leave, end = next(said)
            for flow in leave:
                names += fixed64(47, flow)
            for flow in end:
                names += fixed64(48, flow)
            packets.event(at, notes + _BEGIN + on + names)


def _tracks(timeline: Timeline, slices: _Slices, tracks: Mapping[Lane, int]) -> IntArray:
    """Return the track of every slice."""
    of_lane = np.array([tracks[lane] for lane in timeline.lanes])
    of_issuer = np.array([tracks.get(lane, 0) for lane in timeline.issuer])  # 0: it issued nothing
    launches = of_issuer[timeline.trace.tasks["issuer"][slices.rows]]
    runs = of_lane[timeline.lane[slices.rows]]
    return np.concatenate((np.column_stack((launches, runs)).ravel(), of_lane[timeline.crossed]))


class _Words:
    """What is written of slices beside times and places: annotations, and categories with the name."""

    def __init__(self, timeline: Timeline, slices: _Slices) -> None:
        job = timeline.trace.job
        self._timeline, self._rows = timeline, slices.rows
        facts, self._facts_of = timeline.facts_of_ops()
        self._facts = [b"".join(_note(key, value) for key, value in each.items()) for each in facts]
        self._waits = [_note("waited for", word) if word else b"" for word in WAITS]
        self._statuses = [b"", *(_note("status", word) for word in STATUSES[1:])]
        self._titles = Titles(job)
        self._several = job.iterations > 1

    def of(self, slices: IntArray) -> Iterator[tuple[bytes, bytes]]:
        """Yield the annotations of each slice, and its category and name."""
        timeline, n = self._timeline, 2 * len(self._rows)
        graph, devices = timeline.trace.job.graph, timeline.trace.job.machine.devices
        rows = self._rows[slices[slices < n] >> 1]
        ops = timeline.trace.tasks["op"][rows]
        by_op = (column[ops].tolist() for column in (self._facts_of, self._titles.category))
        tasks = zip(timeline.tasks(rows), *by_op, strict=True)
        for each in slices.tolist():
            if each >= n:
                yield self._of_transfer(int(timeline.crossing[each - n]))
                continue
            task, fact, category = next(tasks)
            _, op, iteration, _, ready, _, _, _, status, wait, d, _ = task
            name = graph.op_names[op]
            if each % 2 == 0:
                yield _note("op", name), _named("cuda_runtime", launch_call(devices[d], category))
                continue
            title = self._titles.of(op)
            notes = b"" if title == name else _note("op", name)
            notes += self._facts[fact] + _note("ready_ns", ready)
            if self._several:
                notes += _note("iteration", iteration)
            yield notes + self._waits[wait] + self._statuses[status], _named(CATEGORIES[category], title)

    def _of_transfer(self, row: int) -> tuple[bytes, bytes]:
        moved, graph = self._timeline.trace.transfers, self._timeline.trace.job.graph
        name = f"transfer {graph.tensor_name(int(moved['tensor'][row]))}"
        return _note("bytes", int(moved["nbytes"][row])), _named("gpu_memcpy", name)


def _note(name: str, value: str | int) -> bytes:
    """Return a ``DebugAnnotation``."""
    said = text(6, value) if isinstance(value, str) else number(4, value)
    return message(4, said + text(10, name))


def _named(category: str, name: str) -> bytes:
    return text(22, category) + text(23, name)


def _write_counters(packets: _Packets, timeline: Timeline, places: dict[int, int]) -> None:
    for each in timeline.counters():
        place = places[each.lane.pid]
        head = _COUNTER + number(11, packets.counter(each.title, place, in_bytes=each.title == "memory"))
        for at, value in zip(each.times_ns.tolist(), each.values.tolist(), strict=True):
            packets.event(at, head + number(30, value))
