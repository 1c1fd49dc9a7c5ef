"""Graph compilation: every step's own examples, and that none of them changes what a graph means."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from import_helpers import recorded_graph
from rewrite_helpers import graph, shape

from policies.rewrite.fusion import Fusion
from policies.rewrite.layout import Layout
from policies.rewrite.records import read, write
from policies.rewrite.simplify import Arithmetic, CommonSubexpressions, ConstantFolding
from scenarios.importers.tensorflow_json import kind_of
from sim import Graph, GraphBuilder
from sim.base.errors import InputError


def test_records_round_trip() -> None:
    builder = GraphBuilder("g")
    builder.input("x", 4, device="cpu0")
    builder.parameter("w", 8)
    builder.op(
        "a",
        kind="split",
        inputs=["x", "w"],
        outputs=(1, 2),
        flops=3,
        device="gpu",
        dtype="bf16",
        duration_by_kind={"cpu": 5},
        stage=1,
        micro_batch=2,
        phase="F",
        attributes={"k": [1]},
    )
    builder.op("b", inputs=["a:1", ("b", 1)], after=[("a", 0)], duration_ns=7, bytes_read=9)
    before = builder.build()
    after = write(read(before))
    for name in ("kind_code", "flops", "bytes_read", "bytes_written", "duration_ns", "stage", "micro_batch"):
        assert getattr(before, name).tolist() == getattr(after, name).tolist()
    assert [c.tolist() for c in before.edges] == [c.tolist() for c in after.edges]
    assert before.attributes == after.attributes
    assert (before.pins, before.dtypes, before.phases) == (after.pins, after.dtypes, after.phases)


# -- constant folding ------------------------------------------------------------------------------


def test_what_depends_on_constants_only_is_folded() -> None:
    g = graph(
        {
            "c": {"kind": "const"},
            "r": {"kind": "reshape", "inputs": ["c"]},
            "s": {"kind": "shape", "inputs": ["x"]},
            "f": {"kind": "fill", "inputs": ["s"], "duration_ns": 9},
            "m": {"kind": "matmul", "inputs": ["x", "r", "f"]},
        }
    )
    assert shape(ConstantFolding().apply(g)) == {
        "r": ("const", []),
        "f": ("const", []),
        "m": ("matmul", ["x", "r", "f"]),
    }


def test_products_of_constants_are_folded() -> None:
    """mul(c1, mul(x, c2)) → mul(x, c), the constant standing for c1 · c2."""
    g = graph(
        {
            "c1": {"kind": "const"},
            "c2": {"kind": "const"},
            "in": {"kind": "mul", "inputs": ["x", "c2"]},
            "out": {"kind": "mul", "inputs": ["c1", "in"]},
        }
    )
    assert shape(ConstantFolding().apply(g)) == {"c1": ("const", []), "out": ("mul", ["x", "c1"])}


def test_a_random_number_is_no_constant() -> None:
    g = graph({"c": {"kind": "const"}, "r": {"kind": "random", "inputs": ["c"]}})
    assert shape(ConstantFolding().apply(g))["r"] == ("random", ["c"])


# -- common subexpressions -------------------------------------------------------------------------


def test_equal_ops_become_one_and_their_readers_follow() -> None:
    g = graph(
        {
            "a": {"kind": "relu", "inputs": ["x"]},
            "b": {"kind": "relu", "inputs": ["x"]},
            "aa": {"kind": "exp", "inputs": ["a"]},
            "bb": {"kind": "exp", "inputs": ["b"]},
            "s": {"kind": "add", "inputs": ["aa", "bb"], "after": ["b"]},
        }
    )
    assert shape(CommonSubexpressions().apply(g)) == {
        "a": ("relu", ["x"]),
        "aa": ("exp", ["a"]),
        "s": ("add", ["aa", "aa"]),
    }
    assert read(CommonSubexpressions().apply(g)).ops["s"].after == [("a", 0)]


def test_readers_of_the_iteration_before_follow_what_became_one() -> None:
    same = {"kind": "relu", "inputs": ["x"]}
    reader = {"kind": "exp", "inputs": [("b", 1)], "after": [("b", 2)]}
    early = read(CommonSubexpressions().apply(graph({"early": reader, "a": same, "b": same}))).ops["early"]
    assert (early.inputs, early.after) == ([("a", 1)], [("a", 2)])


def test_an_op_that_follows_itself_of_the_iteration_before_is_equal_to_no_other() -> None:
    again = {
        "a": {"kind": "relu", "inputs": ["x"], "after": [("a", 1)]},
        "b": {"kind": "relu", "inputs": ["x"]},
    }
    merged = read(CommonSubexpressions().apply(graph(again)))
    assert {name: record.after for name, record in merged.ops.items()} == {"a": [("a", 1)], "b": []}


def test_ops_that_follow_what_becomes_one_are_equal_themselves() -> None:
    same = {"kind": "relu", "inputs": ["x"]}
    follow = {name: {"kind": "exp", "inputs": ["x"], "after": [before]} for name, before in ("ca", "db")}
    assert [*CommonSubexpressions().apply(graph({"a": same, "b": same, **follow})).op_names] == ["a", "c"]


@pytest.mark.parametrize(
    "differ",
    [{"device": "gpu0"}, {"attributes": {"axis": 1}}, {"dtype": "bf16"}, {"kind": "dropout"}, {"outputs": 8}],
)
def test_ops_that_differ_stay(differ: dict[str, Any]) -> None:
    g = graph({"a": {"kind": "relu", "inputs": ["x"]}, "b": {"kind": "relu", "inputs": ["x"], **differ}})
    assert len(CommonSubexpressions().apply(g)) == 2


def test_sums_commute_and_differences_do_not() -> None:
    def two(kind: str) -> Graph:
        return graph(
            {"a": {"kind": kind, "inputs": ["x", "y"]}, "b": {"kind": kind, "inputs": ["y", "x"]}}, ("x", "y")
        )

    assert len(CommonSubexpressions().apply(two("add"))) == 1
    assert len(CommonSubexpressions().apply(two("sub"))) == 2


def merged(ops: dict[str, dict[str, Any]], externals: tuple[str, ...] = ("x",)) -> list[str]:
    return [*CommonSubexpressions().apply(graph(ops, externals)).op_names]


def test_constants_merge_by_their_value() -> None:
    known = {"kind": "const", "outputs": 16, "attributes": {"value": [1, 2]}}
    unknown = {"kind": "const", "outputs": 16}
    assert merged({"a": unknown, "b": unknown}) == ["a", "b"]
    assert merged({"a": known, "b": known}) == ["a"]
    assert merged({"a": known, "b": {**known, "attributes": {"value": [2, 1]}}}) == ["a", "b"]


def test_what_reads_nothing_is_not_known_to_be_the_same() -> None:
    assert merged({"a": {"kind": "range"}, "b": {"kind": "range"}}) == ["a", "b"]


STATEFUL_OPERATORS = [
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "TruncatedNormal",
    "Multinomial",
    "QueueDequeueV2",
    "QueueEnqueueV2",
    "IteratorGetNext",
    "ReadVariableOp",
    "AssignVariableOp",
    "AssignAddVariableOp",
    "PyFunc",
    "EagerPyFunc",
    "LookupTableFindV2",
    "HashTableV2",
    "ResourceGather",
    "ResourceApplyAdam",
    "ApplyMomentum",
    "ScatterAdd",
    "TensorArrayReadV3",
    "StackPopV2",
    "VarHandleOp",
    "StatefulPartitionedCall",
    "Placeholder",
    "_Recv",
    "InplaceUpdate",
]


@pytest.mark.parametrize("operator", STATEFUL_OPERATORS)
def test_what_is_stateful_in_tensorflow_never_merges_and_is_not_folded(operator: str) -> None:
    kind = kind_of(operator)
    two = {"a": {"kind": kind, "inputs": ["x"]}, "b": {"kind": kind, "inputs": ["x"]}}
    assert merged(two) == ["a", "b"]
    read_by = graph({"c": {"kind": "const"}, "a": {"kind": kind, "inputs": ["c"]}})
    assert shape(ConstantFolding().apply(read_by))["a"] == (kind, ["c"])


def test_grappler_merges_what_is_stateful_by_mistake() -> None:
    assert merged({name: {"kind": "assert", "inputs": ["x"]} for name in "ab"}) == ["a"]


def test_what_an_op_in_place_writes_into_is_its_own() -> None:
    """Two accumulators that begin with the same zeros: merged, each would clobber the other."""
    zeros = {name: {"kind": "zeros_like", "inputs": ["x"]} for name in ("z", "zz", "read")}
    sums = {f"s{z}": {"kind": "add_one", "inputs": [z], "attributes": {"inplace": True}} for z in ("z", "zz")}
    assert merged({**zeros, **sums}) == ["z", "zz", "read", "sz", "szz"]


def test_a_shape_that_importers_leave_out_is_not_the_same() -> None:
    """ONNX: Reshape to (2, 3) and to (3, 2) look alike once their constant operand is gone."""
    assert merged({name: {"kind": "reshape", "inputs": ["x"]} for name in "ab"}) == ["a", "b"]
    to_y = {"kind": "reshape", "inputs": ["x", "y"]}
    assert merged({"a": to_y, "b": to_y}, ("x", "y")) == ["a"]


def test_a_recorded_step_keeps_its_constants() -> None:
    """Keras's ResNet-50 has 2,117 constants without their values; ten quotients divide by ten of them."""
    g = recorded_graph("tensorflow/ResNet50_train_b32.json.gz")
    after = CommonSubexpressions().apply(g)
    count = Counter(after.kinds[code] for code in after.kind_code.tolist())
    assert (len(after), count["const"], count["floor_div"]) == (len(g), 2117, 10)


