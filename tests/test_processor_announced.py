"""Kernels that are announced before they arrive: nobody can tell, but for the time that a run takes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from examples import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from devices.machine import make_device
from devices.processor.gpu import SharedSMs
from devices.processor.leftover import LeftoverSMs
from policies.issue.ready_queue import ReadyQueue
from sim import Device, Graph, GraphBuilder, Job, Machine, Task, Trace, simulate


class Watcher:
    """Watched kernels are begun when they arrive: whoever watches is told of it then."""

    def started(self, task: Task) -> None:
        pass

    def ended(self, task: Task) -> None:
        pass


class Streams:
    """Put each kernel on the stream that its attributes name."""

    def assign(self, job: Job) -> list[int]:
        given_ = job.graph.attributes
        return [given_.get(op, {}).get("stream", 0) for op in range(len(job.graph))]


def run(graph: Graph, *, watched: bool = False, processor: Any = LeftoverSMs, **spec: Any) -> Trace:
    """Run a graph of kernels, and of ops named h... on a host."""
    gpu = make_device("gpu0", {"kind": "gpu", "sharing": "sm", "streams": 4, "sms": 4, **spec})
    machine = Machine((dataclasses.replace(gpu, processor=processor), Device("host", "cpu", workers=8)))
    trace = simulate(
        graph,
        machine,
        ReadyQueue(synchronisation="issue"),
        streams=Streams(),
        observers=[Watcher()] if watched else [],
    )
    trace.check()
    return trace


def rows(trace: Trace) -> list[tuple[int, ...]]:
    """Return what became of each task, in the order of ops."""
    columns = ("op", "ready_ns", "issue_ns", "start_ns", "end_ns", "stream", "wait")
    return sorted(zip(*(trace.tasks[column].tolist() for column in columns), strict=True))


def spans(trace: Trace) -> dict[str, tuple[int, int]]:
    """Return when each op starts and ends, by name."""
    names = trace.job.graph.op_names
    return {names[op]: (start, end) for op, _, _, start, end, _, _ in rows(trace)}


def kernel(b: GraphBuilder, name: str, duration_ns: int, stream: int, sms: int, *after: str) -> None:
    b.op(name, duration_ns=duration_ns, device="gpu0", after=after, attributes={"stream": stream, "sms": sms})


@pytest.mark.parametrize(
    ("comes_ns", "stream", "of_a", "of_b"),
    [
        (18, 2, (16, 26), (26, 36)),  # b comes after a, which takes all SMs
        (12, 2, (16, 32), (12, 22)),  # b comes first: 1 SM is left for a, and the other 3 at 22
        (16, 2, (16, 26), (26, 36)),  # both at once: in the order of streams
        (16, 0, (16, 36), (16, 26)),  # 1 SM is left for a at 16, until 26, when the other 3 loads begin
    ],
)
def test_one_that_comes_before_an_announced_one_gets_its_sms_first(
    comes_ns: int, stream: int, of_a: tuple[int, int], of_b: tuple[int, int]
) -> None:
    # 4 SMs, and 6 ns between two kernels of a stream. On stream 1 runs x until 10; a, which is issued
    # already, follows at 16: at 10 it is announced, with an end at 26. b comes when an op of the host ends.
    b = GraphBuilder("two")
    b.op("h", duration_ns=comes_ns, device="host")
    kernel(b, "x", 10, 1, 4)
    kernel(b, "a", 10, 1, 4)
    kernel(b, "b", 10, stream, 3, "h")
    trace = run(b.build(), gap="6ns")
    found = spans(trace)
    assert found == {"h": (0, comes_ns), "x": (0, 10), "a": of_a, "b": of_b}
    assert rows(trace) == rows(run(b.build(), gap="6ns", watched=True))


def test_who_came_at_this_instant_before_comes_first() -> None:
    # As above; b comes at 16, too, on an earlier stream than a, but because of an op that takes no time and
    # began when a was there already.
    b = GraphBuilder("two rounds")
    b.op("h", duration_ns=16, device="host")
    b.op("z", duration_ns=0, device="host", after=["h"])
    kernel(b, "x", 10, 1, 4)
    kernel(b, "a", 10, 1, 4)
    kernel(b, "b", 10, 0, 3, "z")
    trace = run(b.build(), gap="6ns")
    ends = {name: end for name, (_, end) in spans(trace).items()}
    assert ends == {"h": 16, "z": 16, "x": 10, "a": 26, "b": 36}
    assert rows(trace) == rows(run(b.build(), gap="6ns", watched=True))


def test_of_several_that_come_at_once_an_announced_one_keeps_its_turn() -> None:
    # a on stream 2 is announced for 16, when b on stream 0 and c on stream 1 arrive, with 3 loads each: first
    # b (16-26, 1 SM is left), then c (1 load at 16, 2 at 26), and of a 2 loads at 26 and 2 at 36.
    b = GraphBuilder("three at once")
    kernel(b, "x", 10, 2, 4)
    kernel(b, "a", 10, 2, 4)
    for stream, name in enumerate("bc"):
        b.op(f"h{name}", duration_ns=16, device="host")
        kernel(b, name, 10, stream, 3, f"h{name}")
    trace = run(b.build(), gap="6ns")
    found = spans(trace)
    assert [found[name] for name in "bca"] == [(16, 26), (16, 36), (26, 46)]
    assert rows(trace) == rows(run(b.build(), gap="6ns", watched=True))
    assert rows(trace) == rows(run(b.build(), gap="6ns", processor=SharedSMs))


def test_an_announced_kernel_may_be_put_off_again_and_again() -> None:
    # As above; b, c and d come at 11, 12 and 13, each with 4 loads of 10 ns, and a comes last.
    b = GraphBuilder("many")
    kernel(b, "x", 10, 3, 4)
    kernel(b, "a", 10, 3, 4)
    for i, name in enumerate("bcd"):
        b.op(f"h{name}", duration_ns=11 + i, device="host")
        kernel(b, name, 10, i, 4, f"h{name}")
    trace = run(b.build(), gap="6ns")
    ends = {name: end for name, (_, end) in spans(trace).items()}
    assert [ends[name] for name in "xbcda"] == [10, 21, 31, 41, 51]
    assert rows(trace) == rows(run(b.build(), gap="6ns", watched=True))


def test_what_has_arrived_is_forgotten() -> None:
    """Kernels of 2 ns, 7 ns apart, on 4 streams by turns: one is always announced, and few are kept."""
    b = GraphBuilder("many")
    for i in range(400):
        kernel(b, f"k{i}", 2 if i > 3 else 1 + 2 * i, i % 4, 1)
    kept: list[int] = []

    class Counted(LeftoverSMs):
        def announce(self, task: Task, at_ns: int) -> int:
            end_ns = super().announce(task, at_ns)
            kept.append(sum(map(len, self._announced)))
            return end_ns

    run(b.build(), processor=Counted, gap="7ns")
    assert len(kept) >= 400
    assert 0 < max(kept) <= 9  # twice the streams, and the one just announced


ns = st.sampled_from(["0ns", "0ns", "1ns", "2ns", "5ns"])
ops = st.lists(
    st.tuples(
        st.booleans(),  # a kernel, or an op on the host
        st.integers(0, 12),  # how long
        st.integers(0, 3),  # stream
        st.integers(1, 12),  # blocks
        st.lists(st.integers(1, 4), max_size=2, unique=True),  # how far before are those that it waits for
    ),
    min_size=1,
    max_size=14,
)


@examples(100)
@given(ops=ops, gap=ns, launch=ns, hop=ns, issue=ns, parts=st.sampled_from([None, (1, 3)]))
def test_what_is_announced_is_what_happens(
    ops: list[Any], gap: str, launch: str, hop: str, issue: str, parts: tuple[int, int] | None
) -> None:
    """Announced, begun at the arrival, and followed event by event: the same to the nanosecond."""
    b = GraphBuilder("kernels")
    for i, (launched, duration_ns, stream, grid, back) in enumerate(ops):
        b.op(
            f"k{i}",
            duration_ns=duration_ns,
            device="gpu0" if launched else "host",
            after=[f"k{i - d}" for d in back if d <= i],
            attributes={"stream": stream, "grid": grid},
        )
    spec: dict[str, Any] = {"gap": gap, "launch_latency": launch, "event_hop": hop, "issue_cost": issue}
    if parts:
        spec["partitions"] = {"a": parts[0], "b": parts[1]}
    trace = run(b.build(), **spec)
    # What ends at one instant is seen in the order in which it was foreseen, which announcing may change.
    ends = trace.tasks["end_ns"][trace.tasks["end_ns"] > trace.tasks["start_ns"]].tolist()
    assume(len(set(ends)) == len(ends))
    announced = rows(trace)
    assert announced == rows(run(b.build(), watched=True, **spec))
    assert announced == rows(run(b.build(), processor=SharedSMs, **spec))
