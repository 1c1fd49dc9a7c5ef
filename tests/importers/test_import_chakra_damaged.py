"""Chakra traces that are damaged, or drawn: one line for what is wrong, and the order of what is right."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import pytest
from chakra_files import field, host, kernel, node, tensors, trace_of, varint
from cli_runner import sim
from examples import seeds

from scenarios.importers import load_graph
from scenarios.recorded.setup import run_recorded
from sim.base.errors import InputError

WHOLE = trace_of(
    host(1, "aten::mm", us=2, outputs=tensors(3), op_schema="aten::mm(Tensor a, Tensor b) -> Tensor"),
    kernel(2, "gemm", by=1, us=9, inputs=tensors(1, 2), outputs=tensors(3)),
    host(3, "aten::_foreach_add_", us=2, op_schema="x(Tensor(a!)[] self) -> ()", inputs=f"[{tensors(3)}]"),
    kernel(4, "add", by=3, us=9, inputs=f"[{tensors(3)}]"),
    host(5, "c10d::allreduce_", us=2),
    kernel(6, "nccl", 20, by=5, us=4, type=7, comm_type=0, comm_size=8, inputs=tensors(3), pg_name="0"),
)  # fmt: skip


@pytest.mark.parametrize("seed", seeds(200))
def test_damage_is_refused_or_harmless(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    data = bytearray(WHOLE)
    for _ in range(draw.choice((1, 1, 3))):
        at = draw.randrange(len(data))
        change = draw.randrange(4)
        if change == 0:
            data[at] = draw.randrange(256)
        elif change == 1:
            data[at : at + draw.randrange(1, 9)] = b""
        elif change == 2:
            data[at:at] = draw.choice((b"\xff" * 9 + b"\x01", bytes(3), b"\x7f"))
        else:
            del data[at + 1 :]
    path = tmp_path / "t.et"
    path.write_bytes(bytes(data))
    said = ""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* name nodes that are not in the file")
        try:
            load_graph(path)
        except InputError as error:
            said = str(error)
    assert said.startswith(f"{path}: " if said else "")
    assert "\n" not in said
    assert "may be damaged" not in said  # what is wrong is known


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b'{"traceEvents": []}', "not a Chakra trace: the file ends in the middle of a message"),
        (WHOLE[:-1], "not a Chakra trace: the file ends in the middle of a message"),
        (b"\x05" + field(1, "0.1") + b"\xff" * 8 + b"\x7f", "ends in the middle of a message"),
        (trace_of(field(1, 1) + varint(2 << 3 | 2) + varint(2**62) + b"abc"), "in the middle of a field"),
        (trace_of(node(1, us=2**63)), "a node that takes 9223372036854775808 us"),
        (trace_of(node(1, start=2**60)), "a node that starts at 1152921504606846976 us"),
        (trace_of(node(1, inputs=f"[[1, 2, 0, {10**12}, {10**12}, 'c']]")), "a tensor of 1000000000000 elem"),
        (trace_of(node(1, data=[2]), node(2, data=[1])), "has a cycle: op#1 -> op#2 -> op#1"),
        (trace_of(*(host(i, "x", data=[i % 99 + 1]) for i in range(1, 100))), r"more \.\.\. -> "),
        (trace_of(node(1) + field(2, 5)), "not a Chakra trace: a protobuf field that should be a text or me"),
        (trace_of(node(1) + field(8, 5)), "not a Chakra trace: a protobuf field that should be a text or me"),
        (trace_of(node(1), node(1)), r"1 node id\(s\) are there twice"),
    ],
)  # fmt: skip
def test_wrong_files_get_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "t.et"
    path.write_bytes(content)
    with pytest.raises(InputError, match=says):
        load_graph(path)
    done = sim("import", path, "--out", tmp_path / "g.json")
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)


def test_deep_nesting_is_harmless(tmp_path: Path) -> None:
    """Recorded inputs, and what a process group says of itself, are texts that may hold anything."""
    deep = "[" * 100_000
    path = tmp_path / "t.et"
    path.write_bytes(
        trace_of(
            host(1, "x", inputs=deep, op_schema="a(Tensor(a!) s)"),
            host(2, "## process_group:init ##", inputs="[{" + deep + "}]"),
            kernel(3, by=1, inputs=deep, pg_name="0"),
        )
    )
    assert len(load_graph(path)) == 3


@pytest.mark.parametrize("seed", seeds(60))
def test_drawn_programs_run_as_they_did(tmp_path: Path, seed: int) -> None:
    """Against a clock for each thread and stream, and one for each storage: when it was written and read."""
    draw = random.Random(seed)
    thread_free, stream_free = [0, 0], {7: 0, 20: 0, 24: 0}
    written: dict[int, int] = {}
    read_until: dict[int, int] = {}
    nodes, wanted = [], {}
    number = 0
    for _ in range(draw.randint(1, 15)):
        number += 1
        thread, took, launcher = draw.randrange(2), draw.randint(1, 9), number
        begin = thread_free[thread]
        wanted[f"op#{launcher}"] = begin
        thread_free[thread] = begin + took
        nodes.append(host(launcher, "op", thread, us=took))
        if draw.random() < 0.8:
            number += 1
            stream, lasts = draw.choice([*stream_free]), draw.randint(1, 40)
            reads = draw.sample(range(4), draw.randrange(3))
            writes = [draw.randrange(4, 8)] if draw.random() < 0.5 else []
            reads += [draw.randrange(4, 8)] if draw.random() < 0.7 else []
            start = max([thread_free[thread], stream_free[stream], *(written.get(s, 0) for s in reads)])
            start = max([start, *(read_until.get(s, 0) for s in writes if s in reads)])
            for s in reads:
                read_until[s] = max(read_until.get(s, 0), start + lasts)
            for s in writes:
                written[s], read_until[s] = start + lasts, 0
            stream_free[stream] = start + lasts
            wanted[f"k#{number}"] = start
            more = {"inputs": tensors(*reads), "outputs": tensors(*writes)}
            nodes.append(kernel(number, "k", stream, by=launcher, us=lasts, **more))
    path = tmp_path / "t.et"
    draw.shuffle(nodes)
    path.write_bytes(trace_of(*nodes))
    graph = load_graph(path)
    run = run_recorded(graph)
    run.check()
    starts = zip(run.tasks["op"].tolist(), run.tasks["start_ns"].tolist(), strict=True)
    assert {graph.op_names[op]: start // 1000 for op, start in starts} == wanted
