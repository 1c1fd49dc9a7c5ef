"""Linearizers: known orders, and that every one gives a topological permutation."""

from __future__ import annotations

import pytest
from examples import examples
from hypothesis import given
from policy_helpers import FIVE, dags, graph_of, job_of, names

from policies.issue.program_order import InOrder
from policies.linearize import (
    CriticalPathFirst,
    DepthFirst,
    MemoryAware,
    Priority,
    ReverseDepthFirst,
    Topological,
    UserOrder,
)
from sim import Device, Graph, GraphBuilder, Machine, simulate
from sim.base.errors import InputError, StuckError, UnknownNameError
from sim.job.job import Job, Linearizer

ALL = [
    Topological(),
    Topological("fifo"),
    DepthFirst(),
    ReverseDepthFirst(),
    CriticalPathFirst(),
    Priority(),
    MemoryAware(),
]
by_name = pytest.mark.parametrize(
    "linearizer", ALL, ids=lambda x: f"{type(x).__name__}-{getattr(x, 'ties', '')}"
)

#   a ─► b ─► c ─┐        x, y and z join a second way round
#   └──► x ─► y ─┴► z
FORK = {"a": [], "b": ["a"], "c": ["b"], "x": ["a"], "y": ["x"], "z": ["c", "y"]}


def linear(linearizer: Linearizer, graph: Graph, **decisions: object) -> str:
    """Return the order as a word."""
    return names(graph, linearizer.order(job_of(graph, **decisions)))


@by_name
@examples(25)
@given(graph=dags(max_ops=14, distances=True))
def test_every_order_is_a_topological_permutation(linearizer: Linearizer, graph: Graph) -> None:
    order = list(linearizer.order(job_of(graph)))
    assert sorted(order) == list(range(len(graph)))
    position = {op: k for k, op in enumerate(order)}
    edges = graph.edges
    for producer, consumer, distance in zip(edges.producer, edges.consumer, edges.distance, strict=True):
        assert distance > 0 or position[producer] < position[consumer]


@by_name
def test_a_recv_comes_after_the_send_of_its_key(linearizer: Linearizer) -> None:
    """Of three that are there first, no edge leads to `x` and `y`: they ask for what `a` and `b` send."""
    b = GraphBuilder("by key")
    for recv, user in (("x", "u"), ("y", "v")):
        b.op(recv, kind="recv", attributes={"key": recv}), b.op(user, inputs=[recv], duration_ns=9)
    for op, send, key in (("a", "s", "y"), ("b", "t", "x")):
        b.op(op, duration_ns=1), b.op(send, kind="send", inputs=[op], attributes={"key": key})
    graph = b.build()
    word = linear(linearizer, graph)
    assert sorted(word) == sorted("xuyvasbt")
    assert word.index("s") < word.index("y")
    assert word.index("t") < word.index("x")
    machine = Machine((Device("cpu0", "cpu", workers=1),))
    assert simulate(graph, machine, InOrder(), linearize=linearizer).makespan_ns == 20


def test_an_order_that_asks_before_it_sends_is_told() -> None:
    b = GraphBuilder("by key")
    b.op("ask", kind="recv", attributes={"key": "k"}), b.op("send", kind="send", attributes={"key": "k"})
    machine = Machine((Device("cpu0", "cpu", workers=1),))
    with pytest.raises(StuckError, match=r"UserOrder\.order puts ask before send, for which it waits"):
        simulate(b.build(), machine, InOrder(), linearize=UserOrder(["ask", "send"]))


@by_name
def test_a_chain_has_one_order(linearizer: Linearizer) -> None:
    assert linear(linearizer, graph_of({"a": [], "b": ["a"], "c": ["b"]})) == "abc"


def test_the_five_node_example() -> None:
    graph = graph_of(FIVE)
    assert linear(Topological(), graph) == "abcde"
    assert linear(Topological("fifo"), graph) == "abcde"
    assert linear(DepthFirst(), graph) == "abcde"
    assert linear(CriticalPathFirst(), graph) == "bacde"
    # e needs d, which needs c before a (the larger index is visited first).
    assert linear(ReverseDepthFirst(), graph) == "bcade"


def test_breadth_or_depth_first() -> None:
    graph = graph_of(FORK)
    assert linear(Topological(), graph) == "abcxyz"
    assert linear(Topological("fifo"), graph) == "abxcyz"
    assert linear(DepthFirst(), graph) == "abcxyz"
    assert linear(ReverseDepthFirst(), graph) == "axybcz"


def test_the_least_index_is_stable() -> None:
    graph = graph_of({"c": [], "a": ["c"], "b": [], "d": ["b", "a"]})
    assert linear(Topological(), graph) == "cabd"
    # Consumers added before producers have to move, and nothing else does.
    assert linear(Topological(), graph_of({"a": ["c"], "b": [], "c": [], "d": ["a"]})) == "bcad"


def test_reverse_depth_first_begins_at_the_output_with_the_largest_index() -> None:
    graph = graph_of({"a": [], "p": ["a"], "b": [], "q": ["b"]})
    assert linear(ReverseDepthFirst(), graph) == "bqap"


