"""Finding the format of a file, and turning any of them into a graph file."""

import gzip
import json
from pathlib import Path

import pytest
from import_helpers import REPOSITORY, columns, recorded, recorded_graph

from scenarios.importers import convert, load_graph, read_graph
from sim import GraphBuilder
from sim.base import plugins
from sim.base.errors import InputError, UnknownNameError

INCEPTION = REPOSITORY / "scenarios" / "examples" / "graphs" / "inception_v1.json.gz"


def light(name):
    onnx = pytest.importorskip("onnx")
    return Path(onnx.__file__).parent / f"backend/test/data/light/light_{name}.onnx"


def test_a_graph_file_is_known_by_its_content(tmp_path):
    for name in ("graph.json.gz", "graph", "graph.txt"):
        (tmp_path / name).write_bytes(INCEPTION.read_bytes())
        assert load_graph(tmp_path / name).name == "inception_v1"
    assert load_graph(INCEPTION, batch=32).flops.sum() == 32 * load_graph(INCEPTION).flops.sum()


@pytest.mark.parametrize("content", [b"hello", b"{}", b'{"schema": "sim.scenario/1"}', b"\x08\x03"])
def test_an_unknown_format_lists_the_known_ones(tmp_path, content):
    (tmp_path / "file.json").write_bytes(content)
    with pytest.raises(InputError, match="no known format; convert it with sim import --format") as error:
        load_graph(tmp_path / "file.json")
    for known in ("graph-json: ", "onnx: ", "pipedream: ", "tensorflow-json: "):
        assert f"\n  {known}" in str(error.value)


@pytest.mark.parametrize("content", [b"", gzip.compress(b"")], ids=["plain", "gzip"])
def test_an_empty_file_is_told(tmp_path, content):
    (tmp_path / "file.json").write_bytes(content)
    with pytest.raises(InputError, match=r"file\.json: is empty$"):
        load_graph(tmp_path / "file.json")


def test_format_and_options_are_checked(tmp_path):
    with pytest.raises(UnknownNameError, match=r"unknown importer 'onx'; did you mean 'onnx'\?"):
        load_graph(INCEPTION, format="onx")
    with pytest.raises(InputError, match=r"the importer of .* has no option 'dtype'; it has none"):
        load_graph(INCEPTION, dtype="bf16")
    with pytest.raises(InputError, match="not JSON"):
        load_graph(REPOSITORY / "pyproject.toml", format="graph-json")
    with pytest.raises(InputError, match="no such file"):
        load_graph(tmp_path / "none")
    with pytest.raises(InputError, match="is a directory"):
        load_graph(tmp_path)
    assert load_graph(light("squeezenet"), dtype="fp16", batch=2).dtypes == ("fp16",)


def test_other_packages_may_add_a_format(tmp_path):
    class Lines:
        """One op a line."""

        def recognises(self, name, head):
            return name.endswith(".lines")

        def load(self, path, *, batch=None):
            builder = GraphBuilder("lines")
            for line in Path(path).read_text().splitlines():
                builder.op(line)
            return builder.build()

    (tmp_path / "a.lines").write_text("one\ntwo\n")
    plugins.register("sim.importers", "lines", Lines())
    try:
        assert [*load_graph(tmp_path / "a.lines").op_names] == ["one", "two"]
        done = convert(tmp_path / "a.lines", tmp_path / "a.json")
        assert (done.batch, done.fixed_because) == (None, "the format does not tell the batch size")
    finally:
        plugins.unregister("sim.importers", "lines")


def test_convert_keeps_every_batch_size(tmp_path):
    done = convert(light("shufflenet"), tmp_path / "s.json.gz", note="a note", dtype="bf16")
    assert (done.batch, done.fixed_because) == (1, None)
    again = convert(tmp_path / "s.json.gz", tmp_path / "t.json", batch=4)
    assert (again.batch, again.fixed_because) == (4, None)
    assert json.loads((tmp_path / "t.json").read_text())["batch"] == 4
    for batch in (1, 5, 64):
        expected = columns(load_graph(light("shufflenet"), batch=batch, dtype="bf16"))
        assert columns(read_graph(tmp_path / "s.json.gz", batch=batch)) == expected
        assert columns(read_graph(tmp_path / "t.json", batch=batch)) == expected


def test_convert_says_why_a_batch_is_fixed(tmp_path):
    done = convert(recorded("pipedream/vgg16.txt"), tmp_path / "v.json")
    assert done.fixed_because == "the format does not tell the batch size"
    assert columns(read_graph(tmp_path / "v.json")) == columns(load_graph(recorded("pipedream/vgg16.txt")))
    onnx = pytest.importorskip("onnx")
    value = onnx.helper.make_tensor_value_info
    nodes = [  # every sample with every other: the work is the square of the batch
        onnx.helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        onnx.helper.make_node("MatMul", ["x", "t"], ["y"]),
    ]
    graph = onnx.helper.make_graph(nodes, "g", [value("x", 1, [2, 8])], [value("y", 1, None)])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "square.onnx")
    done = convert(tmp_path / "square.onnx", tmp_path / "square.json")
    assert done.batch == 2
    assert "the batch cannot be changed: 'y' is 2x2" in done.fixed_because
    assert read_graph(tmp_path / "square.json").flops.tolist() == [0, 2 * 2 * 2 * 8]


def test_a_recorded_graph_survives_the_round_trip(tmp_path):
    name = "tensorflow/ResNet50_train_b32.json.gz"
    convert(recorded(name), tmp_path / "r.json.gz")
    assert columns(read_graph(tmp_path / "r.json.gz")) == columns(recorded_graph(name))
