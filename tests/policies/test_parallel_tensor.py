"""Tensor and sequence parallelism: what is exchanged, and when; ranks together compute what one would."""

from __future__ import annotations

import warnings
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from parallel_helpers import by_stream, of_rank, run

from policies.parallel.ddp import DistributedDataParallel
from policies.parallel.rank_grid import all_ranks
from policies.parallel.tensor_parallel import TensorParallel, WholeWarning
from policies.rewrite.backward import TrainingRewrite
from policies.rewrite.records import OpEntry, Records, read
from scenarios.builders.gpt import Gpt
from sim import Graph, GraphBuilder
from sim.base.errors import GraphError, InputError

GPT = Gpt(model="gpt", layers=3, hidden=64, heads=4, sequence=32, vocabulary=128, batch=2)
BSH = 2 * 2 * 32 * 64
FULL = TrainingRewrite().apply(GPT.graph())


def exchanged(graph: Graph, what: str) -> Counter[tuple[str, str, int]]:
    """Return phase, kind and bytes of the collectives whose names begin so, counted."""
    return Counter(
        ("forward" if each.phase == "F" else "backward", each.kind, each.attributes["nbytes"])
        for name, each in of_rank(graph).items()
        if name.startswith(what) and "communicator" in each.attributes
    )


# -- Megatron's numbers ---------------------------------------------------------------------------


def test_a_layer_has_two_sums_each_way() -> None:
    found = exchanged(TensorParallel(2).apply(FULL), "layer1")
    assert found == {("forward", "all_reduce", BSH): 2, ("backward", "all_reduce", BSH): 2}


def test_with_sequence_parallelism_sums_become_halves_and_the_backward_gathers_again() -> None:
    graph = TensorParallel(4, sequence_parallel=True).apply(FULL)
    everything = exchanged(graph, "")
    gradients = 2 * (
        3 * (2 * 2 * 64 + 2 * 64) + 2 * 64
    )  # of each layer's norms and two biases, and of the last norm
    assert everything == {  # of layers, then of the head, then of the embedding, whose positions are whole
        ("forward", "all_gather", BSH): 3 * 2 + 1,
        ("forward", "reduce_scatter", BSH): 3 * 2,
        ("forward", "all_reduce", BSH): 1,
        ("backward", "all_gather", BSH): 3 * (2 + 2) + 1 + 1,
        ("backward", "reduce_scatter", BSH): 3 * 2 + 1,
        ("backward", "all_reduce", gradients): 1,
    }
    again = [name for name in of_rank(graph) if name.endswith("all_gather_again")]
    assert len(again) == 3 * 2 + 1


