"""Fusion: which ops become one kernel; and that no step takes more than its graph has of work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
from rewrite_helpers import graph, shape

from policies.rewrite.fusion import Fusion
from policies.rewrite.layout import Layout
from policies.rewrite.simplify import Arithmetic, ConstantFolding
from sim import Graph


def test_remapper_patterns() -> None:
    g = graph(
        {
            "m": {"kind": "matmul", "inputs": ["x", "w"], "flops": 100, "duration_ns": 50},
            "b": {"kind": "bias_add", "inputs": ["m", "v"], "flops": 1, "duration_ns": 5},
            "r": {"kind": "relu", "inputs": ["b"], "flops": 1, "duration_ns": 5},
        },
        ("x", "w", "v"),
    )
    after = Fusion("remapper").apply(g)
    assert shape(after) == {"r": ("matmul", ["x", "w", "v"])}
    assert after.attributes[0]["fused"] == ["matmul", "bias_add", "relu"]
    assert (after.flops[0], after.duration_ns[0]) == (102, 60)
    assert (after.bytes_read[0], after.bytes_written[0]) == (3000, 1000)  # not the two tensors in between


def test_two_readers_prevent_fusion() -> None:
    g = graph(
        {
            "m": {"kind": "matmul", "inputs": ["x"]},
            "b": {"kind": "bias_add", "inputs": ["m"]},
            "other": {"kind": "matmul", "inputs": ["m"]},
        }
    )
    assert len(Fusion().apply(g)) == 3


def test_only_a_compiler_has_a_kernel_of_its_own_for_a_reduction() -> None:
    g = graph({"s": {"kind": "softmax", "inputs": ["x"], "attributes": {"columns": [8]}}})
    assert shape(Fusion("remapper").apply(g)) == shape(g)
    assert shape(Fusion("elementwise").apply(g)) == {"s": ("elementwise", ["x"])}


def test_fusion_never_makes_a_cycle() -> None:
    """a → b → c and a → c: fusing a with c would make it wait for b, which waits for a."""
    g = graph(
        {
            "a": {"kind": "exp", "inputs": ["x"], "outputs": (1000,)},
            "b": {"kind": "matmul", "inputs": ["x"], "after": ["a"]},
            "c": {"kind": "add", "inputs": ["a", "b"]},
        }
    )
    assert len(Fusion().apply(g)) == 3


def test_elementwise_chains_fuse_and_traffic_falls() -> None:
    kinds = ("exp", "erf", "silu", "log", "clip")
    g = graph(
        {f"e{i}": {"kind": kind, "inputs": [f"e{i - 1}" if i else "x"]} for i, kind in enumerate(kinds)}
    )
    after = Fusion("elementwise").apply(g)
    assert shape(after) == {"e4": ("elementwise", ["x"])}
    assert after.bytes_read.tolist() == [1000]


def test_torch_compile_joins_all_that_one_op_adds_and_leaves_convolutions_alone() -> None:
    """The end of a block of ResNet: two convolutions, a norm behind each, their sum and its relu."""
    ops = {f"conv{i}": {"kind": "conv", "inputs": ["x"]} for i in "12"}
    ops |= {f"norm{i}": {"kind": "batch_norm", "inputs": [f"conv{i}"]} for i in "12"}
    ops |= {"sum": {"kind": "add", "inputs": ["norm1", "norm2"]}, "relu": {"kind": "relu", "inputs": ["sum"]}}
    after = Fusion("elementwise").apply(graph(ops))
    assert shape(after) == {
        "conv1": ("conv", ["x"]),
        "conv2": ("conv", ["x"]),
        "relu": ("elementwise", ["conv1", "conv2"]),
    }
    assert after.bytes_read.tolist() == [1000, 1000, 2000]
    assert after.bytes_written.tolist() == [1000, 1000, 1000]
    fused = [after.attributes[op]["fused"] for op in range(3)]
    assert fused == [["conv"], ["conv"], ["batch_norm", "batch_norm", "add", "relu"]]


def test_a_sum_leaves_the_kernel_of_the_norm_that_reads_it() -> None:
    """Two residual sums of a transformer: the later one also reads the earlier one, which is written."""
    ops = {f"linear{i}": {"kind": "gemm", "inputs": [f"norm{i - 1}" if i > 1 else "x"]} for i in (1, 2)}
    sums = {
        "sum1": {"kind": "add", "inputs": ["x", "linear1"]},
        "sum2": {"kind": "add", "inputs": ["sum1", "linear2"]},
    }
    norms = {f"norm{i}": {"kind": "layer_norm", "inputs": [f"sum{i}"]} for i in (1, 2)}
    after = Fusion("elementwise").apply(graph({**ops, **sums, **norms}))
    assert shape(after)["norm1"] == ("elementwise", ["x", "linear1"])
    assert shape(after)["norm2"] == ("elementwise", ["norm1:1", "linear2"])
    done = [after.index(name) for name in ("norm1", "norm2")]
    assert after.bytes_read[done].tolist() == [2000, 2000]
    assert after.bytes_written[done].tolist() == [2000, 1000]  # nobody reads the second sum


def test_what_makes_a_norms_weights_does_not_keep_it_from_its_sum() -> None:
    """Nothing that made them, in 16 bits, can wait for the sum, which others read."""
    ops = {
        "weights": {"kind": "cast", "inputs": ["w"], "outputs": 10},
        "first": {"kind": "gemm", "inputs": ["x"]},
        "sum": {"kind": "add", "inputs": ["y", "first"]},
        "norm": {"kind": "layer_norm", "inputs": ["sum", "weights"]},
        "next": {"kind": "gemm", "inputs": ["norm", "sum"]},
    }
    after = shape(Fusion("elementwise").apply(graph(ops, ("x", "y", "w"))))
    assert after["norm"] == ("elementwise", ["y", "first", "weights"])
    assert after["next"] == ("gemm", ["norm", "norm:1"])


VIEW = {"kind": "reshape", "bytes_read": 0, "bytes_written": 0, "attributes": {"view_of": 0}}


def test_views_between_elementwise_ops_are_index_arithmetic() -> None:
    """The part of a sum that is shown is read inside; what shows it to a product shows what leaves."""
    half = {**VIEW, "inputs": ["sum"], "outputs": 500}
    ops: dict[str, Any] = {
        "sum": {"kind": "relu", "inputs": ["x"]},
        "half": half,
        "gelu": {"kind": "gelu", "inputs": ["half", "y"], "outputs": 500},
        "all": {**VIEW, "inputs": ["sum"]},
    }
    after = Fusion("elementwise").apply(graph(ops, ("x", "y")))
    assert shape(after) == {"gelu": ("elementwise", ["x", "y"]), "all": ("reshape", ["gelu:1"])}
    assert (after.bytes_read[0], after.bytes_written[0]) == (2000, 1500)
    ops["nothing"] = {**VIEW, "inputs": []}
    assert len(Fusion("elementwise").apply(graph(ops, ("x", "y")))) == 3
    ops["half"] = {**half, "device": "gpu1"}  # this one is sent
    assert len(Fusion("elementwise").apply(graph(ops, ("x", "y")))) == 5


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ({"inputs": ["mean"], "outputs": 10}, ["last"]),  # as many numbers as the mean has
        ({"inputs": ["mean"]}, ["mean", "last"]),  # more of them
        ({"inputs": ["exp"]}, ["last"]),  # the mean's own rows
        ({"inputs": ["mean"], "kind": "softmax", "outputs": 10}, ["mean", "last"]),  # other rows
        ({"inputs": ["exp", "y"]}, ["mean", "last"]),  # who reads the mean would wait for y
        ({"inputs": ["exp"], "kind": "max_pool"}, ["mean", "last"]),  # each number reads several
    ],
)
def test_a_reduction_is_computed_with_what_has_its_rows(fields: dict[str, Any], left: list[str]) -> None:
    ops = {
        "y": {"kind": "matmul", "inputs": ["x"]},
        "exp": {"kind": "exp", "inputs": ["x"]},
        "mean": {"kind": "reduce_mean", "inputs": ["exp"], "outputs": 10},
        "last": {"kind": "relu", **fields},
        "end": {"kind": "matmul", "inputs": ["mean", "last"]},
    }
    after = Fusion("elementwise").apply(graph(ops))
    assert [*after.op_names] == ["y", *left, "end"]
    assert after.bytes_read[1] == 1000


@pytest.mark.parametrize("scaled", [["sum", "root"], ["root", "sum"]])
def test_a_norm_that_is_written_out_is_one_kernel(scaled: list[str]) -> None:
    ops: dict[str, Any] = {
        "sum": {"kind": "add", "inputs": ["x", "y"]},
        "square": {"kind": "pow", "inputs": ["sum"]},
        "mean": {"kind": "reduce_mean", "inputs": ["square"], "outputs": 10},
        "root": {"kind": "rsqrt", "inputs": ["mean"], "outputs": 10},
        "norm": {"kind": "mul", "inputs": scaled},
        "next": {"kind": "matmul", "inputs": ["norm", "sum"]},
    }
    after = Fusion("elementwise").apply(graph(ops, ("x", "y")))
    assert shape(after)["next"] == ("matmul", ["norm", "norm:1"])
    assert (len(after), after.bytes_read[0], after.bytes_written[0]) == (2, 2000, 2000)


def test_the_mean_of_an_image_is_a_kernel_of_its_own() -> None:
    """Squeeze and excitation costs SE-ResNet-50 32 us an image on an RTX 4090: four passes over tensors."""
    relu = {"kind": "relu", "inputs": ["x"]}
    for axes in (["arguments", ["tensor", [2, 3], True]], ["axes", [2, 3]], ["axes", (2, 3)]):
        mean = {"kind": "reduce_mean", "inputs": ["relu"], "outputs": 10, "attributes": dict([axes])}
        assert len(Fusion("elementwise").apply(graph({"relu": relu, "mean": mean}))) == 2


@pytest.mark.parametrize(
    ("kind", "trains", "nbytes"),
    [("layer_norm", {}, 500), ("group_norm", {}, 1000), ("batch_norm", {"training_mode": True}, 1000)],
)
def test_a_norm_of_images_reads_what_its_kernel_reads_twice(
    kind: str, trains: dict[str, Any], nbytes: int
) -> None:
    """ResNet-50 v2 with group norms, compiled, took an RTX 5090 18 % longer than with one pass."""
    ops = {
        "cast": {"kind": "cast", "inputs": ["x"], "bytes_read": 500},
        "norm": {"kind": kind, "inputs": ["cast"], "attributes": trains},
    }
    assert Fusion("elementwise").apply(graph(ops)).bytes_read.tolist() == [nbytes]


@pytest.mark.parametrize(("flops", "layout"), [(1, "NHWC"), (2, "NCHW")])
def test_many_grouped_convolutions_keep_nchw(flops: int, layout: str) -> None:
    grouped = {"in_channels": 64, "group": np.int64(2)}
    ops = {
        "full": {"kind": "conv", "inputs": ["x"], "flops": 2},
        "depthwise": {"kind": "conv", "inputs": ["full"], "attributes": {"in_channels": 64, "group": 64}},
        "grouped": {"kind": "conv", "inputs": ["depthwise"], "flops": flops, "attributes": grouped},
    }
    after = Fusion("elementwise").apply(graph(ops))
    assert {each["data_format"] for each in after.attributes.values()} == {layout}
    assert "data_format" not in Fusion("remapper").apply(graph(ops)).attributes[1]


def test_a_bias_is_no_product() -> None:
    ops = {
        "exp": {"kind": "exp", "inputs": ["x"]},
        "conv": {"kind": "conv", "inputs": ["x"]},
        "sum": {"kind": "bias_add", "inputs": ["exp", "conv"]},
    }
    after = Fusion("remapper").apply(graph(ops))
    assert [*after.op_names] == ["exp", "conv", "sum"]


def test_what_reads_its_own_last_iteration_is_not_fused() -> None:
    fields = {"kind": "add", "inputs": ["a", ("c", 1)]}
    g = graph({"a": {"kind": "exp", "inputs": ["x"]}, "b": fields, "c": {"kind": "matmul", "inputs": ["b"]}})
    assert len(Fusion().apply(g)) == 3
    fields["inputs"] = ["a", ("a2", 1)]
    g = graph({"a": {"kind": "exp", "inputs": ["x"]}, "a2": {"kind": "matmul", "inputs": ["x"]}, "b": fields})
    assert [*Fusion().apply(g).op_names] == ["a2", "b"]


def instructions(function: Callable[[], object]) -> int:
    """Return how many instructions of Python a call executes."""
    executed = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal executed
        frame.f_trace_opcodes = True
        executed += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        function()
    finally:
        sys.settrace(before)
    return executed


def pairs(n: int) -> Graph:
    """n ops that fuse two by two."""
    return graph({f"e{i}": {"kind": "exp", "inputs": [f"e{i - 1}" if i % 2 else "x"]} for i in range(n)})


def one_chain(n: int) -> Graph:
    """n ops that all become one."""
    return graph({f"e{i}": {"kind": "exp", "inputs": [f"e{i - 1}" if i else "x"]} for i in range(n)})


@pytest.mark.parametrize("ops", [pairs, one_chain])
def test_fusion_takes_work_in_proportion_to_the_graph(ops: Callable[[int], Graph]) -> None:
    step = Fusion()
    small, large = ops(60), ops(240)
    assert len(step.apply(large)) == 4 * len(step.apply(small)) or len(step.apply(large)) == 1
    assert instructions(lambda: step.apply(large)) < 4.4 * instructions(lambda: step.apply(small))


def sums(n: int) -> Graph:
    """n / 2 sums of three equal terms, each of two ops."""
    return graph({f"e{i}": {"kind": "add", "inputs": [f"e{i - 1}" if i % 2 else "x", "x"]} for i in range(n)})


def unused_constants(n: int) -> Graph:
    """A constant through n ops, the last of which is too large to be one."""
    last = {"kind": "fill", "inputs": [f"e{n - 1}"], "outputs": 1 << 30}
    fold = {f"e{i}": {"kind": "neg" if i else "const", "inputs": [f"e{i - 1}"] * bool(i)} for i in range(n)}
    return graph({**fold, "last": last})


def mixed_sum(n: int) -> Graph:
    """n sums in a chain that begins with another tensor: none is a product."""
    ops = {f"e{i}": {"kind": "add", "inputs": [f"e{i - 1}" if i else "y", "x"]} for i in range(n)}
    return graph(ops, ("x", "y"))


def convolutions(n: int) -> Graph:
    """n / 2 convolutions in a format that is not preferred, each with an op that does not care."""
    conv = {"kind": "conv", "attributes": {"data_format": "NHWC"}}
    return graph(
        {
            f"e{i}": {"inputs": [f"e{i - 1}" if i else "x"], **({"kind": "relu"} if i % 2 else conv)}
            for i in range(n)
        }
    )


@pytest.mark.parametrize(
    ("step", "ops"),
    [
        (Layout(), convolutions),
        (Arithmetic(), sums),
        (Arithmetic(), mixed_sum),
        (ConstantFolding(), unused_constants),
    ],
)
def test_simplifying_takes_work_in_proportion_to_the_graph(step: Any, ops: Callable[[int], Graph]) -> None:
    small, large = ops(60), ops(240)
    assert len(step.apply(large)) < 1.1 * len(large)
    assert instructions(lambda: step.apply(large)) < 4.4 * instructions(lambda: step.apply(small))
