"""ONNX models: the nine light models against the literature, and small ones made here against hand counts."""

import gzip
import re
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from import_helpers import REPOSITORY, columns

from scenarios.importers import load_graph
from scenarios.importers.graph_json import read_graph
from scenarios.importers.onnx_model import import_onnx
from scenarios.importers.onnx_nodes import kind_of
from scenarios.ops.op_costs import COSTS
from scenarios.run.load import load_scenario
from sim.base.errors import InputError, MissingExtraError, UnknownNameError
from sim.graph.graph import Role

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def gmac(graph):
    """Multiply-adds of convolutions and products, the figure that the literature gives."""
    contractions = [
        kind in ("conv", "gemm", "matmul") for kind in (graph.kind(op) for op in range(len(graph)))
    ]
    return int(graph.flops[contractions].sum()) / 2e9


# -- the light models -----------------------------------------------------------------------------

MODELS = [
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
]
MODELS += ["vgg19", "zfnet512"]

GMAC = {
    # GMAC at 224 x 224, tolerance: the figures are rounded to their last digit, and we count biases.
    "resnet50": (4.09, 0.005),  # torchvision, ResNet50_Weights (their GFLOPS are multiply-adds)
    "densenet121": (2.83, 0.005),  # torchvision, DenseNet121_Weights
    "vgg19": (19.63, 0.005),  # torchvision, VGG19_Weights
    "squeezenet": (0.35, 0.02),  # torchvision, SqueezeNet1_1_Weights
    # Szegedy et al., CVPR 2015: "1.5 billion multiply-adds". The light model's pools round sizes down
    # (27, 13), the paper's round up (28, 14): 4 % less work.
    "inception_v1": (1.5, 0.05),
}

PARAMETERS = {
    # Learned parameters (torchvision; AlexNet: Caffe), and running means and variances, also in the file.
    "bvlc_alexnet": 60_965_224,
    "densenet121": 7_978_856 + 2 * 83_648,
    "resnet50": 25_557_032 + 2 * 26_560,
    "squeezenet": 1_235_496,
    "vgg19": 143_667_240,
}


def light(name):
    return LIGHT / f"light_{name}.onnx"


@cache
def imported(name):
    return import_onnx(light(name))


@pytest.mark.parametrize("name", GMAC)
def test_work_is_that_of_the_literature(name):
    expected, tolerance = GMAC[name]
    assert gmac(imported(name)) == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_of_the_literature(name):
    graph = imported(name)
    assert int(graph.tensor_nbytes[graph.tensor_role == Role.PARAMETER].sum()) == 4 * PARAMETERS[name]


@pytest.mark.parametrize("name", MODELS)
def test_every_light_model_imports(name):
    graph = imported(name)
    model = onnx.shape_inference.infer_shapes(onnx.load(light(name)))
    nodes = [node for node in model.graph.node if node.op_type not in ("ConstantOfShape", "Unsqueeze")]
    weights = {tensor.name for tensor in model.graph.initializer}
    weights |= {node.output[0] for node in model.graph.node if node.op_type == "ConstantOfShape"}
    nodes = [node for node in nodes if not weights.issuperset(node.input)]
    assert [*graph.op_names] == [node.name or node.output[0] for node in nodes]
    assert [graph.kind(op) for op in range(len(graph))] == [kind_of(node.op_type) for node in nodes]
    # another way to the same sizes: ONNX's inference over the whole model
    shapes = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in [*model.graph.value_info, *model.graph.output]
    }
    for op, node in enumerate(nodes):
        if node.output[0] in shapes:
            first = int(graph.outputs.row(op)[0])
            assert graph.tensor_nbytes[first] == 4 * np.prod(shapes[node.output[0]])
        if node.op_type == "Conv":
            weight = shapes[node.input[1]]
            macs = np.prod(shapes[node.output[0]]) * np.prod(weight[1:])
            assert 0 <= graph.flops[op] - 2 * macs <= np.prod(shapes[node.output[0]])  # the bias
    assert (graph.dtype_code == graph.dtypes.index("fp32")).all()


