"""Damaged ONNX files: every one is either read or refused in one sentence that names the file."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runner import sim

from scenarios.importers import convert, load_graph
from sim import Graph
from sim.base.errors import InputError

onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
helper, FLOAT, INT64 = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def small_model() -> bytes:
    """Return a model with attributes, weights, constants, shape operands and a condition."""
    inside = helper.make_graph(
        [helper.make_node("Relu", ["r"], ["t"], name="then")],
        "then",
        [],
        [helper.make_tensor_value_info("t", FLOAT, [2, 8])],
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["r"], ["e"], name="else")],
        "else",
        [],
        [helper.make_tensor_value_info("e", FLOAT, [2, 8])],
    )
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("MaxPool", ["c"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Reshape", ["p", "to"], ["f"], name="flat"),
        helper.make_node("Gemm", ["f", "v"], ["r"], name="gemm", alpha=0.5, transB=1),
        helper.make_node(
            "Constant", [], ["yes"], value=helper.make_tensor("", onnx.TensorProto.BOOL, [], [1])
        ),
        helper.make_node("If", ["yes"], ["y"], name="if", then_branch=inside, else_branch=other),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", FLOAT, [2, 3, 4, 4])],
        [helper.make_tensor_value_info("y", FLOAT, [2, 8])],
        [
            helper.make_tensor("w", FLOAT, [4, 3, 3, 3], [0.5] * 108),
            helper.make_tensor("v", FLOAT, [8, 16], [0.25] * 128),
            helper.make_tensor("to", INT64, [2], [2, 16]),
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return bytes(made.SerializeToString())


def mutations(whole: bytes, count: int) -> Iterator[bytes]:
    """Yield damaged copies: bytes changed, taken out, put in, cut off; not in the weights."""
    draw = random.Random(11)
    weights = [
        (at, at + 400)
        for at in (whole.find(bytes(4 * [0, 0, 0, 63])), whole.find(bytes(4 * [0, 0, 128, 62])))
    ]
    places = [i for i in range(len(whole)) if not any(a <= i < b for a, b in weights)]
    for k in range(count):
        at = draw.choice(places)
        damaged = bytearray(whole)
        if k % 4 == 0:
            damaged[at] ^= 1 << draw.randrange(8)
        elif k % 4 == 1:
            for _ in range(draw.randint(1, 4)):
                damaged[draw.choice(places)] = draw.choice((0, 1, 2, 127, 128, 255, draw.randrange(256)))
        elif k % 4 == 2:
            del damaged[at : at + draw.randint(1, 9)]
        else:
            damaged[at:at] = draw.randbytes(draw.randint(1, 3))
        yield bytes(damaged)
    yield from (whole[: draw.randrange(len(whole))] for _ in range(count // 10))


def outcome(path: Path) -> str:
    """Read a file; return what was said of it, or nothing. Anything but an InputError fails the test."""
    try:
        graph = load_graph(path)
    except InputError as error:
        said = str(error)
        assert str(path) in said or said.startswith("attributes:"), said
        assert "Traceback" not in said
        return said
    assert isinstance(graph, Graph)
    return ""


@pytest.mark.filterwarnings("ignore")
def test_whatever_is_damaged_is_read_or_refused(tmp_path: Path) -> None:
    whole, path = small_model(), tmp_path / "m.onnx"
    path.write_bytes(whole)
    assert outcome(path) == ""
    told = []
    for damaged in mutations(whole, 200):
        path.write_bytes(damaged)
        told.append(outcome(path))
    assert 20 < sum(map(bool, told)) < len(told)  # some are read all the same


def named(name: bytes) -> bytes:
    """Return the model with the name of its first node replaced, which has four letters."""
    whole = small_model()
    assert whole.count(b"\x1a\x04conv") == 1
    return whole.replace(b"\x1a\x04conv", b"\x1a\x04" + name)


def with_attribute_type(number: int) -> bytes:
    """Return the model with another type of its first attribute."""
    model = onnx.load_model_from_string(small_model())
    first = model.graph.node[0].attribute[0]
    whole, old = small_model(), first.SerializeToString()
    first.ClearField("type")
    new = first.SerializeToString() + b"\xa0\x01" + bytes([number])  # field 20, a varint
    assert len(new) == len(old)
    assert whole.count(old) == 1
    return whole.replace(old, new)


def without_outputs(at: int) -> bytes:
    """Return the model with a node that writes nothing."""
    model = onnx.load_model_from_string(small_model())
    model.graph.node[at].output[0] = ""
    return bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (named(b"co\xffv"), "a name in it is no UTF-8 text"),
        (small_model()[:-40], "not an ONNX model"),
        (b"", "is empty"),
        (b"\xff" * 100, "not an ONNX model"),
        (without_outputs(5), "node 'if' (If) has no output; the file may be damaged"),
        (without_outputs(0), "output 0 is marked single but has an empty string"),
        (with_attribute_type(99), ""),
        (with_attribute_type(1), ""),
        (small_model().replace(b"kernel_shape", b"kernel_shap\xc3"), "a name in it is no UTF-8 text"),
        (small_model().replace(b"kernel_shape", b"kernel_shapf"), ""),
    ],
    ids=[
        "name",
        "cut",
        "empty",
        "noise",
        "if",
        "no output",
        "type 99",
        "type float",
        "attribute's name",
        "unknown attribute",
    ],
)
def test_damage_that_people_meet(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = outcome(path)
        assert says in said
        assert bool(said) or not says
        done = sim("import", path, "--out", tmp_path / "g.json")
    assert done.exit_code == (2 if said else 0), done.output
    assert "Traceback" not in done.output
    if says:
        with pytest.raises(InputError, match=re.escape(says)):
            convert(path, tmp_path / "g.json")
