"""Tables: columns, words, what is missing, files that read back, the same bytes every time."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from drawn_runs import draw_run

from devices.network import make_network
from policies.issue.program_order import InOrder
from policies.issue.ready_queue import ReadyQueue
from scenarios.ops.control_flow import cond
from sim import Device, GraphBuilder, Link, Machine, Trace, simulate
from sim.base.errors import InputError
from sim.diff.schedule import read_ops_table
from sim.export.tables import TABLE_ENDINGS, device_rows, task_table, write_table
from sim.metrics import summary

COLUMNS = [
    "op",
    "kind",
    "device",
    "stream",
    "issuer",
    "iteration",
    "micro_batch",
    "stage",
    "phase",
    "ready_ns",
    "issue_ns",
    "start_ns",
    "end_ns",
    "nbytes",
    "flops",
    "wait",
]


def small() -> Trace:
    """Return a run of two ops on two devices over two links."""
    b = GraphBuilder("small")
    b.op("a", kind="matmul", outputs=[100, 20], flops=7, duration_ns=10, device="x", stage=0, micro_batch=2)
    b.op("b", kind="add", inputs=["a"], duration_ns=5, device="z", phase="F")
    links = (Link("xy", "x", "y", 1, 10**9), Link("yz", "y", "z", 1, 10**9))
    machine = Machine(
        (Device("x", issue_ns=3), Device("y"), Device("z", "cpu", workers=2)), links, network=make_network
    )
    return simulate(b.build(), machine, ReadyQueue())


@pytest.mark.parametrize(("count", "shown"), [(20, 20), (64, 2)])
def test_of_many_devices_equal_ones_share_a_row(count: int, shown: int) -> None:
    b = GraphBuilder("many")
    for d in range(count):
        b.op(f"op{d}", duration_ns=10 + (d == 3), device=f"gpu{d}")
    trace = simulate(b.build(), Machine(tuple(Device(f"gpu{d}") for d in range(count))), ReadyQueue())
    rows = device_rows(summary(trace))
    assert len(rows) == shown
    assert rows[0]["device"] == ("gpu0" if shown == 20 else "gpu0 and 62 more")
    assert [row["compute"] for row in rows[:: shown - 1]] == ["10 ns", "10 ns" if shown == 20 else "11 ns"]


def test_columns_and_words() -> None:
    table = task_table(small())
    assert list(table.columns) == COLUMNS
    rows = json.loads(table.to_json(orient="records"))
    assert rows == [
        {
            "op": "a",
            "kind": "matmul",
            "device": "x",
            "stream": "x/0",
            "issuer": "x/host",
            "iteration": 0,
            "micro_batch": 2,
            "stage": 0,
            "phase": None,
            "ready_ns": 0,
            "issue_ns": 3,
            "start_ns": 3,
            "end_ns": 13,
            "nbytes": 120,
            "flops": 7,
            "wait": "issuer",
        },
        {
            "op": "b",
            "kind": "add",
            "device": "z",
            "stream": "z/w0",
            "issuer": "z/w0",
            "iteration": 0,
            "micro_batch": None,
            "stage": None,
            "phase": "F",
            "ready_ns": 115,
            "issue_ns": 115,
            "start_ns": 115,
            "end_ns": 120,
            "nbytes": 0,
            "flops": 0,
            "wait": "",
        },
    ]


def test_the_policy_is_named_where_it_held_a_task_back() -> None:
    b = GraphBuilder("head of line")
    b.op("a", duration_ns=10, device="x")
    b.op("b", duration_ns=10, device="y", inputs=["a"])
    b.op("c", duration_ns=10, device="y")
    machine = Machine((Device("x"), Device("y")))
    table = task_table(simulate(b.build(), machine, InOrder())).set_index("op")
    assert table["wait"].to_dict() == {"a": "", "b": "", "c": "policy"}
    table = task_table(simulate(b.build(), machine, ReadyQueue())).set_index("op")
    assert table["wait"].to_dict() == {"a": "", "b": "", "c": ""}


def test_a_trace_makes_its_own_table() -> None:
    trace = draw_run(5)
    pd.testing.assert_frame_equal(trace.to_pandas(), task_table(trace))


def test_skipped_ops_are_marked() -> None:
    b = GraphBuilder("branch")
    b.op("p", attributes={"outcome": False}, duration_ns=0)
    b.op("x", duration_ns=0)
    cond(
        b,
        "if",
        "p",
        ["x"],
        lambda b, v: [b.op("yes", inputs=[v["x"]], duration_ns=5)],
        lambda b, v: [b.op("no", inputs=[v["x"]], duration_ns=5)],
    )
    trace = simulate(b.build(), Machine((Device("cpu0", "cpu", workers=1),)), ReadyQueue())
    dead = task_table(trace).set_index("op")["dead"]
    assert (dead["yes"], dead["no"]) == (True, False)


@pytest.mark.parametrize("ending", TABLE_ENDINGS)
def test_files_read_back(tmp_path: Path, ending: str) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    table = task_table(draw_run(9))
    path = tmp_path / f"ops{ending}"
    write_table(table, path)
    if ending == ".parquet":
        again = pd.read_parquet(path)
    elif ending.startswith(".csv"):
        again = pd.read_csv(path, keep_default_na=False)
    else:
        content = gzip.decompress(path.read_bytes()) if ending.endswith(".gz") else path.read_bytes()
        again = pd.DataFrame(json.loads(content))
    assert list(again.columns) == COLUMNS
    for column in ("op", "stream", "wait"):
        assert again[column].astype(str).tolist() == table[column].astype(str).tolist()
    for column in ("start_ns", "end_ns", "flops"):
        assert again[column].tolist() == table[column].tolist()
    assert [p.name for p in tmp_path.iterdir()] == [path.name], "nothing else is left behind"


def test_numbers_in_json_are_exact(tmp_path: Path) -> None:
    rows = [{"share": 0.1 + 0.2, "n": 2**62, "word": "a"}, {"share": None, "n": 1, "word": "b/c"}]
    write_table(pd.DataFrame([*rows, {**rows[0], "share": np.inf}]), tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_text()) == [*rows, {**rows[0], "share": None}]


def test_bytes_depend_on_the_trace_alone(tmp_path: Path, root: Path) -> None:
    pytest.importorskip("pyarrow")
    code = (
        "import sys; from drawn_runs import draw_run; from sim.export.tables import *;"
        "[write_table(task_table(draw_run(4)), sys.argv[1] + ending) for ending in TABLE_ENDINGS]"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "there")], env=environment, check=True)
    for ending in TABLE_ENDINGS:
        here = tmp_path / f"here{ending}"
        write_table(task_table(draw_run(4)), here)
        assert here.read_bytes() == (tmp_path / f"there{ending}").read_bytes()


def test_another_ending(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ops\.xlsx: a table's name ends in \.csv"):
        write_table(task_table(small()), tmp_path / "ops.xlsx")
    with pytest.raises(InputError, match=r"the directory .* does not exist"):
        write_table(task_table(small()), tmp_path / "nowhere" / "ops.csv")


def test_pandas_is_imported_only_for_tables() -> None:
    code = "import sys, sim.export.tables, sim.metrics; print('pandas' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


@pytest.mark.parametrize(
    "name", ["=cmd|' /C calc'!A0", "b\x1b[31mred", "-c", "@x", "'=a", "'plain", "two\nlines"]
)
def test_a_name_in_csv_is_no_formula_and_steers_no_terminal(tmp_path: Path, name: str) -> None:
    b = GraphBuilder("one")
    b.op(name, duration_ns=10)
    trace = simulate(b.build(), Machine((Device("cpu0"),)), InOrder())
    path = tmp_path / "t.csv"
    write_table(task_table(trace), path)
    row = path.read_text().split("\n", 1)[1]
    assert row.lstrip('"')[0] not in "=+-@"
    assert "\x1b" not in row
    assert read_ops_table(path)["op"].tolist() == [name]
