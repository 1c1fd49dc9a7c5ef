"""Recorded TensorFlow graphs: the recordings themselves, and small graphs made here."""

import json

import numpy as np
import pytest
from import_helpers import recorded, recorded_graph
from runs import checked

from devices.machine import make_machine
from policies.issue.tensorflow_executor import TensorFlowExecutor
from policies.rewrite.backward import TrainingRewrite
from policies.rewrite.records import read
from scenarios.importers import load_graph
from scenarios.importers.tensorflow_json import import_tensorflow_json, kind_of
from sim.base.errors import InputError
from sim.graph.frames import frame_structure
from sim.graph.graph import Role
from sim.graph.rendezvous_keys import rendezvous_keys


def node(name, op="Relu", inputs=(), shape=(4,), dtype="float32", **more):
    shapes = [] if shape is None else [list(shape)]
    return {"name": name, "op": op, "inputs": list(inputs), "control": [], "shapes": shapes} | {
        "dtypes": [dtype] * len(shapes),
        **more,
    }


def variable(name):
    return node(name, "Placeholder", shape=(), dtype="resource")


@pytest.fixture
def imported(tmp_path):
    def load(*nodes, **options):
        path = tmp_path / "graph.json"
        path.write_text(json.dumps({"name": "g", "nodes": list(nodes)}))
        return import_tensorflow_json(path, **options)

    return load


def work(graph, kind):
    return int(graph.flops[[graph.kind(op) == kind for op in range(len(graph))]].sum())


# -- the recordings -------------------------------------------------------------------------------


def test_inception_v3_is_that_of_the_literature():
    graph = load_graph(recorded("tensorflow/InceptionV3_infer_b1.json.gz"))
    assert len(graph) == 2217 - 379  # 378 variables and the image are tensors
    # torchvision, Inception_V3_Weights: 5.71 G multiply-adds; keras.applications: 23,851,784 parameters
    assert work(graph, "conv") / 2e9 == pytest.approx(5.71, rel=0.002)
    assert int(graph.tensor_nbytes[graph.tensor_role == Role.PARAMETER].sum()) == 4 * 23_851_784
    assert int(graph.tensor_nbytes[graph.tensor_role == Role.INPUT].sum()) == 4 * 299 * 299 * 3
    # the NoOp at the end waits for every read of a variable, as TensorFlow's function does
    end = graph.index("NoOp")
    assert len(graph.after.row(end)) == 378
    assert graph.after.row(graph.index("Identity")).tolist() == [end]
    assert not graph.edges.distance.any()


def test_resnet50_training_is_three_times_the_forward():
    graph = recorded_graph("tensorflow/ResNet50_train_b32.json.gz")
    forward = work(graph, "conv")
    # keras.applications: 3.86 G multiply-adds (stride in the first 1x1 of a block), 25,636,712 parameters
    assert forward / 32 / 2e9 == pytest.approx(3.86, rel=0.002)
    assert work(graph, "conv_input_grad") == work(graph, "conv_weight_grad") == forward
    assert work(graph, "matmul") == 3 * 2 * 32 * 2048 * 1000
    assert int(graph.tensor_nbytes[graph.tensor_role == Role.PARAMETER].sum()) == 4 * 25_636_712
    # what an iteration assigns, the next one reads
    late = graph.after_distance == 1
    writers = np.array([graph.kind(op) for op in graph.after.indices[late].tolist()])
    readers = np.repeat(np.arange(len(graph)), graph.after.counts())[late]
    assert set(writers.tolist()) == {"assign", "assign_sub"}
    assert {graph.kind(op) for op in readers.tolist()} == {"read_variable"}
    assert (graph.edges.distance == 1).sum() == late.sum() > 300


