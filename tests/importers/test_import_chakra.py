"""Chakra traces: the recorded one, and small ones encoded here."""

import gzip

import pytest
from chakra_files import field, node, trace_of, varint
from hypothesis import given
from hypothesis import strategies as st
from import_helpers import recorded

from scenarios.importers import load_graph
from scenarios.importers.chakra import load
from scenarios.importers.chakra_nodes import (
    _read_node,
    as_signed,
    delimited_messages,
    fields,
    read_nodes,
    read_varints,
)
from scenarios.recorded.setup import run_recorded
from sim.base.errors import GraphError, InputError


@pytest.fixture
def trace(tmp_path):
    def write(*nodes, name="t.et"):
        path = tmp_path / name
        path.write_bytes(trace_of(*nodes))
        return path

    return write


@given(
    st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 2**64 - 1) | st.binary(max_size=300)), max_size=8)
)
def test_messages_are_read_back(pairs):
    message = b"".join(field(number, value) for number, value in pairs)
    assert [(number, value) for number, _, value in fields(message)] == pairs
    assert list(delimited_messages(varint(len(message)) + message + varint(0))) == [message, b""]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5))
def test_numbers_are_read_back(numbers):
    written = b"".join(varint(number % 2**64) for number in numbers)
    assert [as_signed(number) for number in read_varints(written)] == numbers


@pytest.mark.parametrize(
    "broken", [b"\x08", b"\x08\xff", b"\x12\x05ab", b"\x0b", b"\x09abc", b"\x08" + b"\xff" * 11]
)
def test_broken_messages_are_told(broken):
    with pytest.raises(InputError, match="protobuf"):
        list(fields(broken))


def test_whole_numbers_of_attributes_in_every_encoding():
    message = field(1, 1)
    for name, encoded in (
        ("int64", field(9, -7)),
        ("uint64", field(13, 7)),
        ("sint32", field(15, 13)),  # zigzag: 0, -1, 1, -2, ...
        ("sint64", field(17, 14)),
        ("fixed32", varint(19 << 3 | 5) + (7).to_bytes(4, "little")),
        ("fixed64", varint(21 << 3 | 1) + (7).to_bytes(8, "little")),
        ("sfixed64", varint(25 << 3 | 1) + (-7).to_bytes(8, "little", signed=True)),
    ):
        message += field(10, field(1, name) + encoded)
    assert _read_node(message).attributes == {
        "int64": -7, "uint64": 7, "sint32": -7, "sint64": 7, "fixed32": 7, "fixed64": 7, "sfixed64": -7
    }  # fmt: skip


# -- the recording --------------------------------------------------------------------------------


def test_the_recorded_trace():
    path = recorded("chakra/chakra.0.et.gz")
    with pytest.warns(UserWarning, match="1277 ctrl_deps name nodes that are not in the file") as warned:
        graph = load_graph(path)
    assert len(warned) == 1  # every data dependency is there
    nodes = read_nodes(path)
    assert len(graph) == len(nodes) == 3664
    after = [{*row} for row in graph.after.lists()]
    place = {node.id: i for i, node in enumerate(nodes)}
    assert all({place[other] for other in node.data_deps} <= after[i] for i, node in enumerate(nodes))
    assert sum(n.type == "collective" for n in nodes) == 21
    kinds = [graph.kind(op) for op in range(len(graph))]
    assert (kinds.count("all_reduce"), kinds.count("broadcast")) == (5, 2)  # the others are their host calls
    pins = [graph.pins[code] for code in graph.pin_code.tolist()]
    assert (pins.count("cpu"), pins.count("gpu")) == (2448, 1216)
    assert int(graph.duration_ns.sum()) == 1000 * (52_252 + 329_543)
    trace = run_recorded(graph)
    trace.check()
    start = dict(zip(trace.tasks["op"].tolist(), trace.tasks["start_ns"].tolist(), strict=True))
    reduces = [start[op] for op in range(len(graph)) if kinds[op] == "all_reduce"]
    assert [round(ns / 1e6) for ns in reduces] == [
        94,
        105,
        123,
        165,
        292,
    ]  # by the file's edges alone 15 to 46
    assert trace.makespan_ns == 301_181_000  # the last one is exposed; copies and the optimizer wait for it


# -- small traces ---------------------------------------------------------------------------------


