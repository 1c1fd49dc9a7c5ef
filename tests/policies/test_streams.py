"""Stream assignments: known graphs, and what holds for every graph."""

from __future__ import annotations

import itertools

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from policy_helpers import dags, gpu, graph_of, job_of

from policies.streams import PerBranch, PerKind, RoundRobinStreams, SingleStream
from sim import Device, Graph, GraphBuilder, Job, Machine, simulate
from sim.base.errors import InputError
from sim.job.job import Placement, StreamAssignment

TWO_GPUS_AND_A_CPU = Machine(
    (Device("gpu0", streams=2), Device("gpu1", streams=3), Device("cpu0", workers=2))
)
FORK = {"a": [], "b": ["a"], "c": ["b"], "x": ["a"], "y": ["x"], "z": ["c", "y"]}
ALL = [SingleStream(), RoundRobinStreams(), PerBranch(), PerBranch("next"), PerKind(), PerKind({"copy": 1})]


class Spread(Placement):
    """Puts op k on device k modulo their number."""

    def place(self, graph: Graph, machine: Machine, cost_ns: object) -> list[int]:
        return [op % len(machine.devices) for op in range(len(graph))]


def assigned(streams: StreamAssignment, graph: Graph, n: int = 4) -> dict[str, int]:
    """Return the stream of each op on one GPU."""
    return dict(zip(graph.op_names, streams.assign(job_of(graph, gpu(n))), strict=True))


@pytest.mark.parametrize("streams", ALL, ids=lambda s: f"{type(s).__name__}-{vars(s)}")
@examples(25)
@given(graph=dags(max_ops=12, distances=True))
def test_streams_exist_on_every_device(streams: StreamAssignment, graph: Graph) -> None:
    job = job_of(graph, TWO_GPUS_AND_A_CPU, placement=Spread(), streams=streams)
    lanes = [job.machine.stream_name(stream).split("/")[0] for stream in job.stream_of]
    assert lanes == [job.machine.devices[d].name for d in job.device_of]


def test_single() -> None:
    graph = graph_of(FORK)
    assert set(assigned(SingleStream(), graph).values()) == {0}
    assert set(assigned(SingleStream(2), graph).values()) == {2}
    with pytest.raises(InputError, match=r"gpu0 has 2 stream\(s\), counted from 0; found stream 2"):
        assigned(SingleStream(2), graph, n=2)


def test_round_robin_counts_on_each_device() -> None:
    graph = graph_of({name: [] for name in "abcdefg"})
    assert list(assigned(RoundRobinStreams(), graph, n=3).values()) == [0, 1, 2, 0, 1, 2, 0]
    spread = job_of(graph, TWO_GPUS_AND_A_CPU, placement=Spread(), streams=RoundRobinStreams())
    assert RoundRobinStreams().assign(spread) == [0, 0, 0, 1, 1, 1, 0]


def test_a_fork_and_its_join() -> None:
    assert assigned(PerBranch(), graph_of(FORK)) == {"a": 0, "b": 0, "c": 0, "x": 1, "y": 1, "z": 0}


def test_independent_ops_are_on_different_streams() -> None:
    graph = graph_of({name: [] for name in "abcd"})
    assert list(assigned(PerBranch(), graph).values()) == [0, 1, 2, 3]
    assert list(assigned(PerBranch("next"), graph).values()) == [0, 1, 2, 3]
    idle = graph_of({name: [] for name in "abcd"}, 0)  # no work is no reason to queue up
    assert list(assigned(PerBranch(), idle).values()) == [0, 1, 2, 3]


def test_more_branches_than_streams() -> None:
    graph = graph_of({name: [] for name in "abcd"}, {"a": 50, "b": 10, "c": 10, "d": 10})
    assert list(assigned(PerBranch(), graph, n=2).values()) == [0, 1, 1, 1]
    assert list(assigned(PerBranch("next"), graph, n=2).values()) == [0, 1, 0, 1]


def test_branches_side_by_side_cost_what_the_longest_does() -> None:
    graph = graph_of({"a": [], **{f"b{k}": ["a"] for k in range(4)}, "z": [f"b{k}" for k in range(4)]})
    from policies.issue.program_order import InOrder

    def makespan(streams: StreamAssignment) -> int:
        return simulate(graph, gpu(4), InOrder(synchronisation="issue"), streams=streams).makespan_ns

    assert makespan(SingleStream()) == 60
    assert makespan(PerBranch()) == 30


@given(dags(max_ops=14), st.integers(1, 4), st.sampled_from(("least-loaded", "next")))
def test_a_chain_stays_on_one_stream(graph: Graph, n: int, spread: str) -> None:
    """Where an op is the only consumer of its only producer, both are on one stream."""
    job = job_of(graph, gpu(n))
    stream = PerBranch(spread).assign(job)
    dag = graph.dag()
    for op, producers in enumerate(dag.predecessors):
        if len(set(producers)) == 1 and set(dag.successors[producers[0]]) == {op}:
            assert stream[op] == stream[producers[0]]


@given(dags(max_ops=14))
def test_with_streams_enough_each_is_a_chain(graph: Graph) -> None:
    """Each op on a stream reads from the one before it, so a stream orders nothing that is independent."""
    stream = PerBranch().assign(job_of(graph, gpu(20)))
    dag = graph.dag()
    for s in set(stream):
        ops = [op for op in graph.topological_order.tolist() if stream[op] == s]
        for before, op in itertools.pairwise(ops):
            assert before in dag.predecessors[op]


@given(dags(max_ops=14))
def test_branches_are_per_device(graph: Graph) -> None:
    """What a device gets depends on its own ops: producers elsewhere do not choose a stream there."""

    def job(placement: Spread) -> Job:
        return job_of(
            graph, Machine((Device("gpu0", streams=4), Device("gpu1", streams=2))), placement=placement
        )

    stream = PerBranch().assign(job(Spread()))
    assert all(s < (4, 2)[op % 2] for op, s in enumerate(stream))


def test_kinds() -> None:
    b = GraphBuilder("kinds")
    for name, kind in (("a", "matmul"), ("b", "copy"), ("c", "all_reduce"), ("d", "matmul")):
        b.op(name, kind=kind, inputs=[name2 for name2 in "abc" if name2 < name][-1:], duration_ns=0)
    graph = b.build()
    assert assigned(PerKind(), graph) == {"a": 0, "b": 1, "c": 2, "d": 0}
    assert assigned(PerKind(), graph, n=2) == {"a": 0, "b": 1, "c": 0, "d": 0}
    assert assigned(PerKind({"copy": 1, "all_reduce": 3}), graph) == {"a": 0, "b": 1, "c": 3, "d": 0}
    with pytest.raises(InputError, match="'all_reduce' is to be on stream 3, but gpu0 has 2"):
        assigned(PerKind({"copy": 1, "all_reduce": 3}), graph, n=2)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(InputError, match="spread must be one of least-loaded, next; found 'most'"):
        PerBranch("most")
    with pytest.raises(InputError, match="single: stream must be a whole number of at least 0; found -1"):
        SingleStream(-1)
    with pytest.raises(InputError, match=r"streams\[copy\] must be a whole number of at least 0; found '1'"):
        PerKind({"copy": "1"})  # type: ignore[dict-item]