@pytest.mark.parametrize("name", MODELS)
def test_work_and_activations_grow_with_the_batch_and_weights_do_not(name):
    one = imported(name)
    fixed = one.tensor_role == Role.PARAMETER
    many = import_onnx(light(name), batch=32)
    assert many.op_names == one.op_names
    assert (many.flops == 32 * one.flops).all()
    assert (many.tensor_nbytes == np.where(fixed, 1, 32) * one.tensor_nbytes).all()


def test_shufflenet_reshapes_its_channels_at_any_batch():
    """Its channel shuffle is a Reshape to a constant of five dimensions: the batch baked in 32 times."""
    graph = import_onnx(light("shufflenet"), batch=3)
    reshapes = [op for op in range(len(graph)) if graph.kind(op) == "reshape"]
    assert len(reshapes) == 33
    for op in reshapes:
        source, result = int(graph.inputs.row(op)[0]), int(graph.outputs.row(op)[0])
        assert graph.tensor_nbytes[source] == graph.tensor_nbytes[result]
        assert graph.attributes[op]["view_of"] == 0
        assert graph.flops[op] == graph.bytes_read[op] == graph.bytes_written[op] == 0


def test_half_the_bytes_in_bf16():
    full, half = imported("resnet50"), import_onnx(light("resnet50"), dtype="bf16")
    assert half.dtypes == ("bf16",)
    assert (2 * half.tensor_nbytes == full.tensor_nbytes).all()
    assert (half.flops == full.flops).all()


# -- the committed graph --------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["inception_v1", "resnet50"])
@pytest.mark.parametrize("batch", [None, 1, 32, 7])
def test_the_committed_graphs_are_the_imported_ones(batch, model):
    committed = read_graph(REPOSITORY / "scenarios" / "examples" / "graphs" / f"{model}.json.gz", batch=batch)
    assert columns(committed) == columns(import_onnx(light(model), batch=batch))


# -- small models made here -----------------------------------------------------------------------


def model(nodes, inputs, outputs, weights=(), opset=20, **extra):
    """A model of (op, inputs, outputs, attributes) nodes."""
    made = [
        helper.make_node(op, read, written, name=f"{op}_{i}", **attributes)
        for i, (op, read, written, attributes) in enumerate(nodes)
    ]
    graph = helper.make_graph(
        made,
        "small",
        [helper.make_tensor_value_info(name, elem, shape) for name, elem, shape in inputs],
        [helper.make_tensor_value_info(name, elem, shape) for name, elem, shape in outputs],
        [onnx.numpy_helper.from_array(np.asarray(data), name) for name, data in weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], **extra)


def floats(*shape):
    return np.zeros(shape, np.float32)


def by_name(graph):
    return {name: op for op, name in enumerate(graph.op_names)}


