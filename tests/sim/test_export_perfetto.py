"""Perfetto's own format: what is written is read back with the protobuf messages and compared."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from chrome_helpers import chrome_events
from drawn_runs import draw_run
from examples import seeds
from trace_examples import two_streams

from policies.issue.ready_queue import ReadyQueue
from scenarios.importers.chakra_nodes import fields, signed
from scenarios.report.outputs import check_outputs
from sim import Device, GraphBuilder, Machine, Trace, simulate
from sim.base.errors import InputError
from sim.export.perfetto import number, write_perfetto


class Slice(NamedTuple):
    track: tuple[str, ...]
    category: str
    name: str
    start_ns: int
    end_ns: int
    leaving: tuple[int, ...]
    ending: tuple[int, ...]
    facts: dict[str, str | int]


class Timeline(NamedTuple):
    """What a reader of the file makes of it: tracks by path of names, slices, counters by track."""

    tracks: dict[int, tuple[str, ...]]
    slices: list[Slice]
    counters: dict[tuple[str, ...], list[tuple[int, int]]]


def read(path: Path) -> Timeline:
    """Read packets in the order of the file: an end closes the slice that began last on its track."""
    proto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    tracks: dict[int, tuple[str, ...]] = {0: ()}
    open_slices: dict[int, list[Any]] = defaultdict(list)
    slices: list[Slice] = []
    counters: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
    now: dict[int, int] = defaultdict(int)
    begun: set[int] = set()
    for packet in proto.Trace.FromString(path.read_bytes()).packet:
        assert packet.trusted_packet_sequence_id == 1
        if packet.HasField("track_descriptor"):
            described = packet.track_descriptor
            assert described.uuid == len(tracks), "counted up"
            tracks[described.uuid] = (*tracks[described.parent_uuid], described.name)
            continue
        event = packet.track_event
        assert packet.timestamp >= now[event.track_uuid], "in order of time on each track"
        now[event.track_uuid] = packet.timestamp
        if event.type == event.TYPE_COUNTER:
            counters[tracks[event.track_uuid]].append((packet.timestamp, event.counter_value))
        elif event.type == event.TYPE_SLICE_BEGIN:
            assert not open_slices[event.track_uuid], "one slice after the other"
            open_slices[event.track_uuid].append(packet)
            assert begun.issuperset(event.terminating_flow_ids), "arrows begin before they end"
            begun.update(event.flow_ids)
        else:
            assert event.type == event.TYPE_SLICE_END
            first = open_slices[event.track_uuid].pop()
            slices.append(slice_of(tracks[event.track_uuid], first, packet.timestamp))
    assert not any(open_slices.values())
    return Timeline(tracks, slices, counters)


def slice_of(track: tuple[str, ...], first: Any, end_ns: int) -> Slice:
    event = first.track_event
    facts = {
        note.name: note.string_value if note.HasField("string_value") else note.int_value
        for note in event.debug_annotations
    }
    (category,) = event.categories
    flows = tuple(event.flow_ids), tuple(event.terminating_flow_ids)
    return Slice(track, category, event.name, first.timestamp, end_ns, *flows, facts)


@pytest.fixture
def trace() -> Trace:
    return two_streams()


def test_slices_say_what_ran_where_and_when_in_whole_ns(trace: Trace, tmp_path: Path) -> None:
    pytest.importorskip("perfetto")
    write_perfetto(trace, tmp_path / "t.pftrace")
    slices = {(s.category, s.facts.get("op", s.name)): s for s in read(tmp_path / "t.pftrace").slices}
    a, b, c = slices["kernel", "a"], slices["kernel", "b"], slices["cpu_op", "c"]
    assert (a.track, a.start_ns, a.end_ns) == (("two streams", "gpu0", "stream 0"), 3_000, 13_001)
    assert (b.track, b.start_ns, b.end_ns) == (("two streams", "gpu0", "stream 1"), 13_001, 33_001)
    assert (c.track, c.start_ns, c.end_ns) == (("two streams", "cpu0", "worker 0"), 33_001, 38_001)
    assert b.facts == {"kind": "matmul", "ready_ns": b.facts["ready_ns"], "waited for": "event"}
    launch = slices["cuda_runtime", "b"]
    assert (launch.track[1], launch.name) == ("hosts", "cudaLaunchKernel")
    assert (launch.start_ns, launch.end_ns) == (3_000, 6_000)
    launched = slices["cuda_runtime", "a"].leaving + launch.leaving
    assert (launched, a.leaving, b.leaving) == ((1, 2), (3,), (4,))
    assert (a.ending, b.ending, c.ending) == ((1,), (2, 3), (4,))


def pairs(timeline: Timeline) -> Iterator[tuple[Slice, Slice]]:
    """Yield where every arrow begins and ends: each does both exactly once."""
    begins = {flow: s for s in timeline.slices for flow in s.leaving}
    ends = {flow: s for s in timeline.slices for flow in s.ending}
    count = sum(len(s.leaving) for s in timeline.slices), sum(len(s.ending) for s in timeline.slices)
    assert begins.keys() == ends.keys() == set(range(1, len(begins) + 1))
    assert count == (len(begins), len(ends))
    for flow, source in begins.items():
        yield source, ends[flow]


@pytest.mark.parametrize("seed", seeds(40))
def test_both_formats_show_the_same(seed: int, tmp_path: Path) -> None:
    """Slices, arrows and counters are those of the Chrome JSON, whose times are µs with three decimals."""
    pytest.importorskip("perfetto")
    run = draw_run(seed)
    write_perfetto({"run": run}, tmp_path / "t.pftrace")
    timeline = read(tmp_path / "t.pftrace")
    events = list(chrome_events(run))
    process = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    thread = {
        (e["pid"], e["tid"]): ("run", process[e["pid"]], e["args"]["name"])
        for e in events
        if e["name"] == "thread_name"
    }
    drawn = Counter(
        (thread[e["pid"], e["tid"]], e["cat"], e["name"], round(e["ts"] * 1000), round(e["dur"] * 1000))
        for e in events
        if e["ph"] == "X"
    )
    assert drawn == Counter(
        (s.track, s.category, s.name, s.start_ns, s.end_ns - s.start_ns) for s in timeline.slices
    )

    begin = {(e["cat"], e["id"]): thread[e["pid"], e["tid"]] for e in events if e["ph"] == "s"}
    chrome = Counter(
        (begin[e["cat"], e["id"]], thread[e["pid"], e["tid"]], round(e["ts"] * 1000))
        for e in events
        if e["ph"] == "f"
    )
    joined = list(pairs(timeline))
    assert Counter((source.track, target.track, target.start_ns) for source, target in joined) == chrome
    assert all(source.end_ns <= target.start_ns for source, target in joined)

    counted = defaultdict(list)
    for e in events:
        if e["ph"] == "C":
            (value,) = e["args"].values()
            counted["run", process[e["pid"]], e["name"]].append((round(e["ts"] * 1000), value))
    assert timeline.counters == counted


def test_tracks_are_shown_in_the_order_of_their_ranks(trace: Trace, tmp_path: Path) -> None:
    proto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    write_perfetto(trace, tmp_path / "t.pftrace")
    packets = proto.Trace.FromString((tmp_path / "t.pftrace").read_bytes()).packet
    described = [p.track_descriptor for p in packets if p.HasField("track_descriptor")]
    names = {track.uuid: track.name for track in described}
    below: dict[str, list[str]] = defaultdict(list)
    for track in sorted(described, key=lambda track: track.sibling_order_rank):
        below[names.get(track.parent_uuid, "")].append(track.name)
    assert below[""] == ["two streams"]
    assert below["two streams"] == ["hosts", "gpu0", "cpu0"]
    assert below["gpu0"][:2] == ["stream 0", "stream 1"]
    assert sorted(below["gpu0"][2:]) == ["memory", "running"]
    (memory,) = (t for t in described if t.name == "memory" and names[t.parent_uuid] == "gpu0")
    assert memory.counter.unit == memory.counter.UNIT_SIZE_BYTES
    parents = {track.parent_uuid for track in described} - {0}
    assert all(t.child_ordering == t.EXPLICIT for t in described if t.uuid in parents)


def test_what_takes_no_time_stands_between_what_ends_and_what_begins(tmp_path: Path) -> None:
    pytest.importorskip("perfetto")
    builder = GraphBuilder("instants")
    for k, length in enumerate((5, 0, 0, 7, 0)):
        builder.op(f"op{k}", inputs=[f"op{k - 1}"] if k else [], duration_ns=length)
    run = simulate(builder.build(), Machine((Device("gpu0", streams=2),)), ReadyQueue())
    write_perfetto(run, tmp_path / "t.pftrace")
    kernels = [s for s in read(tmp_path / "t.pftrace").slices if s.category == "kernel"]
    assert [(s.name, s.start_ns, s.end_ns) for s in kernels] == [
        ("op0", 0, 5), ("op1", 5, 5), ("op2", 5, 5), ("op3", 5, 12), ("op4", 12, 12)
    ]  # fmt: skip


def test_several_runs_have_tracks_and_arrows_of_their_own(trace: Trace, tmp_path: Path) -> None:
    pytest.importorskip("perfetto")
    write_perfetto(trace, tmp_path / "one.pftrace")
    write_perfetto({"first": trace, "second": trace}, tmp_path / "both.pftrace", arrows=1)
    one, both = read(tmp_path / "one.pftrace"), read(tmp_path / "both.pftrace")
    assert [path for path in both.tracks.values() if len(path) == 1] == [("first",), ("second",)]
    assert len(both.slices) == 2 * len(one.slices)
    assert len(list(pairs(one))) == 4
    joined = list(pairs(both))
    assert len(joined) == 6, "of the two from producer to consumer, the earlier"
    assert all(source.track[0] == target.track[0] for source, target in joined)


def test_the_same_trace_gives_the_same_bytes_however_it_is_cut(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("perfetto")
    write_perfetto(trace, tmp_path / "a.pftrace")
    monkeypatch.setattr("sim.export.perfetto._AT_ONCE", 1)
    monkeypatch.setattr("sim.export.timeline._PIECE", 1)
    write_perfetto(trace, tmp_path / "b.pftrace")
    assert (tmp_path / "a.pftrace").read_bytes() == (tmp_path / "b.pftrace").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pftrace", "b.pftrace"]


def test_a_directory_that_does_not_exist(trace: Trace, tmp_path: Path) -> None:
    pytest.importorskip("perfetto")
    with pytest.raises(InputError, match="does not exist"):
        write_perfetto(trace, tmp_path / "nowhere" / "t.pftrace")
    assert list(tmp_path.iterdir()) == []


def test_writing_needs_no_package(trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "perfetto"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "perfetto", None)
    write_perfetto(trace, tmp_path / "t.pftrace")
    assert b"cudaLaunchKernel" in (tmp_path / "t.pftrace").read_bytes()


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16_383, 16_384, 2**35 + 3, 2**62, -1, -(2**63)])
def test_numbers_are_written_as_protobuf_reads_them(value: int) -> None:
    ((field, wire, found),) = fields(number(30, value))
    assert (field, wire) == (30, 0)
    assert isinstance(found, int)
    assert signed(found) == value


def test_other_endings_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"t\.proto: should end in \.json, .*\.pftrace, \.perfetto-trace"):
        check_outputs({"trace": [str(tmp_path / "t.proto")]})
