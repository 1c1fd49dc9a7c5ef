"""What people see of a sweep: rates, use, peaks, the best row; files of all kinds; one writer at a time."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pandas as pd
import pytest
from cli_runner import sim
from scenario_texts import GOOD, write

from scenarios.variants.sweep import Interrupted, sweep, write_rows
from scenarios.variants.variant import Variants, points_of

EXAMPLES = Path(__file__).resolve().parents[2] / "scenarios" / "examples"


def test_pipelines_show_throughput_bubble_and_memory() -> None:
    vary = ["--vary", "workload.pipeline.micro_batches=4,8"]
    lines = sim("sweep", EXAMPLES / "gpipe.yaml", *vary).stdout.splitlines()
    assert [line.split()[2:] for line in lines[1:3]] == [
        ["21", "ms*", "0.0%", "190.5", "57.1%", "42.9%", "38.15", "MiB", "rank0"],
        ["33", "ms", "0.0%", "242.4", "72.7%", "27.3%", "76.29", "MiB", "rank0"],
    ]
    assert lines[0].split("  ")[-1].strip() == "peak memory"
    assert lines[3] == "* shortest makespan"


@pytest.mark.parametrize(
    ("goal", "starred", "told"),
    [
        (["--maximise", "micro_batches_per_s"], "242.4*", "* greatest micro_batches_per_s"),
        (["--minimise", "span_bubble"], "27.3%*", "* least span_bubble"),  # has a column of its own
        (["--maximise", "makespan"], "ms*", "* longest makespan"),
        (["--minimise", "makespan", "--subject-to", "micro_batches_per_s>=1"], "ms*", "* shortest makespan"),
    ],
)
def test_the_best_of_what_is_sought_has_the_star(goal: list[str], starred: str, told: str) -> None:
    vary = ["--vary", "workload.pipeline.micro_batches=4,8"]
    lines = sim("sweep", EXAMPLES / "gpipe.yaml", *vary, *goal).stdout.splitlines()
    assert [word for word in lines[1].split() if word.endswith("*")] == [starred]
    assert "*" not in lines[2]
    assert lines[3] == told
    value = {"ms*": f"{lines[1].split()[2]} ms"}.get(starred, starred[:-1])
    assert lines[5] == f"best: micro_batches={lines[1].split()[0]}, gpipe: {goal[1]} {value}"


def test_an_error_of_several_points_is_said_once(tmp_path: Path) -> None:
    vary = ["--vary", "seed=1,2,3", "--vary", "workload.ops.b.duration=1us,xx"]
    lines = sim("sweep", write(tmp_path), *vary).stdout.splitlines()
    assert lines[-1].startswith(
        "seed=1, duration=xx and 2 more points: invalid: --vary workload.ops.b.duration"
    )
    assert sum("is not a number" in line for line in lines) == 1


def test_a_setting_has_the_same_name_in_the_table_and_in_the_answer(tmp_path: Path) -> None:
    """A training step's table has a column `memory`, so the setting keeps its whole key everywhere."""
    text = """\
workload:
  train: {model: {layers: 2, hidden: 256, heads: 4, vocabulary: 1000}, calibration: h100-sxm, sequence: 256}
"""
    vary = [
        "--vary",
        "workload.train.batch=1,2",
        "--vary",
        "workload.train.memory=60GB",
        "--minimise",
        "makespan",
    ]
    lines = sim("sweep", write(tmp_path, text), *vary).stdout.splitlines()
    assert lines[0].split()[:2] == ["batch", "workload.train.memory"]
    (best,) = (line for line in lines if line.startswith("best: "))
    assert best.startswith("best: batch=1, workload.train.memory=60GB, ")


def test_utilisation_is_of_the_devices_that_run_ops(tmp_path: Path) -> None:
    # 10 us on gpu0, 2 us over the switch, 8 us on gpu1: 50 % and 40 % of 20 us. No op runs on sw and cpu0.
    devices = "{gpu0: {kind: gpu}, gpu1: {kind: gpu}, sw: {kind: switch}, cpu0: {kind: cpu}}"
    links = ", ".join(
        f"{{from: {d}, to: sw, bandwidth: {r}}}" for d, r in (("gpu0", "1GB/s"), ("gpu1", "1GB/s"))
    )
    ops = "{a: {duration: 10us, output: 2kB, device: gpu0}, b: {duration: 8us, inputs: [a], device: gpu1}}"
    text = f"machine: {{devices: {devices}, links: [{links}]}}\nworkload: {{ops: {ops}}}\npolicy: in-order\n"
    lines = sim("sweep", write(tmp_path, text), "--vary", "seed=1,2").stdout.splitlines()
    assert lines[1].split()[5:] == ["45.0%", "1.953", "KiB", "gpu0"]


