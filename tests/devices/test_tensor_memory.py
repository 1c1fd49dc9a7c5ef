"""Tensors living and dying during a run, worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import checked

from devices.memory.counted import CountedAllocator
from devices.memory.device_memories import events_in_order, make_buffers
from devices.memory.registry import MemorySpec, read_allocator
from devices.memory.run_memory import tensor_memory
from policies.issue.ready_queue import ReadyQueue
from sim import Device, Graph, GraphBuilder, Host, Link, Machine, Trace, simulate
from sim.base.errors import InputError, OutOfMemoryError, StuckError, UnknownNameError
from sim.job.build_job import make_job
from sim.job.transfers import make_flow

pytestmark = pytest.mark.usefixtures("both_engines")


def chain(*nbytes: int, **more: Any) -> Graph:
    """a → b → c ..., each with an output of so many bytes, 10 ns each."""
    builder = GraphBuilder("chain")
    names = [chr(ord("a") + i) for i in range(len(nbytes))]
    for i, (name, size) in enumerate(zip(names, nbytes, strict=True)):
        builder.op(name, inputs=names[i - 1 : i] if i else [], outputs=size, duration_ns=10, **more)
    return builder.build()


def peak(trace: Trace, column: str = "in_use", device: int = 0) -> int:
    assert trace.memory is not None
    return int(trace.memory[column][trace.memory["device"] == device].max(initial=0))


def gpu(nbytes: int | None = None, **numbers: Any) -> Machine:
    return Machine((Device("gpu0", memory_bytes=nbytes, **numbers),))


def test_an_output_lives_until_its_last_reader_has_ended() -> None:
    """a (100) lives 0..20, b (50) 10..30, c (70) 20..30: at 10 there are 150, at 20 b and c, 120."""
    trace = simulate(chain(100, 50, 70), gpu(), ReadyQueue(), memory=tensor_memory())
    assert trace.memory is not None
    rows = list(zip(*(trace.memory[c].tolist() for c in ("time_ns", "change", "in_use")), strict=True))
    assert rows == [(0, 100, 100), (10, 50, 150), (20, -100, 50), (20, 70, 120), (30, -50, 70), (30, -70, 0)]


def test_host_order_runs_ahead_of_the_device() -> None:
    """Issued at once, everything is allocated at time 0: b after a, and a is given back when b is issued.

    Exactly sized blocks: a 100, b 50 (150), a freed when b was issued, so c (70) fits where a was.
    """
    trace = simulate(
        chain(100, 50, 70), gpu(), ReadyQueue(synchronisation="issue"), memory=tensor_memory(lifetime="issue")
    )
    assert trace.memory is not None
    rows = list(zip(*(trace.memory[c].tolist() for c in ("time_ns", "change", "in_use")), strict=True))
    assert rows == [(0, 100, 100), (0, 50, 150), (0, -100, 50), (0, 70, 120), (0, -50, 70), (0, -70, 0)]


class TwoStreams:
    def assign(self, job: Any) -> list[int]:
        return [op % 2 for op in range(len(job.graph))]


def test_a_block_read_on_another_stream_waits_for_its_event() -> None:
    """a on stream 0 is read by b on stream 1; c asks on stream 0 while b has not ended.

    PyTorch's allocator may give c (stream 0) the block of a only after the event of stream 1; until
    then it needs a second block of the segment.
    """
    memory = tensor_memory({"gpu0": MemorySpec("caching")}, lifetime="issue")
    trace = simulate(
        chain(1000, 1000, 1000),
        gpu(streams=2),
        ReadyQueue(synchronisation="issue"),
        streams=TwoStreams(),
        memory=memory,
    )
    # Two segments of 2 MiB: one for each stream.
    assert peak(trace, "reserved") == 2 * (2 << 20)
    assert peak(trace) == 2 * 1024


def test_parameters_stay_and_copies_live_where_they_are_read() -> None:
    """a (8 bytes, gpu0) is sent to gpu1 for b; the copy arrives at 10 + 8 = 18 and dies with b at 28."""
    builder = GraphBuilder("two")
    builder.parameter("w", 1000)
    builder.op("a", inputs=["w"], outputs=8, duration_ns=10, device="gpu0")
    builder.op("b", inputs=["a"], duration_ns=10, device="gpu1")
    from devices.network import make_network

    link = Link("l", "gpu0", "gpu1", bandwidth_bytes_per_s=1_000_000_000)
    machine = Machine((Device("gpu0"), Device("gpu1")), (link,), network=make_network)
    trace = simulate(builder.build(), machine, ReadyQueue(), memory=tensor_memory())
    assert peak(trace, device=0) == 1008
    assert peak(trace, device=1) == 8
    assert trace.memory is not None
    assert trace.memory["in_use"][-1] == 0  # gpu1 is empty at the end
    assert trace.memory["time_ns"].tolist() == [0, 0, 10, 18, 28]


def test_a_copy_is_made_on_the_first_stream_of_its_own_device() -> None:
    """What arrives at gpu1 and what gpu1 computes share one segment of 2 MiB: both are the first stream's."""
    builder = GraphBuilder("two")
    builder.op("a", outputs=1000, duration_ns=10, device="gpu0")
    builder.op("b", inputs=["a"], outputs=1000, duration_ns=10, device="gpu1")
    from devices.network import make_network

    link = Link("l", "gpu0", "gpu1", bandwidth_bytes_per_s=1_000_000_000)
    machine = Machine((Device("gpu0"), Device("gpu1")), (link,), network=make_network)
    specs = {"gpu0": MemorySpec("caching"), "gpu1": MemorySpec("caching")}
    for synchronisation in ("issue", "completion"):
        policy = ReadyQueue(synchronisation=synchronisation)
        trace = simulate(builder.build(), machine, policy, memory=tensor_memory(specs))
        assert peak(trace, "reserved", device=1) == 2 << 20