def test_the_critical_path_goes_first() -> None:
    graph = graph_of(FORK, {"a": 1, "b": 1, "c": 1, "x": 5, "y": 5, "z": 1})
    assert linear(CriticalPathFirst(), graph) == "axybcz"
    assert linear(CriticalPathFirst(), graph, knowledge="none") == "abxcyz"


def test_ops_without_duration_stay_behind_their_producers() -> None:
    graph = graph_of({"b": ["a"], "a": []}, 0)
    assert linear(CriticalPathFirst(), graph) == "ab"


def test_priorities() -> None:
    b = GraphBuilder("priorities")
    b.op("a", attributes={"priority": 1}, duration_ns=0)
    b.op("b", duration_ns=0)
    b.op("c", kind="Shape", attributes={"priority": 9}, duration_ns=0)
    b.op("d", inputs=["b"], attributes={"priority": -5}, duration_ns=0)
    graph = b.build()
    assert linear(Priority(), graph) == "cbda"
    assert linear(Priority(kinds=()), graph) == "bdac"
    assert linear(Topological(), graph) == "abcd"


def test_memory_is_given_back_early() -> None:
    # Two big tensors, each reduced to a small one: never both at once.
    b = GraphBuilder("reduce")
    for name in "ab":
        b.op(name, outputs=100, duration_ns=0)
    for name, before in (("r", "a"), ("s", "b")):
        b.op(name, inputs=[before], outputs=1, duration_ns=0)
    b.op("t", inputs=["r", "s"], outputs=1, duration_ns=0)
    graph = b.build()
    assert linear(Topological(), graph) == "abrst"
    assert linear(MemoryAware(), graph) == "arbst"


def test_memory_of_a_tensor_goes_with_its_last_reader() -> None:
    # p is read by u and v; only the second of them frees it, so w (which frees q) comes in between.
    b = GraphBuilder("last reader")
    b.op("p", outputs=50, duration_ns=0)
    b.op("q", outputs=8, duration_ns=0)
    b.op("u", inputs=["p"], outputs=10, duration_ns=0)
    b.op("v", inputs=["p"], outputs=10, duration_ns=0)
    b.op("w", inputs=["q"], outputs=2, duration_ns=0)
    b.op("z", inputs=["u", "v", "w"], duration_ns=0)
    graph = b.build()
    assert linear(MemoryAware(), graph) == "qwpuvz"


def test_a_tensor_that_the_next_iteration_reads_is_not_given_back() -> None:
    b = GraphBuilder("state")
    b.op("s", inputs=[("s", 1)], outputs=100, duration_ns=0)
    b.op("a", inputs=["s"], outputs=10, duration_ns=0)
    b.op("b", outputs=5, duration_ns=0)
    b.op("c", inputs=["a", "b"], duration_ns=0)
    # If reading s freed it, a (10 - 100) would come before b (5).
    assert linear(MemoryAware(), b.build()) == "bsac"


def test_a_given_program() -> None:
    graph = graph_of(FORK)
    assert linear(UserOrder(list("axybcz")), graph) == "axybcz"
    for ops, message in (
        ("abcxy", "'z' is nowhere in the list"),
        ("abcxyzz", "'z' is 2 times in the list"),
    ):
        with pytest.raises(InputError, match=message):
            linear(UserOrder(list(ops)), graph)
    with pytest.raises(UnknownNameError, match=r"^ops\[6\]: unknown op 'k'"):
        linear(UserOrder(list("abcxyzk")), graph)
    with pytest.raises(InputError, match="program: ops must be a list of names; found 'ba'"):
        UserOrder("ba")
    with pytest.raises(InputError, match="program: ops must be a list of names; found 3"):
        UserOrder(3)  # type: ignore[arg-type]


def test_wrong_options_are_refused() -> None:
    with pytest.raises(InputError, match="topological: ties must be one of least-index, fifo; found 'lifo'"):
        Topological("lifo")
    b = GraphBuilder("g")
    b.op("a", attributes={"priority": "high"})
    with pytest.raises(InputError, match="op 'a': priority: 'high' is no number"):
        linear(Priority(), b.build())


class Wrong:
    """An order that nobody should return."""

    def __init__(self, *order: int) -> None:
        self.given = order

    def order(self, job: Job) -> list[int]:
        """Return what was given."""
        return list(self.given)


@pytest.mark.parametrize(
    ("order", "error", "said"),
    [
        ((1,), InputError, "Wrong.order returned the op 'a' 0 times, not once"),
        ((0, 1, 1), InputError, "Wrong.order returned the op 'b' 2 times, not once"),
        ((1, 0), StuckError, "Wrong.order puts b before a, for which it waits"),
    ],
)
def test_a_wrong_order_is_named(order: tuple[int, ...], error: type[Exception], said: str) -> None:
    graph = graph_of({"a": [], "b": ["a"]})
    with pytest.raises(error) as caught:
        simulate(graph, Machine((Device("gpu0"),)), InOrder(), linearize=Wrong(*order))
    assert said in str(caught.value)