def test_work_and_parameters_are_shared() -> None:
    """Of a layer's 12h^2 + 13h parameters all but 2h of two biases and 4h of two norms are split."""
    h = GPT.hidden
    for t in (2, 4):
        records = read(TensorParallel(t).apply(FULL))
        own = {
            name[5:]: each.nbytes
            for name, each in records.externals.items()
            if name.startswith("gpu0/layer1")
        }
        assert sum(own.values()) == 2 * ((12 * h * h + 7 * h) // t + 6 * h)
        ops = of_rank(TensorParallel(t, sequence_parallel=True).apply(FULL))
        whole = of_rank(DistributedDataParallel(1).apply(FULL))
        for name, each in whole.items():
            if name.startswith("layer1.") and each.flops and "update" not in name:
                assert ops[name].flops == -(-each.flops // t), name


def test_attributes_of_a_shape_are_those_of_the_part() -> None:
    ops = of_rank(TensorParallel(2).apply(FULL))
    shapes = {
        name: tuple(ops[f"layer1.{name}"].attributes[key] for key in "mnk")
        for name in (
            "qkv",
            "proj",
            "proj/weight_grad",
            "qkv/weight_grad",
            "qkv/input_grad",
            "proj/input_grad",
        )
    }
    assert shapes == {
        "qkv": (64, 96, 64),
        "proj": (64, 64, 32),
        "proj/weight_grad": (32, 64, 64),
        "qkv/weight_grad": (64, 96, 64),
        "qkv/input_grad": (64, 64, 96),
        "proj/input_grad": (64, 32, 64),
    }
    for name, each in ops.items():
        if each.kind == "matmul":
            m, n, k = (each.attributes[key] for key in "mnk")
            assert each.flops == 2 * m * n * k, name
    assert ops["layer1.attention"].attributes["heads"] == 2


def test_the_loss_of_a_split_head_needs_three_sums_of_a_number_a_token() -> None:
    step = GPT.model_copy(update={"optimizer": "adam"}).graph()
    found = exchanged(TensorParallel(2).apply(step), "loss")
    assert found == {("forward", "all_reduce", 4 * 64): 3}
    assert exchanged(TensorParallel(2, vocabulary=False).apply(GPT.graph()), "head") == {}


# -- when -----------------------------------------------------------------------------------------


def pair(blocks: int = 1, residual: bool = False, ns: int = 100) -> Graph:
    """Return a training step of pairs of products; tensors have 40 bytes, 80 inside."""
    b = GraphBuilder("pairs")
    b.input("x", 40)
    before = "x"
    facts: dict[str, Any] = {"kind": "matmul", "duration_ns": ns, "dtype": "fp32", "flops": 100}
    for k in range(blocks):
        b.parameter(f"u{k}", 80), b.parameter(f"d{k}", 80)
        up = b.op(f"up{k}", inputs=[before, f"u{k}"], outputs=80, **facts)
        down = b.op(f"down{k}", inputs=[up, f"d{k}"], outputs=40, **facts)
        before = (
            b.op(f"add{k}", kind="add", inputs=[before, down], outputs=40, duration_ns=ns)
            if residual
            else down
        )
    return TrainingRewrite().apply(b.build())


def test_two_pairs_worked_by_hand() -> None:
    """A product takes 100 ns, half of that on two ranks; a sum of 40 bytes 80 ns.

    Forward: a sum holds up the rank. Backward: it runs beside the gradient of the column's weight; that of
    the first column is made alone, as nothing needs the gradient of x.
    """
    found = by_stream(run(TensorParallel(2).apply(pair(2)), 2))
    assert found["compute"][:6] == [
        (0, 50, "up0"),
        (50, 100, "down0"),
        (100, 180, "down0/all_reduce"),
        (180, 230, "up1"),
        (230, 280, "down1"),
        (280, 360, "down1/all_reduce"),
    ]
    assert found["compute"][6:] == [
        (360, 460, "down1/loss_grad"),
        (460, 510, "down1/input_grad"),
        (510, 560, "down1/weight_grad"),
        (560, 610, "up1/input_grad"),
        (610, 660, "up1/weight_grad"),
        (690, 740, "down0/input_grad"),
        (740, 790, "down0/weight_grad"),
        (790, 840, "up0/weight_grad"),
        *((840 + k, 841 + k, f"{name}/update") for k, name in enumerate(("u0", "d0", "u1", "d1"))),
    ]
    assert found["tensor parallel"] == [(610, 690, "up1/input_grad/all_reduce")]


def test_with_sequence_parallelism_both_halves_run_beside_products() -> None:
    """A half of 40 bytes takes 40 ns; up1 gathers what down0 made, and again in the backward."""
    found = by_stream(run(TensorParallel(2, sequence_parallel=True).apply(pair(2)), 2))
    assert found["compute"][:7] == [
        (0, 50, "up0"),
        (50, 100, "down0"),
        (100, 140, "down0/reduce_scatter"),
        (140, 180, "down0/all_gather"),
        (180, 230, "up1"),
        (230, 280, "down1"),
        (280, 320, "down1/reduce_scatter"),
    ]
    assert found["tensor parallel"] == [
        (510, 550, "down0/all_gather_again"),
        (560, 600, "up1/input_grad/reduce_scatter"),
    ]


def test_with_replicas_gradients_are_summed_over_them_and_parts_last() -> None:
    """Tensor 2 x data 2: ranks 0 and 1 share layers, 0 and 2 sum gradients; what is whole is summed last."""
    graph = all_ranks(FULL, TensorParallel(2, sequence_parallel=True), DistributedDataParallel(2))
    assert graph.pins == ("gpu0", "gpu1", "gpu2", "gpu3")
    members: dict[str, set[str]] = {}
    for op in graph.in_communicators:
        name = graph.attributes[op]["communicator"]
        members.setdefault(name, set()).add(graph.pins[graph.pin_code[op]])
    assert members == {
        "tensor parallel 0": {"gpu0", "gpu1"},
        "tensor parallel 1": {"gpu2", "gpu3"},
        "data parallel 0": {"gpu0", "gpu2"},
        "data parallel 1": {"gpu1", "gpu3"},
    }
    ops = of_rank(graph)
    summed = sum(
        ops[name].attributes.get("nbytes", sum(ops[name].outputs))
        for name in ops
        if name[:-1] == "all_reduce"
    )
    own = read(graph).externals
    assert summed == sum(
        each.nbytes for name, each in own.items() if name.startswith("gpu0/") and "tokens" not in name
    )
    names = list(ops)
    assert (
        names.index("all_reduce0") < names.index("gradients/all_reduce") < names.index("embed.words/update")
    )
    assert {"gradients/all_reduce", "gradients/all_reduce:1"} <= {
        tensor.removeprefix("gpu0/") for name in ops if "update" in name for tensor, _ in ops[name].inputs
    }


# -- what is split --------------------------------------------------------------------------------


def test_users_name_columns_and_rows() -> None:
    graph = pair(2)
    with pytest.warns(WholeWarning, match="2 of 4 products stay whole"):
        found = of_rank(TensorParallel(2, split={"up1": "column", "down1": "row"}).apply(graph))
    assert [name for name, each in found.items() if "communicator" in each.attributes] == [
        "down1/all_reduce",
        "up1/input_grad/all_reduce",
    ]


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"nothing": "column"}, "no product with a weight has a name that matches nothing"),
        ({"(": "column"}, "must be a regular expression"),
        ({"up": "column", "up0": "row"}, "'up0' is both a column and a row"),
        ({"down0": "row"}, "no column leads to 'down0'"),
        ({"up": "colum"}, "split.up: .*must be one of column, row; found 'colum', did you mean 'column'"),
    ],
)
def test_wrong_names(split: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TensorParallel(2, split=split).apply(pair())


def test_what_cannot_be_split_stays_whole_and_is_named() -> None:
    with pytest.warns(
        WholeWarning, match=r"6 of 13 products .*'layer0.qkv': 4 heads cannot be shared by 8 ranks"
    ):
        graph = TensorParallel(8).apply(GPT.graph())
    assert exchanged(graph, "layer1") == {("forward", "all_reduce", BSH): 1}
    with pytest.raises(GraphError, match=r"nothing that could be split \('up0': its weight cannot be shared"):
        TensorParallel(7).apply(pair())
    b = GraphBuilder("norm between")
    b.input("x", 40), b.parameter("w", 80), b.parameter("v", 80)
    b.op("up", kind="matmul", inputs=["x", "w"], outputs=80)
    b.op("norm", kind="layer_norm", inputs=["up"], outputs=80)
    b.op("down", kind="matmul", inputs=["norm", "v"], outputs=40)
    b.op("loss", kind="reduce_mean", inputs=["down"], outputs=4)
    with pytest.raises(GraphError, match="nothing that could be split"):
        TensorParallel(2).apply(b.build())


def test_ranks_there_are_come_later() -> None:
    with pytest.raises(GraphError, match="tensor-parallel comes before the other rewrites for ranks"):
        all_ranks(pair(), DistributedDataParallel(2), TensorParallel(2))


# -- ranks together compute what one would --------------------------------------------------------


TOKENS = 4


def drawn(data: st.DataObject) -> tuple[Graph, dict[str, np.ndarray[Any, Any]]]:
    """Return a step of blocks with one to three columns, residuals, scales and biases; and its values."""
    b, rng = GraphBuilder("drawn"), np.random.default_rng(0)
    values: dict[str, np.ndarray[Any, Any]] = {}
    width = 4

    def given(name: str, *shape: int) -> str:
        values[name] = rng.standard_normal(shape)
        add = b.input if name == "x" else b.parameter
        return add(name, 4 * values[name].size)

    def op(name: str, kind: str, inputs: list[str], columns: int, flops: int = 0) -> str:
        return b.op(name, kind=kind, inputs=inputs, outputs=4 * TOKENS * columns, dtype="fp32", flops=flops)

    x = given("x", TOKENS, width)
    for k in range(data.draw(st.integers(1, 3))):
        inner = data.draw(st.sampled_from([4, 8]))
        if data.draw(st.booleans()):
            x = op(f"scale{k}", "mul", [x, given(f"s{k}", width)], width)
        columns = []
        for c in range(data.draw(st.integers(1, 3))):
            y = op(f"up{k}.{c}", "matmul", [x, given(f"u{k}.{c}", width, inner)], inner, 64)
            if data.draw(st.booleans()):
                y = op(f"bias{k}.{c}", "add", [y, given(f"b{k}.{c}", inner)], inner)
            columns.append(op(f"relu{k}.{c}", "relu", [y], inner) if data.draw(st.booleans()) else y)
        y = columns[0]
        for c, other in enumerate(columns[1:]):
            y = op(f"mix{k}.{c}", data.draw(st.sampled_from(["mul", "add"])), [y, other], inner)
        if data.draw(st.booleans()):  # of random numbers, which stay with it
            size = 4 * TOKENS * inner
            y = b.op(f"drop{k}", kind="dropout", inputs=[y], outputs=size, attributes={"stateful": True})
        y = op(f"down{k}", "matmul", [y, given(f"d{k}", inner, width)], width, 64)
        if data.draw(st.booleans()):
            y = op(f"offset{k}", "add", [y, given(f"o{k}", width)], width)
        x = op(f"add{k}", "add", [x, y], width) if data.draw(st.booleans()) else y
        x = op(f"tanh{k}", "tanh", [x], width)
    return TrainingRewrite().apply(b.build()), values


def compute(records: Records, values: list[dict[str, Any]]) -> None:
    """Run a program on several ranks in step: `values` of each rank get all that it makes."""
    for record in records.ops.values():
        read_ = [[of[tensor] for tensor, _ in record.inputs] for of in values]
        made = [
            _meet(record.kind, read_, r) if "communicator" in record.attributes else [_one(record, each, r)]
            for r, each in enumerate(read_)
        ]
        for of, results in zip(values, made, strict=True):
            for k, (result, nbytes) in enumerate(zip(results, record.outputs, strict=True)):
                assert nbytes in (4 * result.size, 0), record.name
                of[record.tensor(k)] = result


def _meet(kind: str, read_: list[list[Any]], rank: int) -> list[Any]:
    if kind == "all_gather":
        return [np.concatenate([each[0] for each in read_])]
    sums = [sum(each[1:], each[0]) for each in zip(*read_, strict=True)]
    return sums if kind == "all_reduce" else [np.split(each, len(read_))[rank] for each in sums]


def _one(record: OpEntry, x: list[Any], rank: int) -> Any:
    """Compute an op; of what is whole beside some tokens it takes those of the rank."""
    rows = min((len(each) for each in x if each.ndim == 2), default=0)
    if record.kind != "matmul" and rows < TOKENS:
        x = [each[rank * rows :][:rows] if each.ndim == 2 and len(each) > rows else each for each in x]
    if record.kind == "matmul":
        if record.phase == "F":
            return x[0] @ x[1]
        return x[0] @ x[1].T if record.phase == "I" else x[1].T @ x[0]
    if record.kind == "relu_grad":
        return x[0] * (x[1] > 0)
    if record.kind == "tanh_grad":
        return x[0] * (1 - x[1] ** 2)
    if record.kind in ("reduce_sum", "bias_add_grad"):
        return x[0].sum(axis=0)
    if record.kind in ("add", "add_n"):
        return sum(x[1:], x[0])
    one = {
        "relu": lambda a: a * (a > 0),
        "dropout": lambda a: a / 2,
        "tanh": np.tanh,
        "loss_grad": lambda a: a / 3,
        "mul": lambda *a: np.prod([*np.broadcast_arrays(*a)], axis=0),
    }
    return x[0] if record.kind == "sgd" else one[record.kind](*x)


@given(st.data())
@examples(40)
def test_gradients_are_those_of_one_device(data: st.DataObject) -> None:
    """Numbers instead of times: each rank gets its parts of weights, and all meet in their collectives."""
    graph, values = drawn(data)
    t, sequence = data.draw(st.sampled_from([2, 4])), data.draw(st.booleans())
    records = read(graph)
    alone = [dict(values)]
    compute(records, alone)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WholeWarning)
        split = TensorParallel(t, sequence).apply(graph)
    one = Records("one", of_rank(split), {})
    prefix = "gpu0/"
    for record in one.ops.values():
        record.name = record.name.removeprefix(prefix)
        record.inputs = [(tensor.removeprefix(prefix), d) for tensor, d in record.inputs]
    parts = {name[5:]: each.nbytes for name, each in read(split).externals.items() if name.startswith(prefix)}
    ranks: list[dict[str, Any]] = [{} for _ in range(t)]
    axis = {name: 0 if name[0] in "d" else -1 for name in values}
    for name, value in values.items():
        whole = parts[name] == 4 * value.size
        pieces = [value] * t if whole else np.split(value, t, axis[name])
        for of, piece in zip(ranks, pieces, strict=True):
            of[name] = piece
    compute(one, ranks)
    for name in values:
        if name != "x":
            found = [of[f"{name}/update"] for of in ranks]
            whole = parts[name] == 4 * values[name].size
            for each in [*found] if whole else [np.concatenate(found, axis[name])]:
                np.testing.assert_allclose(each, alone[0][f"{name}/update"], rtol=1e-9, atol=1e-9)


def test_what_is_kept_for_the_backward_falls() -> None:
    """Of what a layer makes in its forward a rank has a part; without sequence parallelism not of norms."""

    def kept(t: int, sequence: bool) -> Fraction:
        ops = of_rank(TensorParallel(t, sequence).apply(FULL))
        made = [each for name, each in ops.items() if name.startswith("layer1.") and each.phase == "F"]
        return Fraction(sum(sum(each.outputs) for each in made if "communicator" not in each.attributes), BSH)

    # norm1 1, qkv 3, attention 1, proj 1, add1 1, norm2 1, up 4, gelu 4, down 1, add2 1
    assert kept(2, False) == Fraction(12, 2) + 6
    assert kept(2, True) == Fraction(12 + 4, 2) + 2  # proj and down make whole sums, which are freed at once