def test_out_of_memory_tells_the_story() -> None:
    with pytest.raises(OutOfMemoryError, match=r"(?s)gpu0.*'?b'?.*60"):
        simulate(chain(50, 60), gpu(100), ReadyQueue(), memory=tensor_memory())


def test_what_fits_in_no_empty_device_is_refused_before_time_0() -> None:
    with pytest.raises(OutOfMemoryError, match="gpu0"):
        simulate(chain(50, 160), gpu(100), ReadyQueue(), memory=tensor_memory(when_full="wait"))


def test_a_task_may_wait_for_memory() -> None:
    """Three ops of 60 bytes on two streams, 100 bytes: one at a time, although two streams are free."""
    builder = GraphBuilder("wide")
    for name in "xyz":
        builder.op(name, outputs=60, duration_ns=10)
    trace = simulate(
        builder.build(),
        gpu(100, streams=2),
        ReadyQueue(),
        streams=TwoStreams(),
        memory=tensor_memory(when_full="wait"),
    )
    assert trace.makespan_ns == 30
    assert peak(trace) == 60


@pytest.mark.parametrize(("allocator", "issue_ns"), [("pool", 10), ("counted", 20)])
def test_memory_freed_at_issue_wakes_who_waits_for_it(allocator: str, issue_ns: int) -> None:
    """Two threads: b waits from 0 on, as a has 60 of 100 bytes; r, the only reader of a, is issued at 10.

    The free of `counted` waits for an idle device, and r runs until 20.
    """
    builder = GraphBuilder("freed at issue")
    builder.op("a", outputs=60, duration_ns=10)
    builder.op("b", outputs=60, duration_ns=10)
    builder.op("r", inputs=["a"], duration_ns=10)
    machine = Machine(
        (Device("gpu0", memory_bytes=100, streams=2),), hosts=(Host("host", ("gpu0",), threads=2),)
    )
    memory = tensor_memory({"gpu0": MemorySpec(allocator)}, lifetime="issue", when_full="wait")
    trace = checked(builder.build(), machine, ReadyQueue(), streams=TwoStreams(), memory=memory)
    issued = dict(zip(trace.tasks["op"].tolist(), trace.tasks["issue_ns"].tolist(), strict=True))
    assert issued == {0: 0, 1: issue_ns, 2: 10}


def test_waiting_for_memory_that_never_comes_is_a_deadlock() -> None:
    """a and b hold 80 of 100 bytes until c has read both, and c needs 40 more."""
    builder = GraphBuilder("deadlock")
    builder.op("a", outputs=40, duration_ns=10)
    builder.op("b", outputs=40, duration_ns=10)
    builder.op("c", inputs=["a", "b"], outputs=40, duration_ns=10)
    with pytest.raises(StuckError, match="c"):
        simulate(builder.build(), gpu(100), ReadyQueue(), memory=tensor_memory(when_full="wait"))