def test_a_sweep_that_goes_on_says_what_was_done_before(tmp_path: Path) -> None:
    path, out = write(tmp_path), tmp_path / "t.csv"

    def stop(k: int, n: int) -> None:
        if k:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        sweep(Variants(path), points_of(["seed=1,2,3"]), out=out, done=stop)
    done = sim("sweep", path, "--vary", "seed=1,2,3", "--out", out)
    told = f"1 of 3 points were done before ({out}.points); what was warned of them is not said again\n"
    assert done.stderr == f"{told}wrote {out}\n"


def test_only_points_that_ran_are_said_to_be_kept(tmp_path: Path) -> None:
    path, out = write(tmp_path), tmp_path / "t.csv"

    def stop(k: int, n: int) -> None:
        if k == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match=r"2 of 3 points are done$"):
        sweep(Variants(path), points_of(["seed=x,y,z"]), out=out, done=stop)
    assert not Path(f"{out}.points").exists()


def test_points_that_a_full_disk_cut_off_cost_none_of_those_that_follow(tmp_path: Path) -> None:
    path, out = write(tmp_path), tmp_path / "t.csv"
    vary = ["--vary", "seed=1,2,3"]
    assert sim("sweep", path, *vary, "--out", out).exit_code == 0
    points, whole = Path(f"{out}.points"), out.read_bytes()
    lines = points.read_bytes().splitlines(keepends=True)
    points.write_bytes(lines[0] + b"\xff\x00\n" + lines[1][:50])

    def stop(k: int, n: int) -> None:
        if k == 2:
            raise KeyboardInterrupt

    out.unlink()
    with pytest.raises(Interrupted, match="2 of 3 points are done"):
        sweep(Variants(path), points_of(["seed=1,2,3"]), out=out, done=stop)
    assert "2 of 3 points were done before" in sim("sweep", path, *vary, "--out", out).stderr
    assert out.read_bytes() == whole
    assert points.read_bytes() == b"".join(lines)


def test_parquet_and_csv_say_the_same(tmp_path: Path) -> None:
    path = write(tmp_path)
    vary = ["--vary", "machine.devices.cpu0.cores=1,2"]
    for name in ("t.csv", "t.parquet"):
        assert sim("sweep", path, *vary, "--out", tmp_path / name).exit_code == 0
    one, other = pd.read_csv(tmp_path / "t.csv"), pd.read_parquet(tmp_path / "t.parquet")
    assert one["makespan_ns"].tolist() == other["makespan_ns"].tolist()
    assert list(one) == list(other)
    before = (tmp_path / "t.parquet").read_bytes()
    assert sim("sweep", path, *vary, "--out", tmp_path / "t.parquet").exit_code == 0
    assert (tmp_path / "t.parquet").read_bytes() == before
    other_points = ["--vary", "machine.devices.cpu0.cores=3,4"]
    refused = sim("sweep", path, *other_points, "--out", tmp_path / "t.parquet")
    assert "is there already, and is no table of these points" in refused.stderr


def test_two_sweeps_do_not_write_one_table(tmp_path: Path) -> None:
    path, out = write(tmp_path), tmp_path / "t.csv"
    with Path(f"{out}.points").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused = sim("sweep", path, "--vary", "seed=1,2", "--out", out)
    assert refused.exit_code == 2
    assert refused.stderr.endswith("another sweep is writing it; name another file, or wait\n")
    assert sim("sweep", path, "--vary", "seed=1,2", "--out", out).exit_code == 0


