"""PipeDream profiles: the recorded ones, and what a line may look like."""

import pytest
from import_helpers import recorded

from scenarios.importers import load_graph
from scenarios.importers.pipedream_profile import read_profile, training_graph
from sim.base.errors import InputError

FACTS = "forward_compute_time={}, backward_compute_time={}, activation_size={}, parameter_size={}"


def line(number, what, forward=1.0, backward=2.0, activation="100.0", parameters=0.0):
    return f"node{number} -- {what} -- " + FACTS.format(forward, backward, activation, parameters)


@pytest.fixture
def profile(tmp_path):
    def write(*lines):
        path = tmp_path / "model.txt"
        path.write_text("\n".join(lines))
        return path

    return write


# -- the recordings -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("vgg16", 138_357_544), ("resnet50", 25_557_032)],  # torchvision's counts
)
def test_recorded_profiles_are_the_models_they_say(name, parameters):
    layers = read_profile(recorded(f"pipedream/{name}.txt"))
    assert sum(layer.parameter_bytes for layer in layers) == 4 * parameters
    assert [layer.name for layer in layers if layer.is_input] == ["node1"]


@pytest.mark.parametrize("name", ["vgg16", "resnet50", "inception_v3", "gnmt"])
def test_recorded_profiles_become_training_graphs(name):
    path = recorded(f"pipedream/{name}.txt")
    layers, graph = read_profile(path), load_graph(path)
    assert graph.name == name
    inputs = sum(layer.is_input for layer in layers)
    assert len(graph) == 2 * len(layers) - inputs
    backward = sum(layer.backward_ns for layer in layers if not layer.is_input)
    assert int(graph.duration_ns.sum()) == sum(layer.forward_ns for layer in layers) + backward
    seen = set()
    for layer in layers:  # every layer comes after those it reads
        assert seen.issuperset(layer.predecessors)
        seen.add(layer.name)


def test_vgg16_times_are_those_of_the_file():
    layers = {layer.name: layer for layer in read_profile(recorded("pipedream/vgg16.txt"))}
    conv = layers["node14"]  # forward_compute_time=17.458, backward_compute_time=27.023
    assert (conv.forward_ns, conv.backward_ns) == (17_458_000, 27_023_000)
    assert (conv.activation_bytes, conv.parameter_bytes) == ((411_041_792,), 2_360_320)
    assert conv.kind == "conv"


def test_gnmt_picks_outputs_of_its_recurrent_layers():
    graph = load_graph(recorded("pipedream/gnmt.txt"))
    first, second = graph.index("F.node8"), graph.index("F.node9")  # __getitem__(0), __getitem__(1) of node7
    assert [graph.tensor_name(int(graph.inputs.row(op)[0])) for op in (first, second)] == [
        "F.node7",
        "F.node7:1",
    ]
    assert graph.tensor_nbytes[graph.outputs.row(graph.index("F.node7"))].tolist() == [
        6291456,
        131072,
        131072,
    ]
    assert graph.tensor_nbytes[graph.outputs.row(graph.index("B.node9"))].tolist() == [131072]


# -- small profiles -------------------------------------------------------------------------------


def test_the_training_graph_of_a_diamond(profile):
    path = profile(
        line(1, "Input0", 3.0, 0.0, "8.0"),
        line(4, "Add(inplace)", 0.5, 0.25, "40.0"),
        line(2, "Conv2d(3, 64)", 1.0, 2.0005, "20.0", "12.0"),
        line(3, "ReLU(inplace)", 0.0000005, 1, "30.0") + ", stage_id=1",
        "\tnode1 -- node2",
        "\tnode1 -- node3",
        "\tnode2 -- node4",
        "\tnode3 -- node4",
    )
    layers = read_profile(path)
    assert [layer.name for layer in layers] == ["node1", "node2", "node3", "node4"]
    assert layers[2].forward_ns == 1  # half a nanosecond rounds up
    assert [layer.stage for layer in layers] == [None, None, 1, None]
    graph = training_graph(layers, "diamond")
    assert [*graph.op_names] == ["F.node1", "F.node2", "F.node3", "F.node4", "B.node4", "B.node3", "B.node2"]
    assert [graph.kind(op) for op in range(7)] == [
        "input",
        "conv",
        "relu",
        "add",
        "add_grad",
        "relu_grad",
        "conv_grad",
    ]
    assert graph.duration_ns.tolist() == [3_000_000, 1_000_000, 1, 500_000, 250_000, 1_000_000, 2_000_500]
    assert "".join(graph.phases[code] for code in graph.phase_code) == "FFFFBBB"
    reads = [[graph.tensor_name(t) for t in graph.inputs.row(op)] for op in range(7)]
    assert reads == [
        [],
        ["F.node1", "node2.weight"],
        ["F.node1"],
        ["F.node2", "F.node3"],
        ["F.node4"],
        ["F.node3", "B.node4:1"],
        ["F.node2", "B.node4", "node2.weight"],
    ]
    assert graph.tensor_nbytes[graph.outputs.row(4)].tolist() == [20, 30]  # a gradient each way
    assert graph.tensor_nbytes[graph.outputs.row(6)].tolist() == [0]  # none for the input


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "is empty"),
        ([line(1, "A"), "what is this"], r"model\.txt:2: neither a layer nor an edge: 'what is this'"),
        ([line(1, "A"), line(1, "A")], r"model\.txt:2: the layer 'node1' is there twice"),
        ([line(1, "A"), "\tnode1 -- node2"], r"model\.txt:2: unknown layer 'node2'; did you mean 'node1'\?"),
        ([line(1, "A", forward="fast")], r"node1: 'fast' is no number"),
        ([line(1, "A", forward="nan")], r"node1: 'nan' is no number"),
        ([line(1, "A", backward=-1)], r"node1: -1 is negative"),
        ([line(1, "A", activation="[1.0; x]")], r"node1: 'x' is no number"),
        (["node1 -- A -- forward_compute_time=1.0"], r"node1: backward_compute_time is missing"),
        (
            [
                line(1, "A"),
                line(2, "B"),
                line(3, "C"),
                "\tnode1 -- node2",
                "\tnode2 -- node3",
                "\tnode3 -- node2",
            ],
            "has a cycle: node2 -> node3 -> node2",
        ),
    ],
)
def test_wrong_profiles_are_told(profile, lines, message):
    with pytest.raises(InputError, match=message):
        load_graph(profile(*lines))


def test_a_profile_is_of_one_batch_size(profile):
    with pytest.raises(InputError, match="those of one batch size, so batch=2 cannot be set"):
        load_graph(profile(line(1, "A")), batch=2)


def test_other_files_are_no_profiles(tmp_path):
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not UTF-8 text"):
        read_profile(tmp_path / "bytes.txt")
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(InputError, match="no layer in it"):
        read_profile(tmp_path / "empty.txt")