def test_a_task_that_waited_for_memory_pays_for_its_calls_like_any_other() -> None:
    """60 of 100 MiB are a's until r, its reader, has ended; b, on the other thread, waits from 0 to then.

    thread 0   malloc 5, a 5..15, r 15..25, on another stream: a's memory waits for its end
    thread 1   b wants 60 MiB ........... 25 malloc 30, b 30..40
    """
    builder = GraphBuilder("waits, then calls")
    builder.op("a", outputs=60 << 20, duration_ns=10)
    builder.op("b", outputs=60 << 20, duration_ns=10)
    builder.op("r", inputs=["a"], duration_ns=10)

    class PerOp:
        def assign(self, job: Any) -> list[int]:
            return [0, 1, 2]

    device = Device("gpu0", memory_bytes=100 << 20, streams=3)
    machine = Machine((device,), hosts=(Host("host", ("gpu0",), threads=2),))
    specs = {"gpu0": MemorySpec("caching", malloc_ns=5)}
    memory = tensor_memory(specs, lifetime="issue", when_full="wait")
    trace = simulate(builder.build(), machine, ReadyQueue(), streams=PerOp(), memory=memory)
    columns = (trace.tasks[c].tolist() for c in ("op", "start_ns", "end_ns", "calls_ns"))
    assert sorted(zip(*columns, strict=True)) == [(0, 5, 15, 5), (1, 30, 40, 5), (2, 15, 25, 0)]
    trace.check()


def test_device_mallocs_cost_the_issuer() -> None:
    """Caching, device malloc 5: a needs a segment, b finds room in it, c (3 MB) needs one of its own."""
    memory = tensor_memory({"gpu0": MemorySpec("caching", malloc_ns=5)}, lifetime="issue")
    trace = simulate(chain(8, 8, 3_000_000), gpu(), ReadyQueue(synchronisation="issue"), memory=memory)
    assert trace.tasks["issue_ns"].tolist() == [5, 5, 10]


def test_a_device_free_waits_for_the_device() -> None:
    """cudaFree synchronises. The host launches b, then frees a: c is issued when b has ended (20)."""
    memory = tensor_memory({"gpu0": MemorySpec("counted")}, lifetime="issue")
    trace = simulate(chain(8, 8, 8), gpu(), ReadyQueue(synchronisation="issue"), memory=memory)
    assert trace.tasks["issue_ns"].tolist() == [0, 0, 20]


def test_frees_are_paid_for_after_the_launch_that_they_follow() -> None:
    """malloc 5, free 3, launch 1, kernels of 10.

    a: malloc to 5, launched at 6, runs to 16.   b: malloc to 11, launched at 12, runs to 26.
    Then a is freed: the host waits to 26, frees to 29; c: malloc to 34, launched at 35, runs to 45.
    """
    memory = tensor_memory({"gpu0": MemorySpec("counted", malloc_ns=5, free_ns=3)}, lifetime="issue")
    policy = ReadyQueue(synchronisation="issue")
    trace = simulate(chain(8, 8, 8), gpu(issue_ns=1), policy, memory=memory)
    assert trace.tasks["issue_ns"].tolist() == [6, 12, 35]
    assert trace.makespan_ns == 45


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_who_executes_pays_where_memory_is_taken_at_the_start(kind: str) -> None:
    """malloc 5, free 3, ops of 10 ns, each reading the one before.

    a: malloc to 5, runs to 15.   b: malloc to 20, runs to 30, after which a is freed.
    c: that free and its malloc to 38, runs to 48.
    """
    device = Device("gpu0", kind, workers=1 if kind == "cpu" else 0)
    memory = tensor_memory({"gpu0": MemorySpec("counted", malloc_ns=5, free_ns=3)})
    trace = checked(chain(8, 8, 8), Machine((device,)), ReadyQueue(), memory=memory)
    assert trace.tasks["start_ns"].tolist() == [5, 20, 38]
    assert trace.makespan_ns == 48


def test_planned_memory_needs_what_the_program_order_needs() -> None:
    graph = chain(100, 50, 70)
    job = make_job(graph, gpu())
    flow = make_flow(job)
    assert [(e.op, e.id) for e in events_in_order(make_buffers(job, flow), job, flow, 0)] == [
        ("alloc", "a"), ("alloc", "b"), ("free", "a"), ("alloc", "c"), ("free", "b"), ("free", "c")
    ]  # fmt: skip
    trace = simulate(graph, gpu(), ReadyQueue(), memory=tensor_memory({"gpu0": MemorySpec("planned")}))
    assert peak(trace, "reserved") <= 220