# -- arithmetic ------------------------------------------------------------------------------------


def test_a_repeated_sum_is_a_product() -> None:
    g = graph({"s": {"kind": "add", "inputs": ["x", "x"]}, "t": {"kind": "add", "inputs": ["s", "x"]}})
    after = Arithmetic().apply(g)
    assert shape(after) == {"t": ("mul", ["x", "t/times"]), "t/times": ("const", [])}
    assert after.attributes[after.index("t/times")] == {"value": 3}


def test_a_repeated_sum_within_a_larger_one_is_a_product() -> None:
    """(m + n) + ((x + x) + x): the inner tree of sums becomes 3 x, and the outer ones stay."""
    g = graph(
        {
            "mn": {"kind": "add", "inputs": ["m", "n"]},
            "s": {"kind": "add", "inputs": ["x", "x"]},
            "t": {"kind": "add", "inputs": ["s", "x"]},
            "all": {"kind": "add", "inputs": ["mn", "t"]},
        },
        ("m", "n", "x"),
    )
    assert shape(Arithmetic().apply(g)) == {
        "mn": ("add", ["m", "n"]),
        "t": ("mul", ["x", "t/times"]),
        "t/times": ("const", []),
        "all": ("add", ["mn", "t"]),
    }


def deep_sum(n: int) -> Graph:
    """x + x + ... + x, n sums deep."""
    return graph(
        {f"e{i}": {"kind": "add", "inputs": [f"e{i - 1}" if i else "x", "x"]} for i in range(n)}, ("x",)
    )