def test_every_control_edge_of_the_recording_is_kept():
    import gzip

    name = "tensorflow/ResNet50_train_b32.json.gz"
    nodes = json.loads(gzip.decompress(recorded(name).read_bytes()))["nodes"]
    graph = recorded_graph(name)
    expected = {(before, n["name"]) for n in nodes for before in n["control"]}
    now = graph.after_distance == 0
    followers = np.repeat(np.arange(len(graph)), graph.after.counts())[now]
    found = {
        (graph.op_names[a], graph.op_names[b])
        for a, b in zip(graph.after.indices[now], followers, strict=True)
    }
    assert found == expected


# -- small graphs ---------------------------------------------------------------------------------


def test_variables_devices_and_attributes(imported):
    graph = imported(
        node("x", "Placeholder", shape=(2, 8)),
        variable("w"),
        node("read", "ReadVariableOp", ["w:0"], (8, 4)),
        node("mm", "MatMul", ["x:0", "read:0"], (2, 4), device="/job:a/replica:0/task:0/device:GPU:1"),
        node("act", "Relu", ["mm"], (2, 4), device="/device:GPU:*", attributes={"_class": ["loc:@mm"]}),
        node("new", "Const", shape=(8, 4), control=["act", "x"], device="host"),
        node("set", "AssignSubVariableOp", ["w:0", "new:0"], None, device="/cpu:0"),
    )
    assert [*graph.external_names] == ["x", "w"]
    assert graph.tensor_nbytes[:2].tolist() == [64, 128]
    assert graph.tensor_role[:2].tolist() == [Role.INPUT, Role.PARAMETER]
    pins = [graph.pins[code] if code >= 0 else None for code in graph.pin_code.tolist()]
    assert pins == [None, "gpu1", "gpu", "host", "cpu0"]
    assert graph.flops.tolist() == [0, 2 * 2 * 8 * 4, 8, 0, 32]
    assert graph.bytes_read.tolist() == [0, 64 + 128, 32, 0, 256]
    assert graph.bytes_written.tolist() == [0, 32, 32, 0, 128]
    assert graph.attributes[0] == {"view_of": 0}
    assert graph.attributes[1] == {"m": 2, "n": 4, "k": 8}
    assert graph.attributes[2] == {"colocate": ["mm"]}
    assert graph.after.row(3).tolist() == [2]  # the one on x orders nothing
    assert (graph.after.row(0).tolist(), graph.after_distance.tolist()) == ([4], [1, 0])
    assert graph.dtypes == ("fp32",)


def test_layouts_windows_and_argument_orders(imported):
    graph = imported(
        node("x", "Placeholder", shape=(1, 8, 8, 4)),
        node("f", "Placeholder", shape=(3, 3, 4, 16)),
        node("conv", "Conv2D", ["x", "f"], (1, 6, 6, 16)),
        node("pool", "MaxPool", ["conv"], (1, 3, 3, 16), attributes={"ksize": [1, 2, 2, 1]}),
        node("axis", "Const", shape=(), dtype="int32"),
        node("half", "Split", ["axis", "pool"], (1, 3, 3, 8)),
        node("norm", "FusedBatchNormV3", ["half"], (1, 3, 3, 8), attributes={"is_training": False}),
        node("lrn", "LRN", ["norm"], (1, 3, 3, 8), attributes={"depth_radius": 2}),
        node("up", "ResizeBilinear", ["lrn", "axis"], (1, 6, 6, 8)),
    )
    flops = dict(zip(graph.op_names, graph.flops.tolist(), strict=True))
    assert flops["conv"] == 2 * 36 * 16 * 9 * 4
    assert flops["pool"] == 4 * 9 * 16
    assert flops["norm"] == 2 * 72
    assert flops["lrn"] == 9 * 72  # a window of 2 x 2 + 1
    assert flops["up"] == 2 * 4 * 288
    half = graph.index("half")
    assert graph.bytes_read[half] == 4 * 72 + 4  # what is written, and the axis


