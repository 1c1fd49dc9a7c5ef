"""Training steps made of forward graphs, larger batches, and batch norms as one op."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from import_helpers import recorded_graph
from runs import checked

from devices.machine import make_machine
from policies.issue.ready_queue import ReadyQueue
from policies.rewrite.backward import TrainingRewrite
from policies.rewrite.batch import Batch
from policies.rewrite.prune import Prune
from policies.rewrite.records import OpEntry, read, write
from policies.rewrite.simplify import BatchNorm
from scenarios.builders.gpt import Gpt
from scenarios.importers import load_graph
from sim import Graph, GraphBuilder
from sim.base.errors import GraphError, InputError, UnknownNameError
from sim.graph.graph import Role
from studies.placements import CPU_AND_TWO_GPUS, compare_placements, training_step


def layers(ops: dict[str, dict[str, Any]], parameters: dict[str, int], x: int = 400) -> Graph:
    b = GraphBuilder("net")
    b.input("x", x)
    for name, nbytes in parameters.items():
        b.parameter(name, nbytes)
    for name, fields in ops.items():
        b.op(name, **{"outputs": 400, "dtype": "fp32", **fields})
    return b.build()


def records(g: Graph) -> dict[str, OpEntry]:
    return read(g).ops


def reads(g: Graph) -> dict[str, tuple[str, list[str]]]:
    """Return {op: (kind, inputs)}."""
    return {r.name: (r.kind, [t for t, _ in r.inputs]) for r in records(g).values()}


# -- rules, op by op ----------------------------------------------------------------------------------


def test_a_layer_worked_by_hand() -> None:
    """y = relu(x w + b): 100 elements, w 200, b 10."""
    mnk = {"m": 10, "n": 10, "k": 20}
    g = layers(
        {
            "p": {"kind": "matmul", "inputs": ["x", "w"], "flops": 4000, "attributes": mnk},
            "s": {"kind": "bias_add", "inputs": ["p", "b"], "flops": 100},
            "y": {"kind": "relu", "inputs": ["s"], "flops": 100},
        },
        {"w": 800, "b": 40},
        x=800,
    )  # fmt: skip
    step = TrainingRewrite().apply(g)
    assert reads(step) == {
        "p": ("matmul", ["x", "w"]),
        "s": ("bias_add", ["p", "b"]),
        "y": ("relu", ["s"]),
        "y/loss_grad": ("loss_grad", ["y"]),
        "y/grad": ("relu_grad", ["y/loss_grad", "y"]),
        "s/grad1_sum": ("bias_add_grad", ["y/grad"]),
        "p/weight_grad": ("matmul", ["y/grad", "x"]),
        "w/update": ("sgd", ["p/weight_grad", "w"]),
        "b/update": ("sgd", ["s/grad1_sum", "b"]),
    }
    made = records(step)
    assert {name: made[name].flops for name in reads(step)} == {
        "p": 4000,
        "s": 100,
        "y": 100,
        "y/loss_grad": 100,
        "y/grad": 100,
        "s/grad1_sum": 100,
        "p/weight_grad": 4000,
        "w/update": 400,
        "b/update": 20,
    }
    assert made["p/weight_grad"].attributes == {"m": 20, "n": 10, "k": 10}
    assert made["p/weight_grad"].outputs == (800,)
    assert (made["y/grad"].bytes_read, made["y/grad"].bytes_written) == (800, 400)
    assert (made["w/update"].bytes_read, made["w/update"].bytes_written) == (1600, 800)
    assert [made[n].phase for n in ("p", "y/grad", "p/weight_grad", "w/update")] == ["F", "I", "W", None]
    assert made["p"].after == [("w/update", 1)]
    assert made["s"].after == [("b/update", 1)]


def test_the_backward_of_a_recurrent_op_is_twice_its_forward() -> None:
    """Each product by its input and by its weights, whatever the number of parameters."""
    ops = {"y": {"kind": "lstm", "inputs": ["x", "w", "r", "b"], "flops": 1000}}
    made = records(TrainingRewrite().apply(layers(ops, {"w": 400, "r": 400, "b": 40})))
    assert made["y/grad"].flops == 2000


def test_gradients_of_dropout_read_its_mask() -> None:
    """Here 25 bytes beside the 100 of the result."""
    ops: dict[str, Any] = {
        "a": {"kind": "matmul", "inputs": ["x", "w"], "outputs": 100},
        "y": {"kind": "dropout", "inputs": ["a"], "outputs": 100, "bytes_read": 100, "bytes_written": 125},
    }
    for written, moved in ((125, 125), (0, 100)):  # 0: the op says nothing of a mask
        ops["y"]["bytes_written"] = written
        made = records(TrainingRewrite().apply(layers(ops, {"w": 400})))["y/grad"]
        assert (made.kind, made.bytes_read, made.bytes_written) == ("dropout", moved, 100)


def test_gradients_of_views_have_the_size_of_what_is_viewed() -> None:
    """Those of a split are joined, that of a slice is padded, those of copies are summed up."""
    view = {"kind": "identity", "attributes": {"view_of": 0}}
    g = layers(
        {
            "a": {"kind": "matmul", "inputs": ["x", "w"], "flops": 10},
            "left": {**view, "inputs": ["a"], "outputs": 100},
            "right": {**view, "inputs": ["a"], "outputs": 300},
            "c": {"kind": "concat", "inputs": ["right", "left"]},
            "part": {**view, "inputs": ["c"], "outputs": 80},
            "copies": {**view, "inputs": ["b"], "outputs": 80},
            "y": {"kind": "add", "inputs": ["part", "copies"], "outputs": 80, "flops": 20},
        },
        {"w": 400, "b": 40},
    )
    step = TrainingRewrite().apply(g)
    made = records(step)
    backward = {name: reads(step)[name] for name in step.op_names[len(g) + 1 :] if "update" not in name}
    assert backward == {
        "copies/grad0_sum": ("reduce_sum", ["y/loss_grad"]),
        "c/grad_pad": ("pad", ["y/loss_grad"]),
        "c/grad": ("split", ["c/grad_pad"]),
        "a/grad_concat": ("concat", ["c/grad", "c/grad:1"]),
        "a/weight_grad": ("matmul", ["a/grad_concat", "x"]),
    }
    sizes = {name: (made[name].flops, made[name].bytes_read, made[name].bytes_written) for name in backward}
    assert sizes["copies/grad0_sum"] == (20, 80, 40)
    assert (sizes["c/grad_pad"], sizes["a/grad_concat"]) == ((0, 80, 400), (0, 400, 400))


def test_the_gradient_of_a_concat_of_pytorch_is_viewed() -> None:
    ops = {
        "a": {"kind": "matmul", "inputs": ["x", "w"], "outputs": 100},
        "b": {"kind": "matmul", "inputs": ["x", "v"], "outputs": 300},
        "y": {"kind": "concat", "inputs": ["a", "b"], "attributes": {"aten": "aten.cat.default"}},
    }
    made = records(TrainingRewrite().apply(layers(ops, {"w": 400, "v": 400})))
    views = [made[f"y/grad{k}"] for k in (0, 1)]
    assert [(each.kind, each.reads, each.outputs) for each in views] == [
        ("identity", ["y/loss_grad"], (100,)),
        ("identity", ["y/loss_grad"], (300,)),
    ]
    assert [(each.bytes_read, each.bytes_written, each.attributes["view_of"]) for each in views] == [
        (0, 0, 0)
    ] * 2
    assert made["b/weight_grad"].reads == ["y/grad1", "x"]


def test_the_gradient_of_a_resize_adds_every_tap() -> None:
    """Four taps of a multiply-add each of a bilinear one; the nearest adds each of the 100 elements."""
    for flops, found in ((8 * 100, 8 * 100), (0, 100)):
        ops = {
            "a": {"kind": "matmul", "inputs": ["x", "w"], "outputs": 100},
            "y": {"kind": "resize", "inputs": ["a"], "outputs": 400, "flops": flops},
        }
        assert records(TrainingRewrite().apply(layers(ops, {"w": 400})))["y/grad"].flops == found


def test_the_gradient_of_a_table_reads_all_indices() -> None:
    """But no further table, whose rows the same op adds."""
    ops = {"y": {"kind": "gather", "inputs": ["w", "x", "j", "positions"], "outputs": 400}}
    b = GraphBuilder("rows and columns")
    b.input("x", 80), b.input("j", 80), b.parameter("w", 4000), b.parameter("positions", 400)
    for name, facts in ops.items():
        b.op(name, **facts)
    made = records(TrainingRewrite().apply(b.build()))["y/weight_grad"]
    assert (made.reads, made.bytes_read) == (["y/loss_grad", "x", "j"], 400 + 2 * 80)


@pytest.mark.parametrize(
    ("kind", "inputs"), [("where", ["m", "a", "x"]), ("scatter_elements", ["x", "m", "a"])]
)
def test_gradients_are_placed_by_the_condition_or_the_indices_alone(kind: str, inputs: list[str]) -> None:
    ops = {
        "a": {"kind": "matmul", "inputs": ["x", "w"], "flops": 10},
        "m": {"kind": "greater", "inputs": ["x"], "outputs": 100, "flops": 100},
        "y": {"kind": kind, "inputs": inputs},
    }
    made = records(TrainingRewrite().apply(layers(ops, {"w": 400})))["y/grad"]
    assert (made.reads, made.bytes_read, made.bytes_written) == (["y/loss_grad", "m"], 500, 400)


def test_gradients_of_what_is_read_twice_are_summed() -> None:
    g = layers(
        {
            "a": {"kind": "matmul", "inputs": ["x", "w"], "flops": 10},
            "l": {"kind": "relu", "inputs": ["a"], "flops": 1},
            "r": {"kind": "neg", "inputs": ["a"], "flops": 1},
            "y": {"kind": "sub", "inputs": ["l", "r"], "flops": 1},
        },
        {"w": 400},
    )
    made = records(TrainingRewrite().apply(g))
    assert made["y/grad1_neg"].inputs == [("y/loss_grad", 0)]
    assert made["a/grad_sum"].kind == "add_n"
    assert made["a/grad_sum"].inputs == [("r/grad", 0), ("l/grad", 0)]
    assert made["a/grad_sum"].flops == 100


def test_gradients_of_an_expansion_that_is_read_twice_are_summed_twice() -> None:
    g = layers(
        {
            "copies": {"kind": "identity", "attributes": {"view_of": 0}, "inputs": ["b"], "outputs": 80},
            "y": {"kind": "mul", "inputs": ["copies", "copies"], "outputs": 80, "flops": 20},
        },
        {"b": 40},
    )
    made = records(TrainingRewrite().apply(g))
    assert (made["copies/grad_sum"].kind, made["copies/grad0_sum"].kind) == ("add_n", "reduce_sum")
    assert made["copies/grad0_sum"].inputs == [("copies/grad_sum", 0)]


def test_a_product_whose_weight_is_not_named() -> None:
    """Its input has a gradient nevertheless, which reads what comes back alone."""
    ops: dict[str, dict[str, Any]] = {
        "a": {"kind": "matmul", "inputs": ["x", "w"]},
        "b": {"kind": "matmul", "inputs": ["a"]},
    }
    found = reads(TrainingRewrite().apply(layers(ops, {"w": 400})))
    assert found["b/input_grad"] == ("matmul", ["b/loss_grad"])


def test_a_weight_that_is_used_twice_is_updated_once() -> None:
    g = layers(
        {
            "a": {"kind": "matmul", "inputs": ["x", "w"], "flops": 10},
            "b": {"kind": "matmul", "inputs": ["a", "w"], "flops": 10},
        },
        {"w": 400},
    )
    made = records(TrainingRewrite().apply(g))
    assert made["w/grad_sum"].inputs == [("b/weight_grad", 0), ("a/weight_grad", 0)]
    assert made["w/update"].inputs == [("w/grad_sum", 0), ("w", 0)]
    assert made["a"].after == made["b"].after == [("w/update", 1)]


@pytest.mark.parametrize(
    ("optimizer", "states", "flops"),
    [("sgd", [], 2), ("momentum", ["velocity"], 4), ("adam", ["first_moment", "second_moment"], 14)],
)
def test_what_an_optimizer_keeps(optimizer: str, states: list[str], flops: int) -> None:
    g = layers({"y": {"kind": "matmul", "inputs": ["x", "w"], "flops": 10}}, {"w": 400})
    step = TrainingRewrite(optimizer=optimizer).apply(g)
    update = records(step)["w/update"]
    assert [t for t, _ in update.inputs] == ["y/weight_grad", *(f"w/{s}" for s in states), "w"]
    assert (update.flops, update.bytes_read) == (100 * flops, 400 * (2 + len(states)))
    assert update.bytes_written == 400 * (1 + len(states))
    assert [*step.external_names] == ["x", "w", *(f"w/{s}" for s in states)]


def test_frozen_parameters_and_what_leads_to_them_alone_get_none() -> None:
    g = layers(
        {
            "a": {"kind": "matmul", "inputs": ["x", "w"], "flops": 10},
            "b": {"kind": "matmul", "inputs": ["a", "v"], "flops": 10},
        },
        {"w": 400, "v": 400},
    )
    made = reads(TrainingRewrite(frozen=["w"]).apply(g))
    assert set(made) == {"a", "b", "b/loss_grad", "b/weight_grad", "v/update"}


def test_measured_durations_are_taken_over() -> None:
    g = layers(
        {
            "a": {"kind": "matmul", "inputs": ["x", "w"], "duration_ns": 10, "duration_by_kind": {"cpu": 70}},
            "y": {"kind": "sigmoid", "inputs": ["a"], "duration_ns": 5, "flops": 400},
        },
        {"w": 400},
    )
    made = records(TrainingRewrite().apply(g))
    assert (made["a/weight_grad"].duration_ns, made["a/weight_grad"].duration_by_kind) == (10, {"cpu": 70})
    assert made["y/grad"].duration_ns == 4  # 3/4 of 5
    assert made["y/grad"].flops == 300


@pytest.mark.parametrize(
    ("graph", "options", "message"),
    [
        (layers({"a": {}}, {}), {}, "must be one; found none"),
        (layers({"a": {"inputs": ["w"]}, "b": {"inputs": ["w"]}}, {"w": 4}), {}, "found 'a', 'b'; name it"),
        (layers({"a": {"inputs": ["x"]}}, {"w": 4}), {"loss": "a"}, "no parameter that could be"),
        (layers({"p": {}, "s": {"kind": "switch", "inputs": ["x", "p"]}}, {}), {}, "has control flow"),
        (
            layers({"a": {"inputs": ["x", "w"], "attributes": {"no_gradient": [0, 2]}}}, {"w": 4}), {},
            "op 'a' has no_gradient 2, which should be numbers of its 2 inputs, counted from 0",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_trained(graph: Graph, options: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        TrainingRewrite(**options).apply(graph)


def test_unknown_words() -> None:
    g = layers({"y": {"inputs": ["w"]}}, {"w": 4})
    with pytest.raises(InputError, match="optimizer must be one of sgd, momentum, adam; found 'lamb'"):
        TrainingRewrite(optimizer="lamb")
    with pytest.raises(InputError, match="frozen must be a list of names; found 'w'"):
        TrainingRewrite(frozen="w")
    with pytest.raises(UnknownNameError, match="did you mean 'w'"):
        TrainingRewrite(frozen=["ww"]).apply(g)
    with pytest.raises(UnknownNameError, match="unknown op or tensor 'loss'"):
        TrainingRewrite(loss="loss").apply(g)


# -- any graph ----------------------------------------------------------------------------------------

TWO = ["matmul", "add", "mul", "div", "sub", "concat", "squared_difference", "unheard_of"]
ONE = ["relu", "reshape", "max_pool", "softmax", "reduce_mean", "batch_norm", "gelu", "stop_gradient"]


@examples(50)
@given(data=st.data(), n=st.integers(1, 10))
def test_every_parameter_that_leads_to_the_loss_is_updated_once(data: st.DataObject, n: int) -> None:
    b = GraphBuilder("random")
    b.input("x", 400)
    tensors = ["x"]
    for i in range(n):
        w = b.parameter(f"w{i}", data.draw(st.sampled_from([4, 400])))
        kind = data.draw(st.sampled_from([*ONE, *TWO]))
        first, second = (data.draw(st.sampled_from([*tensors, w])) for _ in range(2))
        inputs = [first, second] if kind in TWO else [first]
        tensors.append(b.op(f"op{i}", kind=kind, inputs=inputs, outputs=400, flops=100))
    b.op("loss", kind="add_n", inputs=tensors, outputs=400, flops=100)
    g = b.build()
    trained = {t for t in g.external_names if t != "x"}
    stops = {name for name in g.op_names if g.kind(g.index(name)) == "stop_gradient"}
    leads: set[str] = set()
    stack = ["loss"]
    while stack:
        tensor = stack.pop()
        if tensor in leads or tensor in stops:
            continue
        leads.add(tensor)
        if tensor in g.op_names:
            stack += [t for t, _ in read(g).ops[tensor].inputs]
    if not leads & trained:
        with pytest.raises(GraphError, match="no parameter that could be trained"):
            TrainingRewrite(loss="loss").apply(g)
        return
    step = TrainingRewrite(loss="loss").apply(g)
    updated = Counter(r.name.removesuffix("/update") for r in records(step).values() if r.kind == "sgd")
    assert updated == Counter(leads & trained)
    forward = {name: record.inputs for name, record in read(g).ops.items()}
    assert {name: records(step)[name].inputs for name in forward} == forward
    for record in records(step).values():  # a gradient has the size of what it is a gradient of
        if record.kind == "sgd":
            assert read(step).nbytes(record.inputs[0][0]) == read(g).nbytes(record.inputs[-1][0])
    checked(step, make_machine({"devices": {"gpu0": {"preset": "h200-sxm"}}}), ReadyQueue(), iterations=2)


# -- against what others have made ----------------------------------------------------------------------


def by_kind(g: Graph) -> dict[str, tuple[int, int]]:
    """Return {kind: (ops, flop)}."""
    ops: Counter[str] = Counter()
    flops: Counter[str] = Counter()
    for op in range(len(g)):
        ops[g.kind(op)] += 1
        flops[g.kind(op)] += int(g.flops[op])
    return {kind: (ops[kind], flops[kind]) for kind in ops}


def test_the_recorded_step_of_resnet_50() -> None:
    """The forward that TensorFlow recorded within a step, differentiated: kind by kind what it recorded."""
    recorded = recorded_graph("tensorflow/ResNet50_train_b32.json.gz")
    forward = read(recorded)
    for record in forward.ops.values():  # from one iteration to the next
        record.after = [(name, distance) for name, distance in record.after if not distance]
    (loss,) = (r.name for r in forward.ops.values() if r.kind == "sparse_softmax_cross_entropy")
    step = TrainingRewrite(loss=loss).apply(Prune([loss]).apply(write(forward)))
    ours, theirs = by_kind(step), by_kind(recorded)
    same = ["conv", "conv_weight_grad", "matmul", "add_n", "relu", "relu_grad", "bias_add", "bias_add_grad"]
    same += ["reduce_sum", "squared_difference", "rsqrt", "rsqrt_grad", "max_pool", "max_pool_grad", "sub"]
    assert {kind: ours[kind] for kind in same} == {kind: theirs[kind] for kind in same}
    # TensorFlow also made the gradient of the images, which nobody reads.
    first = next(r for r in records(step).values() if r.kind == "conv")
    assert ours["conv_input_grad"] == (52, theirs["conv_input_grad"][1] - first.flops)
    # It updates the moving averages op by op besides.
    assert int(step.flops.sum()) + first.flops == pytest.approx(int(recorded.flops.sum()), rel=1e-3)
    moved = [int(g.bytes_read.sum() + g.bytes_written.sum()) for g in (step, recorded)]
    assert moved[0] == pytest.approx(moved[1], rel=6e-3)
    assert ours["sgd"][0] == theirs["assign_sub"][0]


def test_a_decoder_that_was_built_for_training() -> None:
    """Our GPT, beside a step that was written by hand before the rewrite made it: kind → ops, flop."""
    small = Gpt(model="gpt", layers=2, hidden=64, heads=4, sequence=16, vocabulary=100, batch=2)
    found = by_kind(small.model_copy(update={"optimizer": "adam"}).graph())
    by_hand = {
        "matmul": (19, 13_811_712),
        "gelu_grad": (2, 180_224),
        "layer_norm_grad": (5, 133_120),
        "bias_add_grad": (8, 36_864),
        "embedding_grad": (1, 2_048),
        "reduce_sum": (1, 2_048),
    }
    assert {kind: found[kind] for kind in by_hand} == by_hand
    assert found["adam"][1] == 1_505_280
    assert found["attention_grad"][1] == pytest.approx(700_416, rel=0.03)


@pytest.mark.parametrize(
    ("dtype", "optimizer", "state"),
    [("fp32", "adam", 2 * 400), ("bf16", "adam", 3 * 800), ("bf16", "momentum", 2 * 800), ("bf16", "sgd", 0)],
)
def test_states_of_16_bit_weights_are_in_fp32_beside_a_copy(dtype: str, optimizer: str, state: int) -> None:
    """400 bytes of weights; 4 + 4 + 4 bytes for 2 of bf16 (arXiv 1910.02054, 3.1)."""
    b = GraphBuilder("product")
    b.input("x", 400), b.parameter("w", 400)
    b.op("a", kind="matmul", inputs=["x", "w"], outputs=400, flops=1_000, dtype=dtype)
    step = TrainingRewrite(optimizer=optimizer).apply(b.build())
    update = step.index("w/update")
    assert int(step.tensor_nbytes[step.tensor_role == Role.PARAMETER].sum()) == 400 + state
    assert (step.bytes_read[update], step.bytes_written[update]) == (800 + state, 400 + state)


@pytest.mark.parametrize("of_cast", ["fp32", "bf16"])
def test_weights_in_fp32_that_are_cast_to_16_bits_need_no_copy(of_cast: str) -> None:
    """100 elements of 4 bytes: two moments, whether a cast says what it reads or what it makes."""
    b = GraphBuilder("autocast")
    b.input("x", 200), b.parameter("w", 400)
    b.op("c", kind="cast", inputs=["w"], outputs=200, dtype=of_cast)
    b.op("a", kind="matmul", inputs=["x", "c"], outputs=200, flops=1_000, dtype="bf16")
    step = TrainingRewrite(optimizer="adam").apply(b.build())
    update = step.index("w/update")
    assert int(step.tensor_nbytes[step.tensor_role == Role.PARAMETER].sum()) == 3 * 400
    assert (step.flops[update], step.bytes_read[update]) == (14 * 100, 4 * 400)
    assert step.dtypes[int(step.dtype_code[update])] == "fp32"


@pytest.mark.parametrize("kind", ["gather", "gather_elements", "scatter_elements"])
def test_indices_are_not_trained(kind: str) -> None:
    """An index may be a buffer of the module, as in the biases by relative position of a Swin transformer."""
    b = GraphBuilder("by index")
    b.parameter("w", 400), b.parameter("index", 80)
    b.op("a", kind=kind, inputs=["w", "index"], outputs=[40])
    assert [name for name in TrainingRewrite().apply(b.build()).op_names if "/update" in name] == ["w/update"]


def test_gradients_of_images_have_a_format() -> None:
    """That of a bias is no image."""
    b = GraphBuilder("images")
    b.input("x", 400), b.parameter("w", 80), b.parameter("bias", 40), b.parameter("scale", 40)
    nhwc = {"data_format": "NHWC"}
    b.op("conv", kind="conv", inputs=["x", "w", "bias"], outputs=400, attributes=nhwc)
    b.op("norm", kind="batch_norm", inputs=["conv", "scale"], outputs=400, attributes=nhwc)
    step = TrainingRewrite().apply(b.build())
    told = [name for op, name in enumerate(step.op_names) if "data_format" in step.attributes.get(op, {})]
    assert told == ["conv", "norm", "norm/grad", "conv/weight_grad"]


def test_gradients_of_a_sum_are_cast_to_the_types_of_its_operands() -> None:
    """100 elements, one operand in 16 bits: half the bytes are no axis that was stretched."""
    b = GraphBuilder("residual")
    b.input("x", 200), b.parameter("w", 200), b.parameter("v", 400)
    b.op("a", kind="mul", inputs=["x", "w"], outputs=200, flops=100, dtype="bf16")
    b.op("s", kind="add", inputs=["a", "v"], outputs=400, flops=100, dtype="fp32")
    step = TrainingRewrite().apply(b.build())
    cast = step.index("s/grad0_cast")
    assert (step.kind(cast), step.bytes_read[cast], step.bytes_written[cast]) == ("cast", 400, 200)


@pytest.mark.parametrize("times", [2, 32])
def test_a_larger_batch_is_what_the_importer_says(root: Path, times: int) -> None:
    path = root / "scenarios" / "examples" / "graphs" / "inception_v1.json.gz"
    ours, theirs = Batch(times).apply(load_graph(path)), load_graph(path, batch=times)
    for column in ("flops", "bytes_read", "bytes_written", "tensor_nbytes"):
        assert getattr(ours, column).tolist() == getattr(theirs, column).tolist()


def test_a_measured_op_has_no_duration_at_another_batch() -> None:
    g = layers({"a": {"inputs": ["x"], "duration_ns": 10}}, {})
    with pytest.raises(GraphError, match="op 'a' has a duration"):
        Batch(2).apply(g)
    assert Batch(1).apply(g) is g


def written_out(gamma: bool) -> Graph:
    vectors = dict.fromkeys(["beta", "mean", "var", "eps", *(["gamma"] if gamma else [])], 40)
    scale = {"g": {"kind": "mul", "inputs": ["r", "gamma"], "outputs": 40}} if gamma else {}
    s = "g" if gamma else "r"
    ops: dict[str, dict[str, Any]] = {
        "v": {"kind": "add", "inputs": ["var", "eps"], "outputs": 40},
        "r": {"kind": "rsqrt", "inputs": ["v"], "outputs": 40},
        **scale,
        "m": {"kind": "mul", "inputs": ["x", s]},
        "q": {"kind": "mul", "inputs": ["mean", s], "outputs": 40},
        "d": {"kind": "sub", "inputs": ["beta", "q"], "outputs": 40},
        "y": {"kind": "add", "inputs": ["m", "d"]},
        "z": {"kind": "relu", "inputs": ["y"]},
    }
    return layers(ops, vectors)


@pytest.mark.parametrize("gamma", [False, True])
def test_a_batch_norm_that_is_written_out(gamma: bool) -> None:
    g = BatchNorm().apply(written_out(gamma))
    vectors = ["gamma"] * gamma + ["beta", "mean", "var"]
    assert reads(g) == {"y": ("batch_norm", ["x", *vectors]), "z": ("relu", ["y"])}
    assert records(g)["y"].flops == 200
    assert records(g)["y"].bytes_read == 400 + 40 * len(vectors)
    step = records(TrainingRewrite().apply(g))
    assert step["y"].flops == 700  # with the statistics of the batch
    assert step["y/grad"].kind == "batch_norm_grad"
    assert step["y/grad"].flops == 900
    trained = {name.removesuffix("/update") for name in step if name.endswith("/update")}
    assert trained == set(vectors) - {"mean", "var"}


def test_what_others_read_stays() -> None:
    g = written_out(False)
    forward = read(g)
    forward.ops["other"] = OpEntry("other", "neg", [("q", 0)], [], (40,))
    kept = reads(BatchNorm().apply(write(forward)))
    assert set(kept) == {"v", "r", "q", "y", "z", "other"}
    del forward.ops["q"].inputs[1]
    assert "batch_norm" not in {kind for kind, _ in reads(BatchNorm().apply(write(forward))).values()}


@pytest.mark.slow
def test_inception_v3_as_a_step_of_training(data_dir: Path) -> None:
    """94 convolutions with a batch norm each; over a CPU and two GPUs beside the bound."""
    forward = load_graph(data_dir / "tensorflow" / "InceptionV3_infer_b1.json.gz")
    step = training_step(forward, 32)
    kinds = by_kind(step)
    counts = [kinds[k][0] for k in ("conv", "conv_input_grad", "conv_weight_grad", "batch_norm_grad", "sgd")]
    assert counts == [94, 93, 94, 94, 2 * 94 + 2]
    assert kinds["conv"][1] == kinds["conv_weight_grad"][1] == 32 * by_kind(forward)["conv"][1]
    assert kinds["batch_norm"][1] == Fraction(7, 2) * kinds["relu"][1] * 2
    machine = compare_placements(step, make_machine(CPU_AND_TWO_GPUS), budget=6).set_index("placement")
    makespan = machine["makespan_ms"]
    assert (makespan >= machine["bound_ms"]).all()
    assert makespan["auto-tuned"] <= makespan.min()
    assert training_step(step) is step
