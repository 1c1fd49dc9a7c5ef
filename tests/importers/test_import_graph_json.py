"""Graph files: what is written comes back, byte for byte the same, and wrong files say what is wrong."""

import dataclasses
import gzip
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from import_helpers import REPOSITORY, chain, columns

from scenarios.importers import graph_columns, load_graph
from scenarios.importers.graph_columns import SCHEMA, json_schema
from scenarios.importers.graph_json import (
    at_batch,
    is_straight,
    read_graph,
    recognises,
    slope_between,
    write_graph,
)
from sim import GraphBuilder
from sim.base.errors import GraphError, InputError
from sim.graph.attributes import READERS

amount = st.integers(0, 2**40)
word = st.text(min_size=1, max_size=8)
foreign = word.filter(lambda name: name not in READERS)
"""Names of attributes that mean something to other programs; ours have values that are checked."""
attribute = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def graphs(draw):
    """Any graph a builder makes: forward references, distances, several outputs, every optional fact."""
    builder = GraphBuilder(draw(st.text(max_size=5)))
    n = draw(st.integers(1, 12))
    names = draw(st.lists(word, min_size=n + 3, max_size=n + 3, unique=True))
    names, tensors = names[:n], names[n:]
    sizes = [draw(st.lists(amount, max_size=3)) for _ in names]
    for tensor in tensors:
        add = draw(st.sampled_from([builder.input, builder.parameter]))
        add(tensor, draw(amount), device=draw(st.none() | st.sampled_from(["gpu0", "cpu"])))
    outputs = [
        [f"{name}:{k}" if k else name for k in range(max(1, len(s)))]
        for name, s in zip(names, sizes, strict=True)
    ]
    order = draw(st.permutations(range(n)))  # edges lead forward in this order, not in that of the file
    rank = {op: place for place, op in enumerate(order)}

    def reference(op, choices):
        earlier = [x for other, xs in enumerate(choices) if rank[other] < rank[op] for x in xs]
        now = st.sampled_from(earlier) if earlier else st.nothing()
        late = st.tuples(st.sampled_from([x for xs in choices for x in xs]), st.integers(1, 3))
        return now | late

    for i, name in enumerate(names):
        builder.op(
            name,
            kind=draw(st.sampled_from(["conv", "relu", "switch"])),
            inputs=draw(st.lists(reference(i, outputs) | st.sampled_from(tensors), max_size=4)),
            after=draw(st.lists(reference(i, [[x] for x in names]), max_size=2)),
            outputs=sizes[i],
            duration_ns=draw(st.none() | amount),
            duration_by_kind=draw(st.dictionaries(st.sampled_from(["cpu", "gpu"]), amount)),
            flops=draw(amount),
            bytes_read=draw(st.none() | amount),
            bytes_written=draw(st.none() | amount),
            device=draw(st.none() | st.sampled_from(["gpu0", "cpu"])),
            dtype=draw(st.none() | st.sampled_from(["fp32", "bf16"])),
            stage=draw(st.none() | st.integers(0, 9)),
            micro_batch=draw(st.none() | st.integers(0, 9)),
            phase=draw(st.none() | st.sampled_from("FBIWR")),
            attributes=draw(st.none() | st.dictionaries(foreign, attribute, max_size=3)),
        )
    return builder.build()


@examples(20)
@given(graphs(), st.sampled_from(["g.json", "g.json.gz"]))
def test_what_is_written_comes_back(tmp_path_factory, graph, name):
    folder = tmp_path_factory.mktemp("graph")
    write_graph(graph, folder / name)
    back = read_graph(folder / name)
    assert columns(back) == columns(graph)
    write_graph(back, folder / f"again-{name}")
    assert (folder / f"again-{name}").read_bytes() == (folder / name).read_bytes()
    assert sorted(os.listdir(folder)) == sorted([name, f"again-{name}"])  # nothing half written is left