@pytest.mark.parametrize("allocator", ["pool", "bfc", "caching", "counted", "planned"])
@pytest.mark.parametrize("lifetime", ["issue", "execution"])
def test_what_64_bits_cannot_count_is_refused(allocator: str, lifetime: str) -> None:
    policy = ReadyQueue(synchronisation="issue")
    memory = tensor_memory({"gpu0": MemorySpec(allocator)}, lifetime=lifetime)
    simulate(chain(1 << 59, 1 << 59), gpu(), policy, memory=memory).check()
    with pytest.raises(InputError, match=r"have 9\.223 EB together; allocators can follow at most 1 EiB"):
        simulate(chain(1 << 62, 1 << 62), gpu(), policy, memory=memory)


def test_wrong_words_are_refused() -> None:
    with pytest.raises(InputError, match="lifetime must be one of execution, issue; found 'host'"):
        tensor_memory(lifetime="host")
    with pytest.raises(UnknownNameError, match="unknown device 'gpu1'"):
        simulate(chain(1), gpu(), ReadyQueue(), memory=tensor_memory({"gpu1": MemorySpec()}))


@given(
    sizes=st.lists(st.integers(0, 5000), min_size=1, max_size=25),
    picks=st.randoms(use_true_random=False),
    allocator=st.sampled_from(["pool", "bfc", "caching", "counted"]),
    lifetime=st.sampled_from(["execution", "issue"]),
    synchronisation=st.sampled_from(["completion", "issue"]),
    iterations=st.integers(1, 3),
)
def test_memory_is_all_given_back(
    sizes: list[int], picks: Any, allocator: str, lifetime: str, synchronisation: str, iterations: int
) -> None:
    builder = GraphBuilder("random")
    for i, size in enumerate(sizes):
        inputs = [f"op{picks.randrange(i)}" for _ in range(picks.randrange(3))] if i else []
        late = [(f"op{picks.randrange(len(sizes))}", picks.randrange(1, 3))] if picks.random() < 0.3 else []
        builder.op(f"op{i}", inputs=[*inputs, *late], outputs=size, duration_ns=picks.randrange(20))
    trace = simulate(
        builder.build(),
        gpu(streams=2, issue_ns=1),
        ReadyQueue(synchronisation=synchronisation),
        streams=TwoStreams(),
        iterations=iterations,
        memory=tensor_memory({"gpu0": MemorySpec(allocator)}, lifetime=lifetime),
    )
    assert trace.memory is not None
    assert trace.memory["in_use"][-1:].sum() == 0
    assert trace.memory["change"].sum() == 0
    assert bool(np.all(trace.memory["reserved"] >= trace.memory["in_use"]))
    bare = simulate(
        builder.build(),
        gpu(streams=2, issue_ns=1),
        ReadyQueue(synchronisation=synchronisation),
        streams=TwoStreams(),
        iterations=iterations,
    )
    if allocator != "counted":  # its frees wait for the device
        assert bare.makespan_ns == trace.makespan_ns  # unlimited memory without costs changes nothing


def test_a_worker_gives_back_what_it_read_when_it_has_read_it() -> None:
    """Under the issue lifetime too: a CPU executes what it takes, and no stream protects what it reads."""
    machine = Machine((Device("cpu0", "cpu", workers=1),))
    trace = simulate(chain(100, 50), machine, ReadyQueue(), memory=tensor_memory(lifetime="issue"))
    assert trace.memory is not None
    assert trace.memory["time_ns"].tolist() == [0, 10, 20, 20]
    assert trace.memory["change"].tolist() == [100, 50, -100, -50]


def test_parameters_lie_beside_a_static_plan_and_count() -> None:
    """w takes 900 of 1,000 bytes, a 60 and b 50 live at once: with 90 more for both there is no plan."""
    builder = GraphBuilder("weights")
    builder.parameter("w", 900)
    builder.op("a", inputs=["w"], outputs=60, duration_ns=10)
    builder.op("b", inputs=["a"], outputs=50, duration_ns=10)
    planned = tensor_memory({"gpu0": MemorySpec("planned")})
    trace = simulate(builder.build(), gpu(1010), ReadyQueue(), memory=planned)
    assert peak(trace) == peak(trace, "reserved") == 1010
    with pytest.raises(OutOfMemoryError, match="takes 110 B of 100 B left, before time 0"):
        simulate(builder.build(), gpu(1000), ReadyQueue(), memory=planned)


