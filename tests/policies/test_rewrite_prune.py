"""What is left of a graph of which some is given and some wanted."""

from __future__ import annotations

from collections import Counter

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from program_helpers import programs
from rewrite_helpers import ancestors, graph, shape

from policies.issue.ready_queue import ReadyQueue
from policies.rewrite.prune import Prune
from policies.rewrite.records import read
from sim import Device, Graph, GraphBuilder, Machine, simulate
from sim.base.errors import GraphError, InputError, UnknownNameError


def test_prune_keeps_ancestors_over_data_and_control_edges() -> None:
    g = graph(
        {
            "a": {"inputs": ["x"]},
            "init": {},
            "b": {"inputs": ["a"], "after": ["init"]},
            "summary": {"inputs": ["a"]},
            "loss": {"inputs": ["b"]},
        }
    )
    assert list(shape(Prune(["loss"]).apply(g))) == ["a", "init", "b", "loss"]


def test_a_feed_cuts_the_graph() -> None:
    g = graph({"a": {"inputs": ["x"]}, "b": {"inputs": ["a"]}})
    assert shape(Prune(["b"], ["a"]).apply(g)) == {"b": ("op", ["feed of a"])}
    with pytest.raises(GraphError, match="everything that is fetched is fed"):
        Prune(["a"], ["a"]).apply(g)
    with pytest.raises(InputError, match="feeds must be a list of names; found 'ba'"):
        Prune(feeds="ba")
    with pytest.raises(UnknownNameError, match="did you mean 'b'"):
        Prune(["bb"]).apply(g)


def test_explicit_nodes_stand_where_the_graph_is_cut() -> None:
    g = graph(
        {
            "a": {"inputs": ["x"]},
            "init": {},
            "b": {"inputs": ["a"], "after": ["init"]},
            "check": {"inputs": ["b"]},
            "summary": {"inputs": ["a"]},
            "loss": {"inputs": ["b"]},
        }
    )
    cut = Prune(["loss:0"], ["a:0"], targets=["check"], explicit=True, device="cpu0").apply(g)
    records = read(cut).ops
    assert {
        r.name: (r.kind, [t for t, _ in r.inputs], [n for n, _ in r.after]) for r in records.values()
    } == {
        "_source": ("no_op", [], []),
        "arg/a": ("arg", [], ["_source"]),
        "init": ("op", [], ["_source"]),
        "b": ("op", ["arg/a"], ["init"]),
        "check": ("op", ["b"], []),
        "loss": ("op", ["b"], []),
        "retval/loss": ("retval", ["loss"], []),
        "_sink": ("control_trigger", [], ["check", "retval/loss"]),
    }
    assert [records[n].device for n in ("_source", "arg/a", "b", "retval/loss")] == [
        "cpu0",
        "cpu0",
        None,
        "cpu0",
    ]
    assert records["arg/a"].outputs == (1000,)
    assert records["arg/a"].attributes == records["retval/loss"].attributes == {"index": 0}
    with pytest.raises(GraphError, match="has an op '_source' already"):
        Prune(explicit=True).apply(cut)


def test_a_fed_input_is_an_arg_too_and_an_unread_feed_is_none() -> None:
    g = graph({"a": {"inputs": ["x"]}, "b": {"inputs": ["y"]}}, inputs=("x", "y"))
    cut = Prune(["a"], ["x", "y"], explicit=True).apply(g)
    assert [*cut.op_names] == ["_source", "arg/x", "a", "retval/a", "_sink"]
    assert not cut.external_names


def test_only_the_output_that_is_fed_is_cut() -> None:
    """A split with two outputs, of which one is fed and the other fetched, still runs."""
    g = graph({"s": {"inputs": ["x"], "outputs": (1, 2)}, "b": {"inputs": ["s", "s:1"]}})
    assert shape(Prune(["b", "s:1"], ["s"]).apply(g)) == {
        "s": ("op", ["x"]),
        "b": ("op", ["feed of s", "s:1"]),
    }


@given(data=st.data(), n=st.integers(1, 12), explicit=st.booleans())
def test_pruning_loses_no_dependency(data: st.DataObject, n: int, explicit: bool) -> None:
    """What is fetched is there, after all that it needs and follows; explicit nodes tie all ends."""
    names: list[str] = []
    b = GraphBuilder("random")
    b.input("x", 4)
    for i in range(n):
        some = st.lists(st.sampled_from([*names, "x"]), max_size=3, unique=True)
        follows = st.lists(st.sampled_from(names), max_size=2, unique=True) if names else st.just([])
        names.append(b.op(f"op{i}", inputs=data.draw(some), after=data.draw(follows), outputs=4))
    g = b.build()
    subset = st.lists(st.sampled_from(names), max_size=3, unique=True)
    feeds, fetches = data.draw(subset), data.draw(subset)
    fetches = [name for name in fetches if name not in feeds] or [n for n in names if n not in feeds][-1:]
    if not fetches:
        return
    cut = Prune(fetches, feeds, explicit=explicit).apply(g)
    kept = set(cut.op_names) & set(names)
    given = read(g).ops
    for name in kept:
        record, before = read(cut).ops[name], given[name]
        assert set(before.after) <= set(record.after)  # no control dependency is lost
        for (now, _), (was, _) in zip(record.inputs, before.inputs, strict=True):
            assert now == (was if was not in feeds else f"arg/{was}" if explicit else f"feed of {was}")
    needed: set[str] = set()
    stack = list(fetches)
    while stack:
        name = stack.pop()
        if name in needed or name == "x":
            continue
        needed.add(name)
        stack += [t for t, _ in given[name].inputs if t not in feeds] + [n for n, _ in given[name].after]
    assert kept == needed
    if explicit:
        assert set(cut.op_names) - kept - {"_source", "_sink"} == {
            *(f"retval/{name}" for name in fetches),
            *(f"arg/{t}" for name in kept for t, _ in given[name].inputs if t in feeds),
        }
        assert ancestors(cut, "_sink") == {*cut.op_names} - {"_sink"}
        assert all("_source" in ancestors(cut, name) for name in cut.op_names if name != "_source")


@examples(40)
@given(g=programs())
def test_explicit_nodes_around_loops_and_conditions_change_nothing(g: Graph) -> None:
    there = Machine((Device("cpu0", "cpu", workers=4),))
    plain, explicit = (simulate(x, there, ReadyQueue()) for x in (g, Prune(["end"], explicit=True).apply(g)))
    explicit.check()
    assert explicit.makespan_ns == plain.makespan_ns
    live = [Counter(t.job.graph.op_names[op] for op in t.tasks["op"][t.tasks["dead"] == 0].tolist())
            for t in (plain, explicit)]  # fmt: skip
    assert live[1] - live[0] == Counter(["_source", "retval/end", "_sink"])