@examples(10)
@given(graphs(), st.data())
def test_a_graph_is_read_at_any_batch(tmp_path_factory, graph, data):
    """Give every number of an untimed graph a slope, write, and read at another batch size."""
    untimed = np.full(len(graph), -1)
    base = dataclasses.replace(graph, duration_ns=untimed, duration_by_kind={})
    some = st.integers(0, 1000)

    def grown(column):
        return column + np.array(
            data.draw(st.lists(some, min_size=len(column), max_size=len(column))), np.int64
        )

    next_batch = dataclasses.replace(
        base,
        **{
            name: grown(getattr(base, name))
            for name in ("flops", "bytes_read", "bytes_written", "tensor_nbytes")
        },
    )
    rows = {op: {"m": data.draw(st.integers(4, 9))} for op in range(0, len(base), 2)}
    base = dataclasses.replace(base, attributes={**base.attributes, **rows})
    more = {op: {"m": found["m"] + op} for op, found in rows.items()}
    next_batch = dataclasses.replace(next_batch, attributes={**base.attributes, **more})
    slope = slope_between(base, 4, next_batch)
    path = tmp_path_factory.mktemp("graph") / "g.json.gz"
    write_graph(base, path, slope=slope)
    assert columns(read_graph(path)) == columns(base)
    assert columns(read_graph(path, batch=4)) == columns(base)
    assert columns(read_graph(path, batch=5)) == columns(next_batch)
    assert columns(read_graph(path, batch=100)) == columns(at_batch(base, slope, 100))
    assert is_straight(base, slope, read_graph(path, batch=33), 33)