def test_an_allocator_alone_is_a_description_of_one() -> None:
    def pages(capacity: Any = None, *, name: str, page: int = 64) -> CountedAllocator:
        return CountedAllocator(capacity, alignment=page, name=name)

    for own, most in ((pages, 192), ("counted", 150), (MemorySpec(pages, options={"page": 100}), 200)):
        trace = simulate(chain(100, 50, 70), gpu(), ReadyQueue(), memory=tensor_memory({"gpu0": own}))
        assert peak(trace) == most
    wrong = tensor_memory({"gpu0": MemorySpec(pages, options={"pag": 3})})
    with pytest.raises(InputError, match="the pages allocator has no option 'pag'; did you mean 'page'"):
        simulate(chain(100), gpu(), ReadyQueue(), memory=wrong)


def test_allocators_are_described_in_words() -> None:
    spec = read_allocator({"name": "counted", "alignment": "2MiB", "free": "10us", "asynchronous": True})
    assert spec == MemorySpec("counted", 0, 10_000, 0, {"alignment": 2 << 20, "asynchronous": True})
    assert read_allocator("bfc") == MemorySpec("bfc")
    with pytest.raises(
        InputError, match=r"the bfc allocator has no option 'allow_grow'; did you mean 'allow_growth'"
    ):
        read_allocator({"name": "bfc", "allow_grow": True})
    with pytest.raises(InputError, match=r"malloc: 5 has no unit"):
        read_allocator({"name": "bfc", "malloc": 5})
    with pytest.raises(InputError, match="3 is no allocator"):
        read_allocator(3)
    with pytest.raises(InputError, match="allow_growth: should be true or false, not 3"):
        read_allocator({"name": "bfc", "allow_growth": 3})


def test_buffers_have_the_names_of_their_tensors_and_copies() -> None:
    builder = GraphBuilder("named")
    builder.parameter("w", 10)
    builder.op("a", inputs=["w"], outputs=[8, 9], duration_ns=10, device="gpu0")
    builder.op("b", inputs=["a", "a:1"], outputs=5, duration_ns=10, device="gpu1")
    from devices.memory.device_memories import make_buffers
    from devices.network import make_network

    link = Link("l", "gpu0", "gpu1", bandwidth_bytes_per_s=1_000_000_000)
    machine = Machine((Device("gpu0"), Device("gpu1")), (link,), network=make_network)
    job = make_job(builder.build(), machine)
    flow = make_flow(job)
    buffers = make_buffers(job, flow)
    assert buffers.names(job, flow) == ["w", "a", "a:1", "b", "a on gpu1", "a:1 on gpu1"]


def test_a_task_that_cannot_have_all_its_outputs_has_none_of_them() -> None:
    """c needs 30 and 30 of the 100 bytes of which b holds 50 until 20: it starts when b has ended."""
    builder = GraphBuilder("two outputs")
    builder.op("b", outputs=50, duration_ns=20)
    builder.op("c", outputs=[30, 30], duration_ns=10)
    memory = tensor_memory(when_full="wait")
    trace = checked(builder.build(), gpu(100, streams=2), ReadyQueue(), streams=TwoStreams(), memory=memory)
    assert trace.tasks["start_ns"].tolist() == [0, 20]
    assert peak(trace) == 60
    assert trace.memory is not None
    assert trace.memory["change"].tolist() == [50, -50, 30, 30, -30, -30]


def test_a_reader_issued_before_its_copy_has_arrived_holds_it_until_it_has_read() -> None:
    """a (8 B) ends at 10, is sent until 18; b, issued at 0 when its copy was nowhere, ends at 28."""
    from devices.network import make_network

    builder = GraphBuilder("ahead")
    builder.op("a", outputs=8, duration_ns=10, device="gpu0")
    builder.op("b", inputs=["a"], duration_ns=10, device="gpu1")
    link = Link("l", "gpu0", "gpu1", bandwidth_bytes_per_s=1_000_000_000)
    trace = simulate(
        builder.build(),
        Machine((Device("gpu0"), Device("gpu1")), (link,), network=make_network),
        ReadyQueue(synchronisation="issue"),
        memory=tensor_memory(lifetime="issue"),
    )
    assert trace.memory is not None
    rows = zip(*(trace.memory[c].tolist() for c in ("time_ns", "device", "change")), strict=True)
    assert list(rows) == [(0, 0, 8), (10, 1, 8), (18, 0, -8), (28, 1, -8)]


def test_names_of_all_tensors_are_those_of_each() -> None:
    builder = GraphBuilder("names")
    builder.input("x", 8)
    builder.op("a", inputs=["x"], outputs=[1, 2])
    builder.op("b", inputs=["a:1"])
    graph = builder.build()
    assert graph.tensor_names() == [graph.tensor_name(tensor) for tensor in range(graph.n_tensors)]
    assert graph.tensor_names() == ["x", "a", "a:1", "b"]
