"""Sizes of ops: the same attributes from every source and batch; told where flop or bytes disagree."""

from __future__ import annotations

import json
import math
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from policies.rewrite.records import read
from scenarios.builders.gpt import Gpt
from scenarios.importers import load_graph
from scenarios.importers.execution_graph import is_sized, sizes_of
from scenarios.importers.graph_json import is_straight, slope_between
from scenarios.importers.tensorflow_json import import_tensorflow_json
from scenarios.ops.attributes import computed_in, stored_in
from scenarios.ops.op_costs import warn_of_contradictions
from scenarios.ops.op_formulas import OpFacts, TensorFacts, measured_shape
from scenarios.run.load import load_scenario, read_scenario
from scenarios.run.prepare_job import job_of
from sim import GraphBuilder
from sim.base.errors import ScenarioError, UnknownNameError
from sim.graph.attributes import SIZES
from sim.graph.graph import Graph, Role


def tensor(*shape: int) -> TensorFacts:
    return TensorFacts(shape, 4 * math.prod(shape))


def sizes(kind: str, inputs: Any, *outputs: Any, **attributes: Any) -> dict[str, Any]:
    given = tuple(None if shape is None else tensor(*shape) for shape in inputs)
    return measured_shape(OpFacts(kind, given, tuple(tensor(*shape) for shape in outputs), attributes))


def of(graph: Graph, name: str) -> dict[str, Any]:
    found = graph.attributes.get(graph.index(name), {})
    return {key: found[key] for key in found if key in SIZES}


# -- by hand --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "output", "expected"),
    [
        ([(2, 3, 5), (5, 7)], (2, 3, 7), {"m": 6, "n": 7, "k": 5}),
        ([(3, 5), (7, 5)], (3, 7), {"m": 3, "n": 7, "k": 5, "transposed": True}),
        ([(2, 3, 5), (2, 5, 7)], (2, 3, 7), {"m": 3, "n": 7, "k": 5, "batch": 2}),
        ([(2, 4, 3, 5), (1, 4, 5, 7)], (2, 4, 3, 7), {"m": 6, "n": 7, "k": 5, "batch": 4}),
        ([(2, 3, 5), (1, 5, 7)], (2, 3, 7), {"m": 6, "n": 7, "k": 5, "batch": 1}),
        ([(5,), (5, 7)], (7,), {"m": 1, "n": 7, "k": 5}),
        ([(3, 5), (5,)], (3,), {"m": 3, "n": 1, "k": 5, "batch": 1}),
    ],
)
def test_a_product_has_one_right_matrix_or_a_batch_of_them(inputs: Any, output: Any, expected: Any) -> None:
    assert sizes("matmul", inputs, output) == expected


def test_an_einsum_of_two_is_a_batch_of_products() -> None:
    scores = sizes("einsum", [(2, 4, 3, 5), (2, 4, 7, 5)], (2, 4, 3, 7), equation="bhqd,bhkd->bhqk")
    assert scores == {"m": 3, "n": 7, "k": 5, "batch": 8}
    dots = sizes("einsum", [(2, 3, 5), (5, 7)], (2, 3, 7), equation="...ik,kj->...ij")
    assert math.prod(dots[key] for key in ("m", "n", "k", "batch")) == 2 * 3 * 5 * 7
    assert sizes("einsum", [(2, 4, 3, 5)], (2, 4), equation="abcd->ab") == {}


def test_attention_says_its_past_its_groups_and_its_mask() -> None:
    q, kv, past = (2, 8, 1, 4), (2, 2, 1, 4), (2, 2, 15, 4)
    found = sizes("attention", [q, kv, kv, None, past], q, is_causal=1)
    expected = {"batch": 2, "seq_len": 1, "kv_len": 16, "heads": 8, "kv_heads": 2, "head_dim": 4}
    assert found == {**expected, "causal": True}
    flat = sizes(
        "attention", [(2, 16, 32), (2, 16, 8), (2, 16, 8)], (2, 16, 32), q_num_heads=8, kv_num_heads=2
    )
    assert flat == {**expected, "seq_len": 16, "causal": False}
    assert sizes("attention", [q, q, q], q, window=4)["window"] == 4