def test_the_bytes_do_not_depend_on_where_or_when(tmp_path):
    write_graph(chain(), tmp_path / "a.json.gz")
    program = (
        "import sys; sys.path[:0] = ['tests', '.']\n"
        "from import_helpers import chain\n"
        "from scenarios.importers.graph_json import write_graph\n"
        f"write_graph(chain(), {str(tmp_path / 'b.json.gz')!r})"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", program], check=True, cwd=REPOSITORY, env=environment)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert (tmp_path / "a.json.gz").read_bytes()[4:8] == bytes(4)  # RFC 1952: the time stamp


def test_a_file_a_person_would_write(tmp_path):
    path = tmp_path / "two.json"
    path.write_text(
        json.dumps(
            {
                "schema": SCHEMA,
                "name": "two ops",
                "tensors": [
                    {"name": "x", "role": "input", "nbytes": 4096},
                    {"name": "w", "role": "parameter"},
                ],
                "ops": [
                    {"name": "mm", "kind": "matmul", "inputs": ["x", "w"], "outputs": [64], "flops": 2097152},
                    {"name": "act", "inputs": ["mm", ["act", 1]], "after": [["mm", 2]], "duration_ns": 7},
                ],
            },
            indent=3,
        )
    )
    graph = read_graph(path)
    assert graph.bytes_read.tolist() == [4096, 64]
    assert graph.bytes_written.tolist() == [64, 0]
    assert graph.duration_ns.tolist() == [-1, 7]
    assert graph.input_distance.tolist() == [0, 0, 0, 1]
    assert graph.after_distance.tolist() == [2]
    assert recognises("two.json", path.read_bytes())


def document(**changes):
    base = {
        "schema": SCHEMA,
        "name": "g",
        "tensors": [{"name": "x", "role": "input", "nbytes": 4}],
        "ops": [{"name": "a", "inputs": ["x"]}, {"name": "b", "inputs": ["a"]}],
    }
    return json.dumps({**base, **changes}).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON: "),
        (b"\x00\x01", "not JSON: "),
        (b'{"schema": "sim.graph/1", ', "not JSON: "),
        (b"[1, 2]", "the file: should be a mapping"),
        (document(schema="sim.graph/2"), "schema: should be 'sim.graph/1', not 'sim.graph/2'"),
        (b'{"name": "g", "ops": [{"name": "a"}]}', "the file: the key 'schema' is missing"),
        (document(ops=[{"kind": "relu"}]), "ops[0]: the key 'name' is missing"),
        (document(ops=[]), "ops: should have at least 1 item"),
        (document(ops=[{"name": "a", "flop": 3}]), "ops[0] (a).flop: no such key; did you mean 'flops'?"),
        (document(ops=[{"name": "a", "flops": "3"}]), "ops[0] (a).flops: should be a whole number, not '3'"),
        (document(ops=[{"name": "a", "flops": 1.5}]), "ops[0] (a).flops: should be a whole number"),
        (document(ops=[{"name": "a", "flops": True}]), "ops[0] (a).flops: should be a whole number"),
        (
            document(ops=[{"name": "a", "flops": -1}]),
            "ops[0] (a).flops: should be greater than or equal to 0",
        ),
        (document(ops=[{"name": "a", "flops": 2**63}]), "ops[0] (a).flops: should be less than or equal to"),
        (
            document(ops=[{"name": "a", "inputs": [3]}]),
            "ops[0] (a).inputs[0]: should be a name or [name, dist",
        ),
        (document(ops=[{"name": "a", "inputs": "x"}]), "ops[0] (a).inputs: should be a list, not 'x'"),
        (document(tensors=[{"name": "x", "role": "weight"}]), "tensors[0] (x).role: should be 'input' or"),
        (document(ops=[{"name": "a"}, {"name": "a"}]), "the name 'a' is used twice"),
        (document(ops=[{"name": "a", "inputs": ["xx"]}]), "unknown input 'xx'; did you mean 'x'?"),
        (
            document(ops=[{"name": "a", "inputs": ["b"]}, {"name": "b", "inputs": ["a"]}]),
            "cycle: a -> b -> a",
        ),
    ],
)
@pytest.mark.parametrize("name", ["g.json", "g.json.gz"])
def test_a_wrong_file_says_where(tmp_path, content, message, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(InputError) as error:
        read_graph(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)


FULL = document(
    devices={"gpu0": {"preset": "h200-sxm"}},
    ops=[{"name": "a", "flops": 1, "kind": "relu", "attributes": {"mine": {"deep": "one"}}}, {"name": "b"}],
)


@pytest.mark.parametrize("ops", [b"", b'"functions": [], '], ids=["columns", "records"])
@pytest.mark.parametrize("key", ["name", "ops", "role", "preset", "flops", "kind", "deep"])
def test_a_key_that_stands_twice_is_refused(tmp_path, key, ops):
    """Of two values the last would win in silence; both readers refuse it, wherever it is."""
    content = FULL.replace(b'"ops"', ops + b'"ops"')
    (tmp_path / "once.json").write_bytes(content)
    assert read_graph(tmp_path / "once.json").flops[0] == 1
    word = json.dumps(key).encode()
    value = content[content.index(word) + len(word) + 2 :]
    _, end = json.JSONDecoder().raw_decode(value.decode())
    (tmp_path / "twice.json").write_bytes(
        content.replace(word + b": ", word + b": " + value[:end] + b", " + word + b": ", 1)
    )
    with pytest.raises(InputError, match=rf"twice\.json: the key '{key}' stands twice in {{"):
        read_graph(tmp_path / "twice.json")


def test_quotation_marks_in_names_are_no_keys(tmp_path):
    name = '"a": "a'
    content = document(tensors=[], ops=[{"name": name}]).replace(rb"\"", rb"\u0022")
    (tmp_path / "quoted.json").write_bytes(content)
    assert [*read_graph(tmp_path / "quoted.json").op_names] == [name]


def test_many_faults_are_counted_not_all_shown(tmp_path):
    path = tmp_path / "g.json"
    path.write_bytes(document(ops=[{"name": f"op{i}", "flops": -1} for i in range(9)]))
    with pytest.raises(InputError, match=r"\(and 4 more\)$") as error:
        read_graph(path)
    assert len(str(error.value).splitlines()) == 6


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"none\.json: no such file"):
        read_graph(tmp_path / "none.json")
    with pytest.raises(InputError, match="is a directory"):
        read_graph(tmp_path)
    whole = gzip.compress(document())
    for name, content in {"cut": whole[:-20], "damaged": whole[:12] + b"\xff" * 9 + whole[21:]}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="truncated or damaged gzip"):
            read_graph(tmp_path / name)