def test_a_sum_a_thousand_deep_is_a_product() -> None:
    after = Arithmetic().apply(deep_sum(5000))
    assert shape(after) == {"e4999": ("mul", ["x", "e4999/times"]), "e4999/times": ("const", [])}
    assert after.attributes[after.index("e4999/times")] == {"value": 5001}


def test_a_balanced_sum_is_a_product() -> None:
    g = graph(
        {
            "a": {"kind": "add", "inputs": ["x", "x"]},
            "b": {"kind": "add", "inputs": ["x", "x"]},
            "c": {"kind": "add", "inputs": ["a", "b"]},
        }
    )
    after = Arithmetic().apply(g)
    assert shape(after) == {"c": ("mul", ["x", "c/times"]), "c/times": ("const", [])}
    assert after.attributes[after.index("c/times")] == {"value": 4}


def test_scalars_are_added_first() -> None:
    g = graph(
        {
            "s1": {"kind": "const", "outputs": 4},
            "s2": {"kind": "const", "outputs": 4},
            "l": {"kind": "add", "inputs": ["a", "s1"]},
            "r": {"kind": "add", "inputs": ["b", "s2"]},
            "t": {"kind": "add", "inputs": ["l", "r"]},
        },
        ("a", "b"),
    )
    after = Arithmetic().apply(g)
    assert shape(after)["l"] == ("add", ["a", "b"])
    assert shape(after)["r"] == ("add", ["s1", "s2"])
    assert after.bytes_read.sum() + after.bytes_written.sum() < g.bytes_read.sum() + g.bytes_written.sum()