CONV = {"batch": 2, "in_channels": 4, "out_channels": 8, "input_shape": [9, 9], "kernel_shape": [3, 3]}
CONV |= {"strides": [2, 2], "pads": [1, 1, 1, 1], "dilations": [1, 1], "group": 2}


@pytest.mark.parametrize("stated", [{}, {"strides": [2, 2], "pads": [1, 1, 1, 1]}, {"strides": [2]}])
def test_a_convolution_has_the_same_sizes_in_every_layout_and_in_its_gradients(stated: Any) -> None:
    x, w, y = (2, 4, 9, 9), (8, 2, 3, 3), (2, 8, 5, 5)
    assert sizes("conv", [x, w], y, **stated) == CONV
    assert sizes("conv_grad", [y, x, w], **stated) == CONV
    x, w, y = (2, 9, 9, 4), (3, 3, 2, 8), (2, 5, 5, 8)
    stated = {**stated, "channels_last": True}
    assert sizes("conv", [x, w], y, **stated) == CONV
    assert sizes("conv_input_grad", [(4,), w, y], x, **stated) == CONV
    assert sizes("conv_weight_grad", [x, (4,), y], w, **stated) == CONV
    depthwise = sizes("depthwise_conv", [x, (3, 3, 4, 2)], y, **stated)
    assert depthwise == {**CONV, "group": 4}


def test_a_recurrent_op_has_the_product_of_a_step() -> None:
    w, r = (2, 4 * 16, 8), (2, 4 * 16, 16)
    step = {"m": 3, "n": 4 * 16, "k": 8 + 16, "seq_len": 7, "batch": 2}
    assert sizes("lstm", [(7, 3, 8), w, r], (7, 2, 3, 16)) == step
    assert sizes("lstm", [(3, 7, 8), w, r], (3, 7, 2, 16), layout=1) == step


def test_transposed_convolutions_and_pools() -> None:
    up = sizes("conv_transpose", [(2, 8, 5, 5), (8, 2, 2, 2)], (2, 4, 10, 10), strides=[2, 2])
    assert up == {
        "batch": 2,
        "in_channels": 8,
        "out_channels": 4,
        "input_shape": [5, 5],
        "kernel_shape": [2, 2],
        "strides": [2, 2],
        "pads": [0] * 4,
        "dilations": [1, 1],
        "group": 2,
    }
    pool = {**CONV, "out_channels": 4, "group": 4}
    stated = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    assert sizes("max_pool", [(2, 4, 9, 9)], (2, 4, 5, 5), **stated) == pool
    assert sizes("max_pool_grad", [(2, 4, 9, 9), (2, 4, 5, 5), (2, 4, 5, 5)], (2, 4, 9, 9), **stated) == pool
    whole = sizes("global_average_pool", [(2, 4, 9, 7)], (2, 4, 1, 1))
    assert (whole["kernel_shape"], whole["pads"]) == ([9, 7], [0] * 4)


@pytest.mark.parametrize(
    ("kind", "inputs", "output", "attributes", "expected"),
    [
        ("softmax", [(2, 3, 5)], (2, 3, 5), {}, (6, 5)),
        ("softmax", [(2, 3, 5)], (2, 3, 5), {"axis": 1}, (10, 3)),
        ("layer_norm", [(2, 3, 5)], (2, 3, 5), {"axis": -2}, (2, 15)),
        ("layer_norm_grad", [(2, 3, 5), (2, 3, 5), (2, 5)], (2, 3, 5), {}, (6, 5)),
        ("rms_norm", [(6, 5)], (6, 5), {}, (6, 5)),
        ("group_norm", [(2, 6, 4, 4)], (2, 6, 4, 4), {"num_groups": 3}, (6, 32)),
        ("instance_norm", [(2, 6, 4, 4)], (2, 6, 4, 4), {}, (12, 16)),
        ("batch_norm", [(2, 6, 4, 4)], (2, 6, 4, 4), {}, (32, 6)),
        ("batch_norm", [(2, 4, 4, 6)], (2, 4, 4, 6), {"channels_last": True}, (32, 6)),
        ("sparse_softmax_cross_entropy", [(2, 3, 50), (2, 3)], (1,), {}, (6, 50)),
        ("softmax_cross_entropy", [(2, 50, 3), (2, 3)], (1,), {}, (6, 50)),
        ("reduce_mean", [(2, 6, 4, 4)], (2, 6, 1, 1), {}, (12, 16)),
        ("bias_add_grad", [(2, 3, 5)], (5,), {}, (6, 5)),
        ("gather", [(1000, 6), (4, 5)], (4, 5, 6), {}, (20, 6)),
        ("embedding_grad", [(4, 5), (4, 5, 6)], (1000, 6), {}, (20, 6)),
    ],
)
def test_rows_and_columns(kind: str, inputs: Any, output: Any, attributes: Any, expected: Any) -> None:
    assert sizes(kind, inputs, output, **attributes) == dict(zip(("rows", "columns"), expected, strict=True))


