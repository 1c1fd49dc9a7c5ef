"""Static plans of devices that receive and send copies."""

from __future__ import annotations

from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from runs import checked

from devices.memory.device_memories import events_in_order, make_buffers
from devices.memory.registry import MemorySpec
from devices.memory.run_memory import tensor_memory
from devices.network import make_network
from policies.issue.program_order import InOrder
from sim import Device, Graph, GraphBuilder, Link, Machine
from sim.job.build_job import make_job
from sim.job.job import Decided
from sim.job.transfers import make_flow


def two_gpus(bandwidth_bytes_per_s: int | None = None, streams: int = 1) -> Machine:
    links = tuple(
        Link(f"{a}->{b}", a, b, bandwidth_bytes_per_s=bandwidth_bytes_per_s)
        for a, b in (("gpu0", "gpu1"), ("gpu1", "gpu0"))
    )
    gpus = Device("gpu0", streams=streams), Device("gpu1", streams=streams)
    return Machine(gpus, links, network=make_network)


def story(graph: Graph, device: int) -> list[str]:
    job = make_job(graph, two_gpus())
    flow = make_flow(job)
    events = events_in_order(make_buffers(job, flow), job, flow, device)
    return [f"{'+' if event.op == 'alloc' else '-'}{event.id}" for event in events]


def test_a_copy_lives_from_where_it_may_arrive_and_a_sent_tensor_to_where_it_must_have_left() -> None:
    """gpu0: a b c d, gpu1: x.  x is made from a and read by d; b and c know of neither.

    On gpu0 the copy of x may arrive once a has ended, and a's own bytes may be on their way until d begins,
    which needs x: both live beside b and c. On gpu1 a's copy is there from the beginning and dies with x; x
    itself is on its way for ever, as far as gpu1 knows.
    """
    builder = GraphBuilder("there and back")
    builder.op("a", outputs=1, duration_ns=1, device="gpu0")
    builder.op("b", outputs=1, inputs=["a"], duration_ns=1, device="gpu0")
    builder.op("c", outputs=1, inputs=["b"], duration_ns=1, device="gpu0")
    builder.op("x", outputs=1, inputs=["a"], duration_ns=1, device="gpu1")
    builder.op("d", outputs=1, inputs=["c", "x"], duration_ns=1, device="gpu0")
    graph = builder.build()
    assert " ".join(story(graph, 0)) == "+a +x on gpu0 +b +c -b -a +d -c -x on gpu0 -d"
    assert " ".join(story(graph, 1)) == "+a on gpu1 +x -a on gpu1"


def test_a_copy_of_what_is_there_from_the_beginning_may_come_at_once() -> None:
    builder = GraphBuilder("input")
    builder.op("a", outputs=1, duration_ns=1, device="gpu1")
    builder.op("first", outputs=1, duration_ns=1, device="gpu0")
    builder.op("b", inputs=["a", "first"], duration_ns=1, device="gpu0")
    assert " ".join(story(builder.build(), 0)) == "+a on gpu0 +first -a on gpu0 -first"


programs = st.lists(
    st.tuples(
        st.integers(0, 1),  # device
        st.integers(1, 9),  # duration
        st.integers(0, 50),  # bytes
        st.lists(st.integers(1, 4), max_size=3),  # how far back its inputs are
        st.integers(0, 2),  # how many iterations ago it is whose output it reads, too; 0: it does not
    ),
    min_size=1,
    max_size=25,
)


@examples(150)
@given(
    programs,
    st.sampled_from([None, 10**9, 10**10]),
    st.sampled_from(["greedy", "relay", "relax"]),
    st.sampled_from([("completion", "execution"), ("completion", "issue"), ("issue", "execution")]),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_no_run_in_program_order_finds_a_place_taken(
    rows: list[tuple[int, int, int, list[int], int]],
    bandwidth: int | None,
    planner: str,
    when: tuple[str, str],
    iterations: int,
    streams: int,
) -> None:
    """However long ops and transfers take, what lies where something is to lie has gone by then, or goes."""
    builder = GraphBuilder("random")
    for i, (device, duration_ns, nbytes, back, ago) in enumerate(rows):
        inputs = [f"op{i - k}" for k in sorted(set(back)) if k <= i] + [(f"op{i}", ago)] * (ago > 0)
        builder.op(f"op{i}", inputs=inputs, outputs=nbytes, duration_ns=duration_ns, device=f"gpu{device}")
    memory = tensor_memory(
        {name: MemorySpec("planned", options={"planner": planner}) for name in ("gpu0", "gpu1")},
        lifetime=when[1],
    )
    policy = InOrder(synchronisation=when[0])
    in_turn = Decided([i % streams for i in range(len(rows))])
    machine = two_gpus(bandwidth, streams)
    checked(builder.build(), machine, policy, memory=memory, iterations=iterations, streams=in_turn)