def attention_block(batch, sequence):
    """Self-attention as exporters write it: shapes computed from shapes, dynamic or not."""
    heads, width = 4, 8
    embed = heads * width
    nodes = [
        ("LayerNormalization", ["x", "scale"], ["n"], {}),
        ("MatMul", ["n", "wqkv"], ["qkv"], {}),
        ("Split", ["qkv"], ["q", "k", "v"], {"axis": -1, "num_outputs": 3}),
        ("Shape", ["x"], ["s"], {}),
        ("Slice", ["s", "zero", "two"], ["bs"], {}),
        ("Concat", ["bs", "hd"], ["target"], {"axis": 0}),
        *[("Reshape", [name, "target"], [f"{name}4"], {}) for name in "qkv"],
        *[("Transpose", [f"{name}4"], [f"{name}t"], {"perm": [0, 2, 1, 3]}) for name in "qv"],
        ("Transpose", ["k4"], ["kt"], {"perm": [0, 2, 3, 1]}),
        ("MatMul", ["qt", "kt"], ["scores"], {}),
        ("Mul", ["scores", "factor"], ["scaled"], {}),
        ("Softmax", ["scaled"], ["p"], {}),
        ("MatMul", ["p", "vt"], ["o"], {}),
        ("Transpose", ["o"], ["ot"], {"perm": [0, 2, 1, 3]}),
        ("Reshape", ["ot", "merge"], ["om"], {}),
        ("MatMul", ["om", "wo"], ["y"], {}),
        ("Add", ["y", "x"], ["z"], {}),
        ("Gelu", ["z"], ["g"], {}),
    ]
    weights = [
        ("scale", floats(embed)),
        ("wqkv", floats(embed, 3 * embed)),
        ("wo", floats(embed, embed)),
        ("zero", np.array([0])),
        ("two", np.array([2])),
        ("hd", np.array([heads, width])),
        ("merge", np.array([0, 0, embed])),
        ("factor", np.float32(0.35)),
    ]
    shape = [batch, sequence, embed]
    return model(nodes, [("x", FLOAT, shape)], [("g", FLOAT, shape)], weights)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_transformer_block(dynamic):
    b, s, h, d = 3, 16, 4, 8
    e = h * d
    if dynamic:
        graph = import_onnx(attention_block("n", "length"), batch=b, dims={"length": s})
        assert columns(graph) == columns(
            import_onnx(attention_block("n", "length"), batch=b, dims=f"length={s}")
        )
    else:
        graph = import_onnx(attention_block(2, s), batch=b)
    op = by_name(graph)
    assert not any(name.startswith(("Shape", "Slice", "Concat")) for name in op)  # they are numbers now
    assert graph.flops[op["MatMul_1"]] == 2 * b * s * e * 3 * e
    assert graph.flops[op["MatMul_12"]] == graph.flops[op["MatMul_15"]] == 2 * b * h * s * s * d
    assert graph.flops[op["MatMul_18"]] == 2 * b * s * e * e
    assert graph.flops[op["Softmax_14"]] == 5 * b * h * s * s
    assert graph.flops[op["LayerNormalization_0"]] == 7 * b * s * e
    assert graph.flops[op["Gelu_20"]] == 5 * b * s * e
    assert graph.bytes_read[op["Split_2"]] == graph.bytes_written[op["Split_2"]] == 4 * b * s * 3 * e
    assert [graph.tensor_name(t) for t in graph.inputs.row(op["Reshape_8"])] == ["Split_2:2"]
    assert graph.bytes_read[op["Mul_13"]] == 4 * (b * h * s * s + 1)
    assert set(graph.external_names) == {"x", "scale", "wqkv", "wo", "factor"}
    shapes = {name: [graph.attributes.get(i, {}).get(axis) for axis in "mnk"] for name, i in op.items()}
    assert shapes["MatMul_1"] == [b * s, 3 * e, e]  # the rows of all samples times one matrix
    assert shapes["MatMul_12"] == [s, s, d]  # a product for each head
    assert graph.attributes[op["MatMul_12"]]["batch"] == b * h


COMMON = """LayerNormalization RMSNormalization GroupNormalization InstanceNormalization Attention Gather
    RotaryEmbedding GatherND GatherElements Split Erf Gelu Swish Where Cast ReduceMean ReduceSum
    ReduceMax Slice ReduceL2 Unsqueeze Squeeze Expand Tile Pow Sqrt Tanh Sigmoid Softmax LogSoftmax
    MatMul Gemm Einsum Transpose Concat Add Sub Mul Div Neg Not And Equal Greater Less Max Min Clip
    Pad Resize Upsample Range Trilu CumSum ArgMax ConvTranspose LSTM GRU RNN HardSwish HardSigmoid
    LeakyRelu PRelu Elu Softplus Reciprocal Abs Exp Log Floor Ceil Round Sin Cos ScatterND
    ScatterElements OneHot DepthToSpace QuantizeLinear DequantizeLinear IsNaN Mish Flatten Identity
    Dropout Size"""


@pytest.mark.parametrize("operator", COMMON.split())
def test_the_common_operators_have_a_formula(operator):
    assert onnx.defs.has(operator)
    assert kind_of(operator) in COSTS