def test_files_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match=r"such does not exist$"):
        write_graph(chain(), tmp_path / "no" / "such" / "folder.json")
    with pytest.raises(InputError, match="cannot be written"):
        write_graph(chain(), tmp_path / ("x" * 300 + ".json"))  # longer than any file system's names
    with pytest.raises(InputError, match="is a directory"):
        write_graph(chain(), tmp_path)
    builder = GraphBuilder("g")
    builder.op("a", attributes={"rate": float("nan")})
    with pytest.raises(GraphError, match="op 'a' has an attribute that JSON cannot hold"):
        write_graph(builder.build(), tmp_path / "g.json")
    assert os.listdir(tmp_path) == []


def test_a_failed_write_keeps_what_was_there(tmp_path):
    path = tmp_path / "g.json"
    write_graph(chain(), path)
    before = path.read_bytes()
    builder = GraphBuilder("g")
    builder.op("a", attributes={"set": {1, 2}})
    with pytest.raises(GraphError, match="JSON cannot hold"):
        write_graph(builder.build(), path)
    assert path.read_bytes() == before


def test_a_name_that_means_two_things_is_refused(tmp_path):
    builder = GraphBuilder("g")
    builder.op("a", outputs=[1, 2])
    builder.op("a:1", outputs=3)
    with pytest.raises(GraphError, match="a:1 means output 1 of 'a' and is a name of its own"):
        write_graph(builder.build(), tmp_path / "g.json")


def test_batch_needs_a_file_that_knows_about_it(tmp_path):
    write_graph(chain(), tmp_path / "g.json")
    with pytest.raises(InputError, match="one batch size only"):
        read_graph(tmp_path / "g.json", batch=2)
    timed = [{"name": "a", "duration_ns": 3, "per_sample": {"flops": 1}}]
    (tmp_path / "t.json").write_bytes(document(batch=1, ops=timed))
    assert read_graph(tmp_path / "t.json", batch=1).duration_ns.tolist() == [3]
    with pytest.raises(InputError, match="durations measured at batch 1"):
        read_graph(tmp_path / "t.json", batch=2)
    (tmp_path / "s.json").write_bytes(document(batch=8, ops=[{"name": "a", "per_sample": {"flops": 1}}]))
    with pytest.raises(InputError, match="would be negative at batch 2"):
        read_graph(tmp_path / "s.json", batch=2)
    with pytest.raises(InputError, match="at least 1 sample, not 0"):
        read_graph(tmp_path / "s.json", batch=0)
    (tmp_path / "o.json").write_bytes(
        document(batch=1, ops=[{"name": "a", "outputs": [3], "per_sample": {"outputs": [1, 1]}}])
    )
    with pytest.raises(InputError, match=r"ops\[0\] \(a\)\.per_sample\.outputs: 2 sizes for 1 output"):
        read_graph(tmp_path / "o.json", batch=2)


def test_attributes_grow_only_where_they_are_numbers(tmp_path):
    op = {"name": "a", "attributes": {"m": "many"}, "per_sample": {"attributes": {"m": 1}}}
    (tmp_path / "g.json").write_bytes(document(batch=1, ops=[op]))
    with pytest.raises(InputError, match=r"ops\[0\] \(a\)\.per_sample\.attributes\.m: it is no whole number"):
        read_graph(tmp_path / "g.json", batch=2)
    one, two = (
        dataclasses.replace(chain(), attributes={1: {"layout": layout}}) for layout in ("NCHW", "NHWC")
    )
    with pytest.raises(GraphError, match="op 'b': its layout is 'NCHW' at one batch and 'NHWC' at another"):
        slope_between(one, 1, two)
    assert not is_straight(one, slope_between(one, 1, one), two, 3)


def test_models_that_differ_in_more_than_sizes_have_no_slope():
    other = GraphBuilder("chain")
    other.input("x", 10)
    other.op("a", inputs=["x"], outputs=20, flops=5)
    with pytest.raises(GraphError, match="graph 'chain' has other op_names at batch 2 than at batch 1"):
        slope_between(chain(), 1, other.build())


