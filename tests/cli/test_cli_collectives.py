"""``sim collectives``: what NCCL takes and how long it takes, as text, JSON, CSV and a picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import sim

from devices.collectives.nccl_model import make_collectives
from devices.machine import make_machine
from sim.machine.communicators import Call

TABLE = "op,gpus,bytes,time_us\n" + "".join(
    f"all_reduce,8,{1 << k},{10 + (1 << k) / 1e5}\n" for k in range(10, 28, 3)
)


def test_the_choice_is_told() -> None:
    done = sim("collectives", "--op", "all-reduce", "--bytes", "64MiB", "--machine", "dgx-h100")
    assert done.exit_code == 0
    first, choice, _, header, *rows = done.stdout.splitlines()
    assert first == "all-reduce on 8 GPUs, 1 node of dgx-h100"
    assert choice.startswith("67.11 MB: nvls, protocol simple, 16 channels of 640 threads: ")
    assert header.split()[:4] == ["size", "algorithm", "protocol", "channels"]
    assert "fitted" in header
    assert len(rows) == 21
    assert [row for row in rows if row.startswith("64 MiB <")]


def test_several_nodes_have_no_fitted_times() -> None:
    done = sim("collectives", "--bytes", "64MB", "--nodes", "4")
    assert done.exit_code == 0
    assert "on 32 GPUs, 4 nodes of dgx-h100" in done.stdout
    assert "64 MB: nvls-tree, protocol simple, 16 channels" in done.stdout
    assert "fitted" not in done.stdout


def test_rows_for_programs() -> None:
    options = ("collectives", "--op", "all-gather", "--ranks", "16", "--nodes", "16", "--bytes", "1MiB")
    found = json.loads(sim(*options, "--json").stdout)
    assert found["schema"] == "sim.collectives/1"
    assert (found["ranks"], found["nodes"]) == (16, 16)
    assert found["asked"]["algorithm"] == "pat"
    rows = {row["bytes"]: row for row in found["sizes"]}
    assert rows[1 << 20] == found["asked"]


def test_a_table_stands_beside(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TABLE)
    options = ("collectives", "--table", tmp_path / "t.csv", "--bytes", "3MiB", "--plot", tmp_path / "p.svg")
    done = sim(*options)
    assert done.exit_code == 0
    assert "off by" in done.stdout
    drawn = (tmp_path / "p.svg").read_text()
    assert "measured" in drawn
    sizes = json.loads(sim(*options, "--json").stdout)["sizes"]
    assert len(sizes) == 7  # those of the table, and the one that is asked for
    first = sizes[0]
    assert first["measured_ns"] == 10_010
    # bus bandwidth: 2 x 7/8 of the bytes
    assert first["measured_bus_bytes_per_s"] == pytest.approx(1.75 * 1024 / 10.01024e-6, rel=1e-6)
    assert (tmp_path / "p.svg").read_text() == drawn


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--op", "all-reduc"], "did you mean 'all-reduce'"),
        (["--machine", "dgx-h10"], "dgx-h100"),
        (["--ranks", "1"], "a collective needs two ranks"),
        (["--ranks", "9"], "1 node has 1 to 8 GPUs"),
        (["--ranks", "7", "--nodes", "2"], "the same number on every node"),
        (["--op", "send", "--ranks", "8"], "from one rank to one other"),
        (["--op", "send", "--nodes", "3"], "--nodes 3: a message goes from one rank to one other"),
        (
            ["--machine", "tpu-v5p-cube", "--nodes", "2"],
            "--nodes 2: machine.topology.shape: 4 x 4 x 4 are 64",
        ),
        (["--bytes", "64"], "--bytes"),
        (["--plot", "x.gif"], ".png"),
        (["--table", "nowhere.csv"], "nowhere.csv"),
        (["--nodes", "0"], "--nodes"),
    ],
)
def test_wrong_usage(options: list[str], words: str) -> None:
    done = sim("collectives", *options)
    assert done.exit_code == 2
    assert words in done.stderr
    assert not done.stdout


@pytest.mark.parametrize("machine", ["dgx-1v", "fire-flyer-2", "atlas-800", "tpu-v5p-cube"])
@pytest.mark.parametrize("op", ["all-reduce", "all-to-all", "send"])
def test_without_nvswitches_the_links_say_it(machine: str, op: str) -> None:
    options = ("collectives", "--machine", machine, "--op", op, "--bytes", "1MB", "--ranks", "2")
    done = sim(*options)
    assert done.exit_code == 0
    first, why, choice, *_ = done.stdout.splitlines()
    assert first == f"{op} on 2 {'GPUs' if machine[0] in 'df' else 'NPUs'}, 1 node of {machine}"
    assert "NCCL's choice is known for GPUs on NVSwitches only" in why
    # 1 MB, half of it each way in two steps, or all of it at once; latency of a route (us) and rate (GB/s)
    latency, rate = {
        "dgx-1v": (1, 25), "fire-flyer-2": (4, 26.24), "atlas-800": (1, 30), "tpu-v5p-cube": (1, 100),
    }[machine]  # fmt: skip
    asked = json.loads(sim(*options, "--json").stdout)["asked"]
    steps, part = {"all-reduce": (2, 0.5), "all-to-all": (1, 0.5), "send": (1, 1.0)}[op]
    assert asked["links_ns"] == pytest.approx(steps * (latency * 1000 + part * 1e6 / rate), rel=1e-3)
    assert asked["algorithm"] in choice
    assert asked["protocol"] is asked["tuner_ns"] is asked["fitted_ns"] is None


def test_over_several_nodes_hierarchical_is_among_the_algorithms() -> None:
    """256 MB on 2 x 8 GPUs with one card a node: an eighth of it crosses in each of 8 rings."""
    options = ("collectives", "--machine", "fire-flyer-2", "--nodes", "2", "--bytes", "256MB", "--json")
    asked = json.loads(sim(*options).stdout)["asked"]
    by_ring = make_collectives({"algorithm": "ring"})
    machine = make_machine({"preset": "fire-flyer-2", "nodes": 2})
    ranks = tuple(k for k, device in enumerate(machine.devices) if device.kind == "gpu")
    assert asked["links_ns"] <= by_ring.time_ns(Call("all_reduce", 256_000_000, ranks), machine)
    assert asked["algorithm"] in ("ring", "hierarchical")


def test_on_a_torus_rings_go_along_its_rows() -> None:
    """16 MB: 2 x 15 steps of a sixteenth along rows, 30 of a sixteenth of that across them, 1 us each."""
    options = ("collectives", "--machine", "tpu-v5e-pod", "--bytes", "16MB", "--json")
    asked = json.loads(sim(*options).stdout)["asked"]
    assert asked["algorithm"] == "hierarchical"
    inside, across = 2 * 15 * (1000 + 1e6 / 50), 30 * (1000 + 62_500 / 50)
    assert asked["links_ns"] == pytest.approx(inside + across, rel=1e-6)


@pytest.mark.slow
def test_ten_thousand_measured_sizes(tmp_path: Path) -> None:
    rows = "".join(f"all_reduce,8,{1000 + 37 * k},{10 + k / 100}\n" for k in range(10_000))
    (tmp_path / "t.csv").write_text("op,gpus,bytes,time_us\n" + rows)
    done = sim("collectives", "--table", tmp_path / "t.csv", "--json")
    assert len(json.loads(done.stdout)["sizes"]) == 10_000


def test_a_table_that_lacks_what_is_asked(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TABLE)
    done = sim("collectives", "--op", "broadcast", "--table", tmp_path / "t.csv")
    assert done.exit_code == 2
    assert "has no broadcast; it has all_reduce" in done.stderr
    done = sim("collectives", "--op", "send", "--bytes", "1MiB")
    assert done.exit_code == 0
    assert "direct, protocol simple" in done.stdout