def test_what_computes_from_weights_alone_is_a_weight():
    nodes = [
        ("Transpose", ["w"], ["wt"], {"perm": [1, 0]}),
        ("Unsqueeze", ["b", "axes"], ["b2"], {}),
        ("MatMul", ["x", "wt"], ["y"], {}),
        ("Add", ["y", "b2"], ["z"], {}),
        ("Add", ["z", "b"], ["out"], {}),
    ]
    weights = [("w", floats(80, 10)), ("b", floats(80)), ("axes", np.array([0]))]
    graph = import_onnx(model(nodes, [("x", FLOAT, [2, 10])], [("out", FLOAT, [2, 80])], weights))
    assert [*graph.op_names] == ["MatMul_2", "Add_3", "Add_4"]
    assert [*graph.external_names] == ["x", "wt", "b"]  # w itself is never read, and b and b2 are one weight
    assert graph.tensor_nbytes[:3].tolist() == [80, 3200, 320]


def test_a_sparse_weight_is_stored_in_full():
    made = model([("MatMul", ["x", "w"], ["y"], {})], [("x", FLOAT, [2, 4])], [("y", FLOAT, [2, 5])])
    values = helper.make_tensor("w", FLOAT, [1], [3.0])
    made.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, helper.make_tensor("at", INT64, [1], [7]), [4, 5])
    )
    assert import_onnx(made).bytes_read.tolist() == [32 + 80]


def test_operands_that_say_how_are_attributes_and_no_tensors():
    nodes = [
        ("Slice", ["x", "starts", "ends", "axes"], ["y"], {}),
        ("Clip", ["y", "", "max"], ["z"], {}),
        ("ReduceMean", ["z", "axes"], ["out"], {"keepdims": 1}),
    ]
    weights = [
        ("starts", np.array([1])),
        ("ends", np.array([3])),
        ("axes", np.array([1])),
        ("max", np.float32(np.inf)),
    ]
    graph = import_onnx(model(nodes, [("x", FLOAT, [2, 10])], [("out", FLOAT, [2, 1])], weights))
    assert [*graph.external_names] == ["x"]
    assert graph.attributes[0] == {"starts": [1], "ends": [3], "axes": [1]}
    assert graph.attributes[1] == {"max": "inf"}
    assert graph.bytes_read[0] == graph.bytes_written[0] == 16  # a part of x
    assert graph.flops.tolist() == [0, 8, 4]
    nodes, shape = [("DFT", ["x", "", "axis"], ["y"], {})], [1, 8, 6, 2]  # six of eight complex numbers
    made = model(nodes, [("x", FLOAT, shape)], [("y", FLOAT, shape)], [("axis", np.int64(1))])
    assert import_onnx(made).flops.tolist() == [5 * 48 * 3]
    for opset, log in ((17, 3), (20, 1)):  # the axis is by default 1, then -2
        nodes, shape = [("DFT", ["x"], ["y"], {})], [1, 8, 2, 2]
        made = model(nodes, [("x", FLOAT, shape)], [("y", FLOAT, shape)], opset=opset)
        assert import_onnx(made).flops.tolist() == [5 * 16 * log]


def test_outputs_that_nobody_reads_are_left_out():
    nodes = [
        ("Dropout", ["x"], ["y", "mask"], {}),
        ("MaxPool", ["y"], ["z", "where"], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Cast", ["where"], ["out"], {"to": FLOAT}),
    ]
    inputs, outputs = [("x", FLOAT, [1, 1, 4, 4])], [("z", FLOAT, [1, 1, 2, 2]), ("out", FLOAT, [1, 1, 2, 2])]
    graph = import_onnx(model(nodes, inputs, outputs))
    assert graph.outputs.counts().tolist() == [1, 2, 1]
    assert graph.tensor_nbytes[graph.outputs.row(1)].tolist() == [16, 32]  # int64 indices


def test_local_functions_are_inlined():
    body = helper.make_function(
        "my",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 20)],
    )
    made = model([("Relu", ["x"], ["y"], {})], [("x", FLOAT, [4])], [("z", FLOAT, [4])])
    made.graph.node.append(helper.make_node("Twice", ["y"], ["z"], domain="my"))
    made.opset_import.append(helper.make_opsetid("my", 1))
    made.functions.append(body)
    graph = import_onnx(made)
    assert [graph.kind(op) for op in range(2)] == ["relu", "add"]
    assert graph.flops.tolist() == [4, 4]