def test_the_committed_schema_is_that_of_the_code():
    committed = json.loads((REPOSITORY / "scenarios" / "graph.schema.json").read_text(encoding="utf-8"))
    assert committed == json_schema()


def test_what_we_write_satisfies_the_schema(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rfc3987_syntax", None)  # a format that takes a second to import
    jsonschema = pytest.importorskip("jsonschema")
    write_graph(chain(), tmp_path / "g.json")
    jsonschema.Draft202012Validator.check_schema(json_schema())
    validator = jsonschema.Draft202012Validator(json_schema())
    assert validator.is_valid(json.loads((tmp_path / "g.json").read_text(encoding="utf-8")))
    assert not validator.is_valid(json.loads(document(ops=[{"name": "a", "flop": 3}])))


@examples(30)
@given(graphs(), st.sampled_from([1, 1 << 16]))
def test_reading_columns_and_reading_ops_give_the_same_graph(tmp_path_factory, graph, block):
    """Both readers, whether every record is a block of its own or all are one."""
    path = tmp_path_factory.mktemp("graph") / "g.json"
    write_graph(graph, path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_columns, "_BLOCK", block)
        fast = read_graph(path)
        patch.setattr(graph_columns, "read_columns", lambda content: None)
        assert columns(read_graph(path)) == columns(fast)


@pytest.mark.parametrize("separator", [",", " ,\n  "])
def test_records_are_read_as_columns_however_they_are_parted(separator):
    ops = separator.join(f'{{"name": "op{i}", "attributes": {{"a": [1, {{}}]}}}}' for i in range(9_000))
    content = f'{{"schema": "{SCHEMA}", "name": "g", "ops": [{ops}]}}'.encode()
    assert graph_columns._BLOCK < 4_500
    read = graph_columns.read_columns(content)
    assert read is not None
    builder = GraphBuilder("g")
    builder.extend(**read[1])
    assert [*builder.build().op_names] == [f"op{i}" for i in range(9_000)]


@pytest.mark.parametrize(
    "op",
    [
        {"name": "b", "flops": None},
        {"name": "b", "flops": True},
        {"name": "b", "flops": 2**63},
        {"name": "b", "bytes_read": -1},
        {"name": "b", "outputs": [-1]},
        {"name": "b", "outputs": [[3]]},
        {"name": "b", "kind": ""},
        {"name": "b", "device": None},
        {"name": ""},
        {"name": "a"},
        {"name": "b", "inputs": ["c"]},
        {"name": "b", "inputs": ["a:1"]},
        {"name": "b", "inputs": [["a"]]},
        {"name": "b", "inputs": [["a", -1]]},
        {"name": "b", "after": ["x"]},
        {"name": "b", "duration_by_kind_ns": {"cpu": True}},
        {"name": "b", "duration_by_kind_ns": {"cpu": None}},
        {"name": "b", "duration_by_kind_ns": {"": 1}},
        {"name": "b", "per_sample": {"flops": 1}},
        {"name": "b", "kind": "call"},
        {"name": "a:0"},
        {"name": "b", "unknown": 1},
        {"kind": "relu"},
        3,
    ],
)
def test_what_is_out_of_the_ordinary_is_left_to_the_exact_reader(op):
    assert graph_columns.read_columns(document(ops=[{"name": "a", "inputs": ["x"]}])) is not None
    assert graph_columns.read_columns(document(ops=[{"name": "a", "inputs": ["x"]}, op])) is None


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_and_utf_16_are_read(tmp_path, encoding):
    builder = GraphBuilder("g")
    builder.op("é", duration_ns=5)
    write_graph(builder.build(), tmp_path / "g.json")
    (tmp_path / "marked.json").write_bytes((tmp_path / "g.json").read_text("utf-8").encode(encoding))
    assert [*load_graph(tmp_path / "marked.json").op_names] == ["é"]