def test_what_bytes_tell_has_no_sizes() -> None:
    assert sizes("relu", [(2, 3)], (2, 3)) == sizes("transpose", [(2, 3)], (3, 2)) == {}
    assert sizes("softmax", [()], ()) == sizes("reduce_sum", [(0, 3)], (0,)) == {}


# -- from each source -----------------------------------------------------------------------------


def onnx_block(onnx: Any, batch: int) -> Any:
    """Convolution, pool, product by a weight, product of activations, softmax."""
    helper, float_ = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", strides=[2, 2], pads=[1, 1, 1, 1], group=2),
        helper.make_node("MaxPool", ["c"], ["p"], "pool", kernel_shape=[2, 2], strides=[1, 1]),
        helper.make_node("MatMul", ["p", "v"], ["l"], "linear"),
        helper.make_node("Transpose", ["l"], ["t"], "turn", perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["l", "t"], ["s"], "scores"),
        helper.make_node("Softmax", ["s"], ["y"], "softmax"),
    ]
    weights = [("w", (8, 2, 3, 3)), ("v", (4, 6))]
    made = [helper.make_tensor(name, float_, shape, [0.0] * math.prod(shape)) for name, shape in weights]
    ends = [helper.make_tensor_value_info(n, float_, s) for n, s in (("x", (batch, 4, 9, 9)), ("y", None))]
    graph = helper.make_graph(nodes, "block", ends[:1], ends[1:], made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def onnx_sizes(b: int) -> dict[str, dict[str, Any]]:
    pool = {**CONV, "batch": b, "in_channels": 8, "group": 8, "input_shape": [5, 5], "kernel_shape": [2, 2]}
    return {
        "conv": {**CONV, "batch": b},
        "pool": {**pool, "strides": [1, 1], "pads": [0] * 4},
        "linear": {"m": b * 8 * 4, "n": 6, "k": 4},
        "turn": {},
        "scores": {"batch": b * 8, "m": 4, "n": 4, "k": 6},
        "softmax": {"rows": b * 8 * 4, "columns": 4},
    }


@pytest.mark.parametrize("batch", [1, 3])
def test_of_an_onnx_model_at_every_batch(tmp_path: Path, batch: int) -> None:
    onnx = pytest.importorskip("onnx")
    from scenarios.importers import convert
    from scenarios.importers.onnx_model import import_onnx

    model = onnx_block(onnx, 1)
    graph = import_onnx(model, batch=batch)
    expected = onnx_sizes(batch)
    assert {name: of(graph, name) for name in expected} == expected
    one, two, far = (import_onnx(model, batch=b) for b in (1, 2, 7))
    assert is_straight(one, slope_between(one, 1, two), far, 7)
    onnx.save(model, tmp_path / "block.onnx")
    assert convert(tmp_path / "block.onnx", tmp_path / "block.json").fixed_because is None
    read_back = load_graph(tmp_path / "block.json", batch=batch)  # a graph file
    assert {name: of(read_back, name) for name in expected} == expected


def test_of_a_tensorflow_graph(tmp_path: Path) -> None:
    def node(name: str, op: str, inputs: Any, shape: Any, **attributes: Any) -> dict[str, Any]:
        facts = {"inputs": [*inputs], "shapes": [shape], "dtypes": ["float32"], "attributes": attributes}
        return {"name": name, "op": op, **facts}

    stated = {"strides": [1, 2, 2, 1], "padding": "SAME", "data_format": "NHWC"}
    nodes = [
        node("x", "Placeholder", [], [None, 9, 9, 4]),
        node("w", "Placeholder", [], [3, 3, 2, 8]),
        node("v", "Placeholder", [], [6, 8]),
        node("conv", "Conv2D", ["x", "w"], [None, 5, 5, 8], **stated),
        node("plain", "Conv2D", ["x", "w"], [None, 5, 5, 8]),
        node("pool", "MaxPool", ["x"], [None, 5, 5, 4], ksize=[1, 3, 3, 1], **stated),
        node("grad", "Conv2DBackpropFilter", ["x", "w", "conv"], [3, 3, 2, 8], **stated),
        node("product", "MatMul", ["plain", "v"], [None, 5, 5, 6], transpose_b=True),
        node("norm", "FusedBatchNormV3", ["conv", "v"], [None, 5, 5, 8]),
    ]
    path = tmp_path / "g.json"
    path.write_text(json.dumps({"name": "g", "nodes": nodes}))
    for batch in (1, 2):
        graph = import_tensorflow_json(path, batch=batch)
        conv = {**CONV, "batch": batch}
        assert of(graph, "conv") == of(graph, "plain") == of(graph, "grad") == conv
        assert of(graph, "pool") == {**conv, "out_channels": 4, "group": 4}
        assert of(graph, "product") == {"m": batch * 25, "n": 6, "k": 8, "transposed": True}
        norm = of(graph, "norm")
        assert norm == {"rows": batch * 25, "columns": 8}


def test_of_a_builder_and_of_the_backward_that_a_rewrite_makes() -> None:
    model = Gpt(model="gpt", layers=1, hidden=64, heads=4, sequence=16, vocabulary=100, batch=2)
    graph = model.model_copy(update={"optimizer": "adam"}).graph()
    attention = {"batch": 2, "seq_len": 16, "kv_len": 16, "heads": 4, "kv_heads": 4, "head_dim": 16}
    assert (
        of(graph, "layer0.attention") == of(graph, "layer0.attention/grad") == {**attention, "causal": True}
    )
    assert of(graph, "layer0.norm1") == of(graph, "layer0.norm1/grad") == {"rows": 32, "columns": 64}
    assert of(graph, "layer0.up") == {"m": 32, "n": 256, "k": 64}
    assert of(graph, "layer0.up/weight_grad") == {"m": 64, "n": 256, "k": 32}
    assert of(graph, "layer0.up/bias_grad") == {"rows": 32, "columns": 256}
    assert of(graph, "embed") == {"rows": 32, "columns": 64}
    assert of(graph, "loss") == {"rows": 32, "columns": 100}
    assert of(graph, "layer0.gelu") == {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_contradictions(graph)


def test_a_quantized_weight_is_kept_as_it_is_stored_and_contradicts_nothing() -> None:
    onnx = pytest.importorskip("onnx")
    from scenarios.importers.onnx_model import import_onnx

    weights = f"int8[256] w = {{{', '.join('1' * 256)}}}, float s = {{0.1}}, int64[2] to = {{16, 16}}"
    graph = import_onnx(
        onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 20]>
        g (float[1, 16] x) => (float[1, 16] y) <{weights}> {{
            d = DequantizeLinear(w, s)
            r = Reshape(d, to)
            y = MatMul(x, r)
        }}""")
    )
    assert graph.tensor_nbytes[graph.tensor_role == Role.PARAMETER].tolist() == [256]
    assert (graph.bytes_read.tolist(), graph.dtypes) == ([256 + 64], ("fp32",))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_contradictions(graph)


def test_a_training_rewrite_gives_gradients_the_sizes_of_their_forward() -> None:
    from policies.rewrite.backward import TrainingRewrite

    b = GraphBuilder("g")
    b.input("x", 4 * 2 * 4 * 81), b.parameter("w", 4 * 8 * 2 * 9), b.parameter("v", 4 * 25 * 10)
    b.op("conv", kind="conv", inputs=["x", "w"], outputs=1600, flops=100, attributes=CONV, dtype="fp32")
    b.op(
        "soft", kind="softmax", inputs=["conv"], outputs=1600, flops=9, attributes={"rows": 80, "columns": 5}
    )
    batched = {"m": 8, "n": 10, "k": 25, "batch": 2}
    b.op(
        "last", kind="matmul", inputs=["soft", "v"], outputs=640, flops=8000, attributes=batched, dtype="fp32"
    )
    step = read(TrainingRewrite().apply(b.build())).ops
    found = {name: {k: v for k, v in op.attributes.items() if k in SIZES} for name, op in step.items()}
    assert found["conv/weight_grad"] == CONV
    assert found["soft/grad"] == {"rows": 80, "columns": 5}
    assert found["last/weight_grad"] == {"m": 25, "n": 10, "k": 8, "batch": 2}


@pytest.mark.parametrize(
    ("name", "shapes", "values", "expected"),
    [
        ("mm", [[3, 5], [5, 7]], None, {"m": 3, "n": 7, "k": 5}),
        ("addmm", [[7], [3, 5], [5, 7], [], []], ["", "", "", "1", "1"], {"m": 3, "n": 7, "k": 5}),
        ("bmm", [[2, 3, 5], [2, 5, 7]], None, {"m": 3, "n": 7, "k": 5, "batch": 2}),
        ("linear", [[2, 3, 5], [7, 5], [7]], None, {"m": 6, "n": 7, "k": 5, "transposed": True}),
        ("_softmax", [[2, 3, 5], [], []], ["", "1", "False"], {"rows": 10, "columns": 3}),
        ("native_layer_norm", [[6, 5], [], [5], [5], []], None, {"rows": 6, "columns": 5}),
        ("index_select", [[1000, 6], [], [20]], ["", "0", ""], {"rows": 20, "columns": 6}),
        ("conv2d", [[2, 4, 9, 9], [8, 2, 3, 3], [], [], [], [], []], None, {}),  # what it makes is not known
        (
            "conv2d",
            [[2, 4, 9, 9], [8, 2, 3, 3], [], [], [], [], []],
            ["", "", "", "[2, 2]", "[1]", "[1, 1]", "2"],
            CONV,
        ),
        (
            "cudnn_convolution",
            [[2, 4, 9, 9], [8, 2, 3, 3], [], [], [], [], [], [], []],
            ["", "", "[1, 1]", "[2, 2]", "[1, 1]", "2", "False", "False", "True"],
            CONV,
        ),
        ("convolution_backward", [[2, 8, 5, 5], [2, 4, 9, 9], [8, 2, 3, 3], *[[]] * 8], None, CONV),
        (
            "_flash_attention_forward",
            [[2, 16, 8, 4], [2, 16, 2, 4], [2, 16, 2, 4], *[[]] * 6],
            [*[""] * 5, "16", "16", "0.", "True"],
            {
                "batch": 2,
                "seq_len": 16,
                "kv_len": 16,
                "heads": 8,
                "kv_heads": 2,
                "head_dim": 4,
                "causal": True,
            },
        ),
        ("mm", [[3, 5], [6, 7]], None, {}),  # damage
        ("mm", "words", None, {}),
        (
            "conv2d",
            [[2, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], []],
            ["", "", "[]", "[0, 0]", "[0, 0]", "[0, 0]", "0"],
            {},
        ),
        ("_flash_attention_forward", [[7, 8, 4], [7, 8, 4]], None, {}),  # packed sequences
    ],
)
def test_of_the_operators_of_a_trace(name: str, shapes: Any, values: Any, expected: Any) -> None:
    noted = b"" if values is None else json.dumps(values).encode()
    assert sizes_of(f"aten::{name}", json.dumps(shapes).encode(), noted) == expected


@pytest.mark.parametrize(
    ("name", "shapes", "types", "read", "written"),
    [
        ("mul", [[4, 6], [6]], ["c10::Half", "c10::Half"], 60, 48),
        ("add_", [[4, 6], [4, 6], []], ["float", "c10::Half", "Scalar"], 144, 96),
        ("gt", [[4, 6], []], ["float", "double"], 96, 24),
        ("mul", [[4, 6], [], [4, 6]], ["float", "double", "float"], 96, 96),  # into out=
        ("where", [[4, 1], [6], [4, 6]], ["bool", "float", "float"], 124, 96),
        ("copy_", [[4, 6], [6, 4], []], ["c10::BFloat16", "float", "Scalar"], 96, 48),
        ("fill_", [[4, 6], []], ["long int", "Scalar"], 0, 192),
        ("sum", [[4, 6], []], ["float", "ScalarList"], 96, 0),
        ("mul", [[4, 6], [6]], ["c10::Half", "a type that nobody knows"], None, None),
        ("mul", [[4, 6], [5]], ["float", "float"], None, None),  # damage
        ("mul", [[4, 6], [6]], ["float"], None, None),
        ("mul", [[4, 6], [6]], 7, None, None),  # damage
        ("mul", [[4, 6], [6]], None, None, None),
        ("mul", 7, ["float"], None, None),
    ],
)
def test_bytes_of_the_operators_of_a_trace(
    name: str, shapes: Any, types: Any, read: int | None, written: int | None
) -> None:
    assert is_sized(f"aten::{name}")
    assert not is_sized("aten::view")
    found = sizes_of(f"aten::{name}", json.dumps(shapes).encode(), b"", json.dumps(types).encode())
    assert (found.get("bytes_read"), found.get("bytes_written")) == (read, written)


@pytest.mark.parametrize(
    ("shapes", "strides", "columnwise"),
    [
        ([[8, 64, 99], [8, 64, 99], []], [[6336, 99, 1], [6336, 1, 64], []], True),
        ([[8, 64, 8], [8, 64, 8], []], [[512, 8, 1], [512, 1, 64], []], False),  # eight: of the same sectors
        ([[8, 99, 64], [8, 99, 64], []], [[6336, 64, 1], [64, 512, 1], []], False),  # rows of 64
        ([[99, 64], [99, 1]], [[64, 1], [1, 1]], False),  # a number for each row
        ([[64], [99, 64]], [[1], [1, 99]], False),
    ],
)
def test_strides_tell_which_operand_is_read_column_by_column(
    shapes: Any, strides: Any, columnwise: bool
) -> None:
    noted = (json.dumps(each).encode() for each in (shapes, [], ["float"] * len(shapes), strides))
    assert sizes_of("aten::add", *noted).get("columnwise", False) == columnwise


def test_of_the_kernels_of_a_trace(tmp_path: Path) -> None:
    """The longest kernel that the operator itself launched has its sizes, or what it reads and writes."""
    args = {"Input Dims": [[3, 5], [7, 5], []], "Concrete Inputs": ["", "", ""]}
    inner = {"Input Dims": [[3, 5], [5, 7]]}

    def event(category: str, name: str, ts: float, dur: float, **more: Any) -> dict[str, Any]:
        return {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": 1,
            "tid": 1,
            "ts": ts,
            "dur": dur,
            "args": more,
        }

    events = [
        event("cpu_op", "aten::linear", 0, 100, **args),
        event(
            "cpu_op", "aten::copy_", 1, 10, **{"Input Dims": [[9], [9]], "Input type": ["float", "double"]}
        ),
        event("cpu_op", "aten::mm", 20, 40, **inner),
    ]
    kernels = [("copy", 2, 90), ("gemm", 25, 30), ("splitKreduce", 30, 5)]
    for number, (name, ts, dur) in enumerate(kernels, start=1):
        where = {"correlation": number, "device": 0, "stream": 7}
        events.append(event("cuda_runtime", "cudaLaunchKernel", ts, 2, correlation=number))
        events.append({**event("kernel", name, 200 * number, dur, **where), "tid": 7, "pid": 0})
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    graph = load_graph(path, format="kineto")
    found = {
        graph.attributes[op]["kernel"]: of(graph, graph.op_names[op]) for op in graph.attribute("kernel")
    }
    assert found == {"copy": {}, "gemm": {"m": 3, "n": 7, "k": 5}, "splitKreduce": {}}
    tasks = [*graph.attribute("kernel")]
    assert graph.bytes_read[tasks].tolist() == [72, 0, 0]
    assert graph.bytes_written[tasks].tolist() == [36, 0, 0]


# -- in a scenario --------------------------------------------------------------------------------

SCENARIO = """
machine: {devices: {gpu0: {kind: gpu, peak: 1TFLOP/s, bandwidth: 1TB/s}}}
policy: in-order
workload: {ops: {a: {kind: %s, dtype: fp16, flops: 2GFLOP, bytes_read: 6MB, attributes: {%s}}}}
"""


@pytest.mark.parametrize(
    "given",
    [
        "m: 1000, n: 1000, k: 1000, batch: 1, transposed: true",
        "rows: 8, columns: 8, kv_len: 9, causal: false, window: 4, operands: 2",
        "in_channels: 1, out_channels: 1, input_shape: [8, 8], kernel_shape: [3, 3], group: 2",
        "strides: [1, 1], pads: [0, 0, 0, 0], dilations: [1, 1]",
    ],
)
def test_a_user_writes_the_same_names(given: str) -> None:
    job_of(read_scenario(SCENARIO % ("matmul", given)).case())  # warnings are errors here


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("row: 8", "unknown attribute 'row'; did you mean 'rows'"),
        ("in_chanels: 8", "unknown attribute 'in_chanels'; did you mean 'in_channels'"),
        ("is_causal: true", "unknown attribute 'is_causal'; did you mean 'causal'"),
        ("stride: [1, 1]", "unknown attribute 'stride'; did you mean 'strides'"),
        ("strides: [1.5]", "1.5 is no whole number"),
        ("causal: 'yes'", "'yes' is neither true nor false"),
    ],
)
def test_a_slip_is_still_refused(given: str, says: str) -> None:
    with pytest.raises(ScenarioError, match=says):
        job_of(read_scenario(SCENARIO % ("matmul", given)).case())


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        ("matmul", "m: 1000, n: 1000, k: 400", r"m, n and k say 800 MFLOP, its flops are 2 GFLOP; it contra"),
        ("matmul", "m: 1000, n: 1000, k: 2001", "m, n and k say 4.002 GFLOP, its flops are 2 GFLOP"),
        ("softmax", "rows: 1000, columns: 10000", "rows and columns say 20 MB, its bytes are 6 MB"),
        (
            "attention",
            "batch: 1, seq_len: 1000, heads: 10, head_dim: 400, causal: true",
            "batch, seq_len, heads and head_dim say 8 GFLOP, its flops are 2 GFLOP",
        ),
        (
            "conv",
            "batch: 1, in_channels: 10, out_channels: 10, input_shape: [100, 100], kernel_shape: [3, 3]",
            "kernel_shape say 17.29 MFLOP, its flops are 2 GFLOP",
        ),
    ],
)
def test_sizes_that_contradict_flop_or_bytes_are_told(kind: str, given: str, says: str) -> None:
    with pytest.warns(UserWarning, match=rf"^op 'a' \({kind}\): .*{says}") as caught:
        job_of(read_scenario(SCENARIO % (kind, given)).case())
    assert len(caught) == 1


def test_contradictions_are_counted_in_one_line_and_a_duration_settles_them() -> None:
    b = GraphBuilder("g")
    for n in range(5):
        wrong = {"m": 1000, "n": 1000, "k": 1000}
        b.op(f"a{n}", kind="matmul", flops=10**10, attributes=wrong, duration_ns=None if n else 5)
    b.op("odd", kind="conv", flops=1, attributes={**CONV, "pads": 3, "strides": [0, 0]})
    with pytest.warns(UserWarning, match=r"^op 'a1' \(matmul\): .*; 4 ops contradict themselves") as caught:
        warn_of_contradictions(b.build())
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("op", "reader", "memory", "told"),
    [
        ("kind: matmul, attributes: {m: 64, n: 64, k: 64}", "gpu1", "", "in transfers"),
        ("kind: add, bytes_written: 4MiB", "gpu1", "", "in transfers"),
        ("kind: add, flops: 4MFLOP", "gpu0", "memory: {allocator: caching}", "in memory and transfers"),
        ("kind: add, flops: 4MFLOP", "gpu0", "", None),
        ("kind: matmul, attributes: {m: 64, n: 64, k: 64}, output: 8KiB", "gpu1", "", None),
        ("duration: 4us", "gpu1", "", None),
    ],
)
def test_computed_tensors_of_0_bytes_are_told(op: str, reader: str, memory: str, told: str | None) -> None:
    text = f"""
machine: {{preset: dgx-a100}}
workload: {{ops: {{a: {{device: gpu0, {op}}}, b: {{device: {reader}, inputs: [a], duration: 1us}}}}}}
policy: in-order
{memory}
"""
    message = rf"^'a': 0 bytes count {told}, though computed; give a size, as in output: 32MiB$"
    with pytest.warns(UserWarning, match=message) if told else nullcontext():
        job_of(read_scenario(text).case())


def test_a_batch_of_products_another_mask_and_a_past_are_priced() -> None:
    from devices.machine import make_machine

    h200 = make_machine({"devices": {"gpu0": {"preset": "h200-sxm"}}}).devices[0]
    product = {"m": 2048, "n": 2048, "k": 2048}
    attention = {"batch": 4, "seq_len": 4096, "heads": 16, "kv_heads": 16, "head_dim": 128, "causal": True}
    b = GraphBuilder("g")
    for k, more in enumerate(({}, {"batch": 8})):
        b.op(f"p{k}", kind="matmul", dtype="bf16", flops=1, attributes=product | more)
    for k, more in enumerate(({}, {"causal": False}, {"seq_len": 1, "kv_len": 4096})):
        b.op(f"a{k}", kind="attention", dtype="bf16", flops=1, attributes=attention | more)
    one, eight, causal, whole, decode = h200.cost.durations_ns(b.build(), h200).tolist()
    assert 4 * one < eight < 10 * one
    assert 1.3 * causal < whole < 3 * causal
    assert decode < causal / 4


# -- precision ------------------------------------------------------------------------------------


def test_a_model_in_another_precision(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    onnx.save(onnx_block(onnx, 1), tmp_path / "model.onnx")
    text = "machine: {devices: {gpu0: {preset: a100-sxm-80, ideal: true}}}\npolicy: in-order\n"
    read_bytes = {}
    for dtype in ("fp32", "tf32", "bf16", "fp16", "int8"):
        file = tmp_path / f"{dtype}.yaml"
        file.write_text(f"{text}workload: {{onnx: model.onnx, dtype: {dtype}}}\n")
        told = pytest.warns(UserWarning, match="int8 .* conversions cost is not added")
        with told if dtype == "int8" else nullcontext():
            graph = job_of(load_scenario(file).case()).graph
        read_bytes[dtype] = int(graph.bytes_read.sum())
        computes = {name: graph.dtypes[graph.dtype_code[graph.index(name)]] for name in ("conv", "softmax")}
        assert computes == {"conv": dtype, "softmax": "fp32" if dtype == "tf32" else dtype}
    assert [read_bytes["fp32"] // read_bytes[dtype] for dtype in read_bytes] == [1, 1, 2, 2, 4]
    assert (stored_in(None), stored_in("tf32")) == (None, "fp32")
    with pytest.raises(UnknownNameError, match="unknown dtype 'bf61'"):
        stored_in("bf61")
    assert computed_in("tf32", graph) is graph  # nothing in fp32


def test_the_rewrite_batch_grows_what_counts_samples() -> None:
    from policies.rewrite.batch import Batch

    b = GraphBuilder("g")
    b.input("x", 600)
    given = {"conv": CONV, "matmul": {"m": 2, "n": 3, "k": 4}, "softmax": {"rows": 6, "columns": 5}}
    given |= {"gemm": {"batch": 2, "m": 2, "n": 3, "k": 4}}
    for kind, own in given.items():
        b.op(kind, kind=kind, inputs=["x"], outputs=600, flops=10, attributes=own)
    grown = Batch(factor=3).apply(b.build())
    assert of(grown, "conv") == {**CONV, "batch": 6}
    assert of(grown, "matmul") == {"m": 6, "n": 3, "k": 4}
    assert of(grown, "gemm") == {**given["gemm"], "batch": 6}
    assert of(grown, "softmax") == {"rows": 18, "columns": 5}