def test_names_that_clash_are_told_apart():
    made = model(
        [("Relu", ["x"], ["y"], {}), ("Relu", ["y"], ["z"], {})], [("x", FLOAT, [4])], [("z", FLOAT, [4])]
    )
    for node in made.graph.node:
        node.name = "x"
    assert [*import_onnx(made).op_names] == ["y", "z"]
    for node in made.graph.node:
        node.name = "same"
    assert [*import_onnx(made).op_names] == ["same", "z"]
    split = model(
        [("Split", ["x"], ["a", "s:1"], {"num_outputs": 2})], [("x", FLOAT, [4])], [("s:1", FLOAT, [2])]
    )
    split.graph.node[0].name = "s"  # its second output would be s:1, which is the name of a value
    assert [*import_onnx(split).op_names] == ["a"]


# -- batches that can and cannot be set ------------------------------------------------------------


def reshaping(shape, *targets):
    names = ["x", *(f"r{i}" for i in range(len(targets)))]
    nodes = [("Reshape", [names[i], f"t{i}"], [names[i + 1]], {}) for i in range(len(targets))]
    weights = [(f"t{i}", np.array(target)) for i, target in enumerate(targets)]
    return model(nodes, [("x", FLOAT, shape)], [(names[-1], FLOAT, None)], weights)


@pytest.mark.parametrize(
    ("shape", "targets"),
    [
        ([1, 8, 2, 2], [[1, 32]]),
        ([1, 8, 2, 2], [[1, -1]]),
        ([1, 8, 2, 2], [[-1, 32], [0, 4, 8]]),
        ([1, 8, 2, 2], [[1, 2, 4, 2, 2], [1, 32]]),
        ([4, 8], [[4, 2, 4], [8, 4], [4, 8]]),
        ([4, 8], [[1, 4, 8]]),
    ],
)
def test_a_reshape_to_constants_follows_the_batch(shape, targets):
    made = reshaping(shape, *targets)
    for batch in (shape[0], 2 * shape[0], 8 * shape[0]):
        graph = import_onnx(made, batch=batch)
        size = 4 * batch * np.prod(shape[1:])
        assert (graph.tensor_nbytes == size).all()


def test_a_batch_baked_in_for_good_is_refused():
    second = model(
        [("Transpose", ["x"], ["t"], {"perm": [1, 0, 2]}), ("Reshape", ["t", "to"], ["y"], {})],
        [("x", FLOAT, [2, 16, 64])],
        [("y", FLOAT, None)],
        [("to", np.array([16, 8, 16]))],
    )
    assert len(import_onnx(second)) == 2
    with pytest.raises(
        InputError, match=r"node 'Reshape_1' \(Reshape\) makes 16x8x16 of 16x4x64: its target is"
    ):
        import_onnx(second, batch=4)
    added = model(
        [("Add", ["x", "w"], ["y"], {})], [("x", FLOAT, [4, 8])], [("y", FLOAT, None)], [("w", floats(4, 20))]
    )
    added.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(floats(4, 8), "w"))
    with pytest.raises(InputError, match=r"node 'Add_0' \(Add\): .*Incompatible dimensions"):
        import_onnx(added, batch=8)
    outer = model(
        [("MatMul", ["x", "xt"], ["y"], {}), ("Transpose", ["x"], ["xt"], {"perm": [1, 0]})][::-1],
        [("x", FLOAT, [2, 8])],
        [("y", FLOAT, None)],
    )
    with pytest.raises(
        InputError, match="'y' is 2x2 at the model's own batch, 2, and 6x6 at 6: not so many samples"
    ):
        import_onnx(outer, batch=6)
    with pytest.raises(InputError, match="at least 1 sample, not 0"):
        import_onnx(outer, batch=0)