def test_a_sweep_is_drawn(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    vary = ["--vary", "machine.devices.cpu0.cores=1,2", "--vary", "seed=1,2"]
    assert sim("sweep", path, *vary, "--plot", tmp_path / "s.png").exit_code == 0
    assert (tmp_path / "s.png").stat().st_size > 5000


def test_of_many_lines_the_best_have_names() -> None:
    from scenarios.report.pictures import sweep_plot

    rows = [
        {"a": a, "b": b, "policy": "p", "makespan_ns": 100 - b, "error": None}
        for b in range(9)
        for a in (1, 2)
    ]
    for most, named in ((False, "2345678"), (True, "0123456")):
        legend = sweep_plot(rows, ["a", "b"], most=most).get_legend()
        assert legend is not None
        names = [text.get_text() for text in legend.get_texts()]
        assert names == [*(f"b={b}" for b in named), "2 others"]


def test_a_legend_tells_apart_what_ends_alike() -> None:
    from scenarios.report.pictures import profile_plot, sweep_plot

    keys = ["seed", "gpu0.streams", "gpu1.streams"]
    rows = [dict(zip(keys, (0, n, m), strict=True)) for n, m in ((1, 2), (2, 1))]
    long = [f"a_package_of_policies:{name}WithWeights" for name in "AB"]
    sweep = [row | {"policy": name, "makespan_ns": 9, "error": None} for row in rows for name in long]
    legends = [
        ax.get_legend() for ax in (sweep_plot(sweep, keys), profile_plot({key: [(1, 1)] for key in long}))
    ]
    cut = "a_package_of_policie…thWeights"  # the second to be cut like this is not cut
    of_sweep, of_profile = [
        [text.get_text().replace("\n", " ") for text in legend.get_texts()] for legend in legends if legend
    ]
    assert of_profile == [cut, long[1]]
    assert of_sweep == [
        f"gpu0.streams={n}, gpu1.streams={m}, {name}" for n, m in ((1, 2), (2, 1)) for name in of_profile
    ]


@pytest.mark.parametrize("keys", [["varied policy", "a.b"], ["a.b", "varied policy"]])
def test_a_policy_that_is_varied_is_told_once(keys: list[str]) -> None:
    from scenarios.report.pictures import sweep_plot

    rows = [
        {"varied policy": policy, "a.b": b, "policy": policy, "makespan_ns": 9, "error": None}
        for policy in ("x", "y")
        for b in (1, 2)
    ]
    ax = sweep_plot(rows, keys)
    legend = ax.get_legend()
    assert legend is not None
    found = [ax.get_xlabel(), *(text.get_text() for text in legend.get_texts())]
    assert found == (["policy", "b=1", "b=2"] if keys[1] == "a.b" else ["a.b", "policy=x", "policy=y"])
    assert ax.get_xticklabels()[0].get_rotation() == 0
    renamed = [
        {key.replace("varied policy", "policy.name"): value for key, value in row.items()} for row in rows
    ]
    legend = sweep_plot(renamed, ["a.b", "policy.name"]).get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["name=x", "name=y"]
    long = [row | {keys[0]: f"{row[keys[0]]}{'long ' * 20}"} for row in rows]
    labels = sweep_plot(long, keys).get_xticklabels()
    assert [len(each.get_text()) for each in labels] == [30, 30]
    assert labels[0].get_rotation() == 0
    four = [row | {keys[0]: f"{row[keys[0]]}{n}{'long ' * 20}"} for row in rows for n in range(2)]
    assert sweep_plot(four, keys).get_xticklabels()[0].get_rotation() == 25


def test_a_legend_has_names_that_begin_with_an_underscore() -> None:
    from scenarios.report.pictures import profile_plot, sweep_plot

    rows = [{"a": 1, "policy": policy, "makespan_ns": 9, "error": None} for policy in ("_x", "y")]
    for ax in (sweep_plot(rows, ["a"]), profile_plot({"_x": [(1, 1)], "y": [(1, 1)]})):
        legend = ax.get_legend()
        assert legend is not None
        assert [text.get_text() for text in legend.get_texts()] == ["_x", "y"]


def test_an_axis_of_bytes_has_round_ticks() -> None:
    from scenarios.report.pictures import sweep_plot

    rows = [{"a": a, "policy": "p", "x.peak_memory_bytes": a * 10**8, "error": None} for a in (1, 3)]
    ax = sweep_plot(rows, ["a"], what="peak_memory.x")
    ax.figure.draw_without_rendering()  # type: ignore[union-attr]
    assert [text.get_text() for text in ax.get_yticklabels()][:3] == ["0", "50 MiB", "100 MiB"]


def test_nothing_to_draw_says_so(tmp_path: Path) -> None:
    from scenarios.report.pictures import sweep_plot
    from sim.base.errors import InputError

    with pytest.raises(InputError, match="every point failed"):
        sweep_plot([{"a": 1, "policy": "p", "error": "no"}], ["a"])


def test_a_spreadsheet_runs_no_cell_of_a_sweep(tmp_path: Path) -> None:
    """Text that begins like a formula has an apostrophe before it; numbers stay."""
    out = tmp_path / "t.csv"
    write_rows([{"policy": "=cmd|x", "a": -1}], out)
    assert out.read_text() == "policy,a\n'=cmd|x,-1\n"
