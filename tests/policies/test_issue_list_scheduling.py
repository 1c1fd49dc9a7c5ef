"""List scheduling: by bottom level, and the bound that holds for every list schedule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_helpers import cpu, dags, graph_of, spans

from policies.issue.program_order import OutOfOrder
from policies.issue.ready_queue import CriticalPath, ReadyQueue
from sim import Device, Graph, GraphBuilder, Machine, simulate
from sim.base.errors import InputError
from sim.graph.graph import longest_path_ns

pytestmark = pytest.mark.usefixtures("both_engines")

LISTS = [ReadyQueue(), ReadyQueue("lifo"), ReadyQueue(ties="name"), OutOfOrder(), CriticalPath()]


def test_the_longest_way_goes_first() -> None:
    # Program order takes a and b, and the chain c → d → e begins late; by level it begins at once.
    graph = graph_of({"a": [], "b": [], "c": [], "d": ["c"], "e": ["d"]})
    assert simulate(graph, cpu(2), OutOfOrder()).makespan_ns == 40
    trace = simulate(graph, cpu(2), CriticalPath())
    assert spans(trace) == {"c": (0, 10), "a": (0, 10), "d": (10, 20), "b": (10, 20), "e": (20, 30)}


def test_ties_go_by_index() -> None:
    trace = simulate(graph_of({name: [] for name in "abcd"}), cpu(1), CriticalPath())
    assert list(spans(trace)) == ["a", "b", "c", "d"]


def test_ties_of_a_queue_go_by_name_if_asked() -> None:
    """Ready time, then name: TensorFlow's virtual scheduler. z is ready first, then the others together."""
    graph = graph_of({"root": [], "z": [], "c": ["root"], "a": ["root"], "b": ["root"]})
    assert list(spans(simulate(graph, cpu(1), ReadyQueue()))) == ["root", "z", "c", "a", "b"]
    assert list(spans(simulate(graph, cpu(1), ReadyQueue(ties="name")))) == ["root", "z", "a", "b", "c"]


def test_names_order_what_several_ops_made_ready_at_one_time() -> None:
    graph = graph_of({"p": [], "q": [], "b": ["p"], "a": ["q"]})
    machine = cpu(2)
    by_edges, by_name = (simulate(graph, machine, ReadyQueue(ties=ties)) for ties in ("edges", "name"))
    assert list(spans(by_edges)) == ["p", "q", "b", "a"]
    assert list(spans(by_name)) == ["p", "q", "a", "b"]


def test_ties_by_name_are_those_of_a_fifo() -> None:
    with pytest.raises(InputError, match="ties are by name in a fifo only"):
        ReadyQueue("lifo", ties="name")
    with pytest.raises(
        InputError, match="ties must be one of edges, name; found 'names', did you mean 'name'"
    ):
        ReadyQueue(ties="names")


def test_an_earlier_iteration_goes_first() -> None:
    # By level alone, a of iterations 1 and 2 (level 20) would come before b of iteration 0 (level 10).
    graph = graph_of({"a": [], "b": ["a"]})
    t = simulate(graph, cpu(1), CriticalPath(), iterations=3).tasks
    order = list(zip(t["iteration"].tolist(), t["op"].tolist(), strict=True))
    assert order[0] == (0, 0)
    assert order == sorted(order)


def test_an_earlier_iteration_goes_first_also_when_its_inputs_come_later() -> None:
    """b is higher than z; z of iteration 0 gets its input from the GPU at 50, b of iteration 1 from a at 60.

    cpu0   a[0] 20 b[0] 40 a[1] 60 z[0] 65 b[1] 85 ... z[1], at 100
    gpu0   w[0]             50 w[1]               100
    """
    b = GraphBuilder("two iterations")
    b.op("a", duration_ns=20, device="cpu0")
    b.op("b", inputs=["a"], duration_ns=20, device="cpu0")
    b.op("w", duration_ns=50, device="gpu0")
    b.op("z", inputs=["w"], duration_ns=5, device="cpu0")
    machine = Machine((Device("cpu0", "cpu", workers=1), Device("gpu0")))
    t = simulate(b.build(), machine, CriticalPath(), iterations=2).tasks
    began = dict(
        zip(zip(t["op"].tolist(), t["iteration"].tolist(), strict=True), t["start_ns"].tolist(), strict=True)
    )
    assert began == {
        (0, 0): 0, (1, 0): 20, (0, 1): 40, (3, 0): 60, (1, 1): 65, (3, 1): 100, (2, 0): 0, (2, 1): 50
    }  # fmt: skip


def test_it_knows_what_the_scenario_lets_it_know() -> None:
    # The longer chain has fewer ops: without durations, the level is the number of ops to the end.
    graph = graph_of({"a": [], "b": [], "c": ["b"]}, {"a": 90, "b": 10, "c": 10})
    assert list(spans(simulate(graph, cpu(1), CriticalPath()))) == ["a", "b", "c"]
    assert list(spans(simulate(graph, cpu(1), CriticalPath(), knowledge="none"))) == ["b", "a", "c"]


@given(graph=dags(max_ops=16), workers=st.integers(1, 5))
def test_no_list_schedule_is_worse_than_graham_s_bound(graph: Graph, workers: int) -> None:
    """Length ≤ work / m + (1 - 1/m) · critical path, hence ≤ (2 - 1/m) · optimum (Graham 1969)."""
    work = int(graph.duration_ns.sum())
    path = int(longest_path_ns(graph, graph.duration_ns).max())
    for policy in LISTS:
        length = simulate(graph, cpu(workers), policy).makespan_ns
        assert workers * length <= work + (workers - 1) * path
        assert length >= max(path, -(-work // workers))


def test_the_bound_is_reached() -> None:
    """Graham's example: m(m - 1) ops of 1 first, one of m last: 2m - 1 against an optimum of m."""
    m = 4
    b = GraphBuilder("tight")
    for k in range(m * (m - 1)):
        b.op(f"short{k}", duration_ns=1)
    b.op("long", duration_ns=m)
    assert simulate(b.build(), cpu(m), ReadyQueue()).makespan_ns == 2 * m - 1
    assert simulate(b.build(), cpu(m), CriticalPath()).makespan_ns == m


def test_an_unknown_synchronisation_is_refused() -> None:
    with pytest.raises(InputError, match="critical-path: synchronisation must be one of"):
        CriticalPath("complete")