def test_open_dimensions_are_named():
    made = attention_block("n", "length")
    with pytest.raises(InputError, match=r"dimensions without a size: x\[0\] = 'n', x\[1\] = 'length'; give"):
        import_onnx(made)
    with pytest.raises(InputError, match=r"dimensions without a size: x\[1\] = 'length'"):
        import_onnx(made, batch=4)
    with pytest.raises(InputError, match=r"unknown dimension 'lenght'; did you mean 'length'\?"):
        import_onnx(made, batch=4, dims={"lenght": 128})
    with pytest.raises(InputError, match="dims: should be NAME=SIZE, as in sequence=128, not 'length'"):
        import_onnx(made, batch=4, dims="length")
    with pytest.raises(InputError, match="dims: length must be at least 1, not 0"):
        import_onnx(made, batch=4, dims="length=0")


@pytest.mark.parametrize(
    ("shapes", "options", "nbytes"),
    [
        (([-1, 3, "?", "?"],), {"batch": 2, "dims": "?=4, x[3]=8"}, [2 * 3 * 4 * 8 * 4]),
        (([None, None],), {"batch": 2, "dims": {"x[1]": 5}}, [40]),
        ((["n", "m"], [7, "n"]), {"batch": 2, "dims": {"m": 3}}, [24, 56]),
    ],
)
def test_open_dimensions_without_a_name_are_set_by_place_and_a_name_has_one_size(shapes, options, nbytes):
    given = [(name, FLOAT, shape) for name, shape in zip("xy", shapes, strict=False)]
    made = model([("Relu", ["x"], ["z"], {})], given, [("z", FLOAT, None)])
    assert import_onnx(made, **options).tensor_nbytes[: len(nbytes)].tolist() == nbytes
    with pytest.raises(InputError, match=r"dimensions without a size: x\[0\]"):
        import_onnx(made)


@pytest.mark.parametrize(
    ("operator", "reads", "flops"),
    [
        ("QLinearConv", "x s z w s z s z b", 2 * 25 * 6 * 27 + 25 * 6),
        ("QLinearConv", "x s z w s z s z", 2 * 25 * 6 * 27),
        ("ConvInteger", "x w z z", 2 * 25 * 6 * 27),
        ("QLinearMatMul", "u s z v s z s z", 2 * 4 * 7 * 9),
        ("MatMulInteger", "u v z", 2 * 4 * 7 * 9),
    ],
)
def test_quantized_products_have_the_work_of_their_factors(operator, reads, flops):
    shapes = {"x": [1, 3, 7, 7], "w": [6, 3, 3, 3], "u": [4, 9], "v": [9, 7]}
    inputs = [(name, TensorProto.INT8, shape) for name, shape in shapes.items()]
    weights = [("s", np.float32(0.1)), ("z", np.int8(0)), ("b", np.zeros(6, np.int32))]
    graph = import_onnx(model([(operator, reads.split(), ["y"], {})], inputs, [("y", INT64, None)], weights))
    assert (graph.flops.tolist(), graph.dtypes) == ([flops], ("int8",))
    assert graph.kind(0) == ("conv" if "Conv" in operator else "matmul")


def test_what_only_says_a_type_is_not_read_and_training_is_a_truth_value():
    nodes = [
        ("CastLike", ["x", "like"], ["c"], {}),
        ("BatchNormalization", ["x", "s", "s", "s", "s"], ["y", "m", "v"], {"training_mode": 1}),
    ]
    inputs = [("x", FLOAT, [2, 3]), ("like", TensorProto.FLOAT16, [1000])]
    outputs = [("c", TensorProto.FLOAT16, None), ("y", FLOAT, None)]
    graph = import_onnx(model(nodes, inputs, outputs, [("s", floats(3))]))
    assert (graph.kind(0), graph.bytes_read[0], graph.bytes_written[0]) == ("cast", 24, 12)
    assert (graph.attributes[1]["training_mode"], graph.flops[1]) == (True, 7 * 6)