def test_what_is_scattered_has_a_gradient_and_its_indices_have_none(imported):
    """TensorFlow names the indices first: tf.scatter_nd(indices, updates, shape)."""
    graph = imported(
        variable("v"),
        node("w", "ReadVariableOp", ["v"], (2, 8)),
        node("indices", "Placeholder", shape=(2, 1), dtype="int32"),
        node("shape", "Const", shape=(2,), dtype="int32"),
        node("y", "ScatterNd", ["indices", "w", "shape"], (4, 8)),
    )
    step = read(TrainingRewrite().apply(graph))
    assert step.ops["y"].reads == ["w", "indices", "shape"]
    assert (step.ops["y/grad"].kind, step.ops["y/grad"].outputs) == ("scatter_nd_grad", (2 * 8 * 4,))
    assert step.ops["v/update"].reads == ["y/grad", "v"]


def test_conditionals_keep_their_kinds(imported):
    graph = imported(
        node("x", "Placeholder"),
        node("p", "Placeholder", shape=(), dtype="bool"),
        node("s", "Switch", ["x", "p"], shapes=[[4], [4]], dtypes=["float32"] * 2),
        node("t", "Relu", ["s:1"]),
        node("f", "Neg", ["s"]),
        node("m", "Merge", ["f", "t"], shapes=[[4], []], dtypes=["float32", "int32"]),
    )
    assert [graph.kind(op) for op in range(4)] == ["switch", "relu", "neg", "merge"]
    assert [graph.tensor_name(t) for t in graph.inputs.row(1)] == ["s:1"]
    assert graph.outputs.counts().tolist() == [2, 1, 1, 2]
    assert graph.dtype_code.tolist() == [0] * 4


def test_a_loop_runs(imported):
    """while i < n, recorded as TensorFlow 1 writes it: the back edge has distance 1."""
    scalar = {"shape": (), "dtype": "int32"}
    frame = {"frame_name": "while", "parallel_iterations": 1}
    graph = imported(
        node("zero", "Const", **scalar),
        variable("v"),
        node("read", "ReadVariableOp", ["v"], (4,)),
        node("enter", "Enter", ["zero"], attributes=frame, **scalar),
        node("limit", "Enter", ["zero"], attributes={**frame, "is_constant": True}, **scalar),
        node("merge", "Merge", ["enter", "next"], shapes=[[], []], dtypes=["int32"] * 2),
        node("less", "Less", ["merge", "limit"], (), "bool"),
        node("cond", "LoopCond", ["less"], (), "bool", attributes={"trips": 3}),
        node("switch", "Switch", ["merge", "cond"], shapes=[[], []], dtypes=["int32"] * 2),
        node("exit", "Exit", ["switch"], **scalar),
        node("body", "Add", ["switch:1", "limit"], **scalar),
        node("next", "NextIteration", ["body"], **scalar),
        node("assign", "AssignVariableOp", ["v", "read"], None),
    )
    merge = graph.index("merge")
    assert graph.input_distance[graph.inputs.indptr[merge] : graph.inputs.indptr[merge + 1]].tolist() == [
        0,
        1,
    ]
    assert graph.attributes[graph.index("limit")]["constant"] is True
    assert graph.after_distance.sum() == 0  # beside control flow a distance would mean an iteration of a loop
    structure = frame_structure(graph)
    assert structure.name == ["", "while"]
    assert {graph.op_names[op] for op, frame in enumerate(structure.frame_of) if frame == 1} == {
        "merge",
        "less",
        "cond",
        "switch",
        "body",
        "next",
        "exit",
    }