def test_a_trace_of_pytorch(trace):
    path = trace(
        node(1, "aten::add", us=7, is_cpu_op=True, tid=4, seq_id=-1, ctrl=[1]),
        node(2, "void k::elementwise_kernel<4>(int)", data=[1], ctrl=[1], is_cpu_op=False, tid=7,
             inputs="[[1, 2, 0, 100, 4, 'cuda:0'], [3, 4, 0, 1, 8, 'cpu']]",
             outputs="[[5, 6, 0, 100, 2, 'cuda:0']]"),
        node(3, "nccl", 7, data=[2, 1], ctrl=[1], is_cpu_op=False, comm_type=0, comm_size=4096),
    )  # fmt: skip
    graph = load_graph(path)
    assert [*graph.op_names] == ["add#1", "elementwise_kernel#2", "nccl#3"]
    assert [graph.kind(op) for op in range(3)] == ["host", "elementwise", "all_reduce"]
    assert graph.duration_ns.tolist() == [7000, 1000, 1000]
    assert graph.after.lists() == [[], [0], [1, 0]]
    assert graph.bytes_read.tolist() == [0, 408, 4096]
    assert graph.bytes_written.tolist() == [0, 200, 4096]
    assert graph.attributes[0] == {"thread": 4, "seq_id": -1, "full_name": "aten::add"}
    assert graph.attributes[1] == {
        "stream": 7,
        "parent": "add#1",
        "kernel": "void k::elementwise_kernel<4>(int)",
        "operator": "aten::add",
    }


def test_any_other_trace_keeps_control_dependencies(trace):
    path = trace(
        node(1, "a"),
        node(2, "b", 5, ctrl=[1]),
        node(3, "c", 6, ctrl=[1], data=[1, 2]),
        node(4, "", 7, comm_type=7),
        name="t.et.gz",
    )
    path.write_bytes(gzip.compress(path.read_bytes()))
    graph = load_graph(path)
    assert graph.name == "t"
    assert graph.after.lists() == [[], [0], [0, 1], []]
    assert [graph.kind(op) for op in range(4)] == ["kernel", "send", "recv", "reduce_scatter"]
    assert graph.op_names[3] == "collective#4"


def test_dangling_dependencies_are_reported(trace):
    path = trace(node(1, data=[8, 9]), node(2, ctrl=[7], data=[1]))
    with pytest.warns(UserWarning, match="the ops do not wait for them") as warned:
        graph = load(path)
    assert [str(w.message).partition(": ")[2] for w in warned] == [
        "2 data_deps name nodes that are not in the file (1 on 8, 1 on 9); the ops do not wait for them",
        "1 ctrl_deps name nodes that are not in the file (2 on 7); the ops do not wait for them",
    ]
    assert graph.after.lists() == [[], [0]]
    with pytest.raises(InputError, match="2 data_deps name nodes that are not in the file"):
        load(path, unknown="error")


def test_wrong_traces_are_told(trace, tmp_path):
    with pytest.raises(GraphError, match=r"t\.et: 1 node id\(s\) are there twice"):
        load(trace(node(1), node(1)))
    with pytest.raises(GraphError, match=r"t\.et: graph 't' has a cycle: op#1 -> op#2 -> op#1"):
        load(trace(node(1, data=[2]), node(2, data=[1])))
    with pytest.raises(InputError, match="not a Chakra trace: no node in it"):
        load(trace())
    with pytest.raises(GraphError, match=r"t\.et: 1 node id\(s\) are there twice"):
        load(trace(field(2, "a"), field(2, "b")))  # both are number 0, which proto3 leaves out
    assert load(trace(field(2, "a"), node(1, data=[0]))).after.lists() == [[], [0]]
    with pytest.raises(InputError, match="those of one batch size"):
        load_graph(trace(node(1)), batch=2)
    (tmp_path / "x.et").write_bytes(b"\xff\xff")
    with pytest.raises(InputError, match="not a Chakra trace: a protobuf message ends"):
        load_graph(tmp_path / "x.et")
    cut = trace(node(1), node(2)).read_bytes()[:-3]
    (tmp_path / "cut.et").write_bytes(cut)
    with pytest.raises(InputError, match="not a Chakra trace: the file ends in the middle of a message"):
        load_graph(tmp_path / "cut.et")