# -- what is refused ------------------------------------------------------------------------------


def test_unknown_operators_are_named_all_at_once():
    nodes = [
        ("MaxRoiPool", ["x", "y"], ["a"], {}),
        ("Det", ["m"], ["d"], {}),
        ("Det", ["m"], ["e"], {}),
        ("Relu", ["m"], ["r"], {}),
    ]
    inputs = [("x", FLOAT, [1, 5, 4]), ("y", FLOAT, [1, 1, 5]), ("m", FLOAT, [7, 3, 3])]
    made = model(nodes, inputs, [("d", FLOAT, [7]), ("e", FLOAT, [7]), ("r", FLOAT, [7, 3, 3])])
    made.graph.node.append(helper.make_node("Gizmo", ["m"], ["g"], domain="com.acme"))
    made.graph.node.append(helper.make_node("Attention", ["m"], ["h"], domain="com.microsoft"))  # a namesake
    names = r"Det \(2\), MaxRoiPool \(1\), com\.acme::Gizmo \(1\), com\.microsoft::Attention \(1\)"
    with pytest.raises(InputError, match=f"without a cost formula: {names}; count"):
        import_onnx(made)


def test_unknown_operators_may_be_counted_by_their_bytes():
    made = model([("Det", ["m"], ["d"], {})], [("m", FLOAT, [7, 3, 3])], [("d", FLOAT, [7])])
    with pytest.warns(UserWarning, match=r"counted by their bytes, with no flop: Det \(1\)"):
        graph = import_onnx(made, unknown="bytes")
    assert (graph.kind(0), graph.flops[0], graph.bytes_read[0], graph.bytes_written[0]) == ("det", 0, 252, 28)


def test_unknown_operators_are_counted_by_a_scenario_that_says_so(tmp_path):
    made = model([("Det", ["m"], ["d"], {})], [("m", FLOAT, [7, "k", 3])], [("d", FLOAT, [7])])
    (tmp_path / "det.onnx").write_bytes(made.SerializeToString())
    text = "machine: {devices: {cpu0: {kind: cpu, cores: 1}}}\nworkload: {onnx: det.onnx%s}\n"
    path = tmp_path / "s.yaml"
    path.write_text(text % "")
    with pytest.raises(InputError, match=r"Det \(1\); count .* unknown: bytes in the scenario's workload"):
        _ = load_scenario(path).graph
    path.write_text(text % ", unknown: bytes, dims: {k: 3}")
    with pytest.warns(UserWarning, match="counted by their bytes"):
        assert load_scenario(path).graph.bytes_read.tolist() == [252]


@pytest.mark.filterwarnings("ignore:counted by their bytes")
def test_operators_of_runtimes_have_the_shapes_that_the_file_states():
    """In the batch that is asked for, as ONNX Runtime leaves them in models that it has optimised."""
    made = model([("Relu", ["h"], ["y"], {})], [("x", FLOAT, ["N", 64])], [("y", FLOAT, ["N", 32])])
    made.graph.node.insert(0, helper.make_node("FusedMatMul", ["x"], ["h"], domain="com.microsoft"))
    with pytest.raises(InputError, match=r"reads 'h', which node .* in a shape not known before the run"):
        import_onnx(made, batch=4, unknown="bytes")
    made.graph.value_info.append(helper.make_tensor_value_info("h", FLOAT, ["N", 32]))
    graph = import_onnx(made, batch=4, unknown="bytes")
    assert graph.bytes_written.tolist() == [4 * 4 * 32] * 2