def test_wrong_words() -> None:
    with pytest.raises(InputError, match="patterns must be one of remapper, elementwise, all; found 'some'"):
        Fusion("some")
    with pytest.raises(InputError, match="format must be one of NHWC, NCHW; found 'CHWN'"):
        Layout("CHWN")


# -- meaning ---------------------------------------------------------------------------------------

KINDS = [
    "const",
    "add",
    "mul",
    "relu",
    "exp",
    "matmul",
    "bias_add",
    "conv",
    "softmax",
    "random",
    "shape",
    "identity",
]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    builder = GraphBuilder("random")
    builder.input("x", 64)
    names = ["x"]
    for i in range(draw(st.integers(1, 16))):
        kind = draw(st.sampled_from(KINDS))
        arity = {"const": 0, "random": 0, "add": 2, "mul": 2, "matmul": 2, "bias_add": 2}.get(kind, 1)
        builder.op(
            f"op{i}",
            kind=kind,
            inputs=[draw(st.sampled_from(names)) for _ in range(arity)],
            after=draw(st.lists(st.sampled_from(names[1:]), max_size=1)) if len(names) > 1 else [],
            outputs=draw(st.sampled_from([8, 64])),
            flops=draw(st.integers(0, 9)),
            device=draw(st.sampled_from([None, "gpu0"])),
            attributes={"data_format": "NHWC"} if kind == "conv" else None,
        )
        names.append(f"op{i}")
    return builder.build()


def stateful_ancestors(g: Graph, name: str) -> set[str]:
    """Return the ops with effects that come before `name`, itself included."""
    records = read(g)
    seen: set[str] = set()
    stack = [name]
    while stack:
        at = stack.pop()
        if at in seen:
            continue
        seen.add(at)
        for tensor, _ in (*records.ops[at].inputs, *records.ops[at].after):
            producer = records.producer(tensor)
            if producer is not None:
                stack.append(producer.name)
    return {n for n in seen if records.ops[n].kind == "random"}


STEPS = [ConstantFolding(), CommonSubexpressions(), Arithmetic(), Layout(), Fusion()]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)
@examples(25)
@given(g=graphs())
def test_a_step_keeps_what_is_fetched_and_what_has_effects(step: Any, g: Graph) -> None:
    after = step.apply(g)
    records, rewritten = read(g), read(after)
    readers, followers = records.readers(), records.followers()
    leaves = [name for name in records.ops if not readers[name] and not followers[name]]
    for leaf in leaves:  # what nobody reads is what a user fetches: it is there, or its equal is
        if not isinstance(step, CommonSubexpressions):
            assert leaf in rewritten.ops
            assert stateful_ancestors(g, leaf) == stateful_ancestors(after, leaf)
    effects = {name for name, r in records.ops.items() if r.kind == "random"}
    assert effects == {name for name, r in rewritten.ops.items() if r.kind == "random"}
    if not isinstance(step, Layout):
        assert after.flops.sum() <= g.flops.sum() + (len(g) if isinstance(step, Arithmetic) else 0)
        assert len(after) <= len(g) + (len(g) if isinstance(step, Arithmetic) else 0)
    again = step.apply(after)
    assert shape(again) == shape(after)  # a step has nothing left to do after itself