def test_a_partitioned_graph_meets_by_key(imported):
    """As TensorFlow cuts it: two devices, no edge between Send and Recv."""
    cpu, gpu = "/job:w/task:0/device:CPU:0", "/job:w/task:0/device:GPU:0"
    pair = {"send_device": cpu, "recv_device": gpu, "tensor_name": "edge_3_x"}
    graph = imported(
        node("x", "_Arg", device=cpu),
        node("s", "_Send", ["x"], None, attributes=pair, device=cpu),
        node("r", "_Recv", attributes=pair, device=gpu),
        node("y", inputs=["r"], device=gpu),
        node("out", "_Retval", ["y"], None, device=gpu),
    )
    assert [graph.kind(op) for op in range(5)] == ["arg", "send", "recv", "relu", "retval"]
    assert rendezvous_keys(graph).sends == {1: f"{cpu};{gpu};edge_3_x"}
    machine = make_machine(
        {
            "devices": {"cpu0": {"kind": "cpu", "cores": 1}, "gpu0": {"preset": "h200-sxm"}},
            "links": [{"from": "cpu0", "to": "gpu0", "bandwidth": "1GB/s"}],
        }
    )
    trace = checked(graph, machine, TensorFlowExecutor())
    assert trace.transfers["nbytes"].tolist() == [16]


def test_an_open_batch_is_filled(imported):
    nodes = [node("x", "Placeholder", shape=(None, 8)), node("y", "Tanh", ["x"], (-1, 8))]
    assert imported(*nodes, batch=16).tensor_nbytes.tolist() == [512, 512]
    with pytest.raises(
        InputError, match=r"2 tensor\(s\) without a size: x:0 \(float32 \[None, 8\]\), y:0.*batch="
    ):
        imported(*nodes)
    with pytest.raises(InputError, match="those of one batch size, so batch=16 cannot be set"):
        imported(node("x", "Placeholder", shape=(4, 8)), node("y", inputs=["x"], shape=(4, 8)), batch=16)


def test_what_is_unknown_is_refused_or_warned_of(imported):
    nodes = [
        node("x", "Placeholder", shape=(4, 8)),
        node("q", "Quux", ["x"], shapes=[None]),
        node("mm", "MatMul", ["x", "q"], (4, 2)),
        node("s", "AsString", ["x"], (4, 8), dtype="string"),
    ]
    with pytest.raises(
        InputError, match=r"formula: AsString \(1\), Quux \(1\); 2 tensor\(s\) without a size: q:0"
    ):
        imported(*nodes)
    with pytest.warns(UserWarning, match="counted by their known bytes") as warned:
        graph = imported(*nodes, unknown="bytes")
    assert len(warned) == 2
    assert graph.flops.tolist() == [0, 0, 0]
    assert graph.bytes_read.tolist() == [128, 128, 128]
    assert graph.bytes_written.tolist() == [0, 32, 0]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("a"), node("a")], "the node 'a' is there twice"),
        (
            [node("abc"), node("b", inputs=["abd"])],
            "node 'b' has an unknown input 'abd'; did you mean 'abc'?",
        ),
        ([node("a", control=["b"])], "node 'a' has an unknown input 'b'"),
        ([node("a"), node("b", inputs=["a:1"])], "node 'b' reads output 1 of 'a', which has 1"),
        ([node("a", inputs=["b"]), node("b", inputs=["a"])], "cycle: a -> b -> a"),
        ([node("a", dtypes=[])], "node 'a' has 1 shapes and 0 dtypes"),
        (
            [node("c", "Conv2D", [])],
            "node 'c' (Conv2D): the cost of 'conv' needs its input 1, which is absent",
        ),
        ([node("a", colour="red")], "nodes[0] (a).colour: no such key"),
        ([node("a", shape=("x",))], "nodes[0] (a).shapes[0][0]: should be a whole number, not 'x'"),
        ([{"op": "Relu"}], "nodes[0]: the key 'name' is missing"),
        ([], "empty"),
    ],
)
def test_wrong_graphs_are_told(imported, nodes, message):
    with pytest.raises(InputError) as error:
        imported(*nodes)
    assert message in str(error.value)
    assert "graph.json: " in str(error.value)


def test_versions_of_operators_do_not_matter():
    assert kind_of("ConcatV2") == kind_of("Concat") == "concat"
    assert kind_of("BatchMatMulV3") == kind_of("BatchMatMul") == "matmul"
    assert kind_of("Conv2DBackpropFilterV2") == "conv_weight_grad"