def test_choosing_and_ordering():
    """Comparisons of n = 2 * 6 elements: a heap of 2 has two levels; sorting takes 12 * 4 + 11."""
    nodes = [("TopK", ["x", "k"], ["v", "i"], {})]
    nodes += [("NonZero", ["x"], ["z"], {}), ("Unique", ["x"], ["u"], {})]
    outputs = [("v", FLOAT, [2, 2]), ("i", INT64, [2, 2]), ("z", INT64, [2, 12]), ("u", FLOAT, [12])]
    graph = import_onnx(model(nodes, [("x", FLOAT, [2, 6])], outputs, [("k", np.array([2]))]))
    assert [graph.kind(op) for op in range(3)] == ["top_k", "non_zero", "unique"]
    assert graph.flops.tolist() == [24, 12, 59]
    assert graph.bytes_read.tolist() == [48, 48, 48]
    assert graph.bytes_written.tolist() == [16 + 32, 192, 48]


def test_shapes_that_depend_on_data_are_refused():
    nodes = [("NonZero", ["x"], ["i"], {}), ("Cast", ["i"], ["y"], {"to": FLOAT})]
    made = model(nodes, [("x", FLOAT, [4])], [("y", FLOAT, None)])
    with pytest.raises(
        InputError,
        match=r"node 'Cast_1' reads 'i', which node 'NonZero_0' \(NonZero\) writes .* not known before",
    ):
        import_onnx(made)
    unread = model([*nodes[:1], ("Relu", ["x"], ["z"], {})], [("x", FLOAT, [4])], [("z", FLOAT, [4])])
    assert [*import_onnx(unread).op_names] == ["Relu_1"]
    backwards = model(
        [("Relu", ["y"], ["z"], {}), ("Relu", ["x"], ["y"], {})], [("x", FLOAT, [4])], [("z", FLOAT, [4])]
    )
    with pytest.raises(
        InputError, match=r"node 'Relu_0' reads 'y', which node 'Relu_1' \(Relu\) writes later"
    ):
        import_onnx(backwards)
    nowhere = model([("Relu", ["q"], ["z"], {})], [("x", FLOAT, [4])], [("z", FLOAT, [4])])
    with pytest.raises(InputError, match="node 'Relu_0' reads 'q', which no node writes"):
        import_onnx(nowhere)


def test_texts_have_no_size():
    made = model(
        [("Identity", ["x"], ["y"], {})], [("x", TensorProto.STRING, [4])], [("y", TensorProto.STRING, [4])]
    )
    with pytest.raises(InputError, match="tensors of STRING have no size"):
        import_onnx(made)


def test_wrong_options_and_files(tmp_path):
    with pytest.raises(UnknownNameError, match="unknown dtype 'half'"):
        import_onnx(light("resnet50"), dtype="half")
    with pytest.raises(InputError, match=r"unknown value of unknown 'byte'; did you mean 'bytes'\?"):
        import_onnx(light("resnet50"), unknown="byte")
    with pytest.raises(InputError, match="no such file"):
        import_onnx(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("no model at all")
    with pytest.raises(InputError, match=re.escape(f"{tmp_path / 'text.onnx'}: not an ONNX model")):
        import_onnx(tmp_path / "text.onnx")
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(InputError, match="not an ONNX model"):
        import_onnx(tmp_path / "empty.onnx")
    (tmp_path / "half.onnx").write_bytes(light("resnet50").read_bytes()[:-100])
    with pytest.raises(InputError, match="not an ONNX model"):
        import_onnx(tmp_path / "half.onnx")
    (tmp_path / "m.onnx.gz").write_bytes(gzip.compress(light("squeezenet").read_bytes()))
    assert len(load_graph(tmp_path / "m.onnx.gz")) == 66


def test_without_the_package_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"reading ONNX models needs the extra 'onnx': pip install"):
        load_graph(light("resnet50"))


def test_a_batch_of_no_samples_is_read_at_that_batch_only(tmp_path: Path) -> None:
    shape = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [0, 16])
    out = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [0, 16])
    made = helper.make_model(
        helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "none", [shape], [out])
    )
    made.ir_version = 8
    onnx.save(made, tmp_path / "none.onnx")
    assert len(import_onnx(tmp_path / "none.onnx")) == 1
    with pytest.raises(InputError, match="own batch is 0"):
        import_onnx(tmp_path / "none.onnx", batch=4)
