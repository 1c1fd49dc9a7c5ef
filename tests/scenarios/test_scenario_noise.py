"""Noise, estimates and repeated runs in scenarios."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_runner import sim
from scenario_texts import GOOD, write

from scenarios.run.execute import run_case, run_scenario, trace_of
from scenarios.run.load import load_scenario
from scenarios.run.prepare_job import Jobs
from scenarios.run.scenario import Case
from scenarios.variants.repeat import Repeats, repeat
from sim.base.errors import InputError, ScenarioError
from sim.job.job import Job

SMS = """\
machine:
  devices:
    gpu0: {kind: gpu, streams: 2, sms: 100, sharing: %s}
workload:
  ops:
    a: {duration: 10us, attributes: {sms: 50}}
    b: {duration: 10us, attributes: {sms: 50}}
policy: {name: in-order, synchronisation: issue, streams: round-robin}
"""
"""Two kernels of half the SMs each, side by side: 10 us."""

TIME = """\
machine:
  devices:
    cpu0: {kind: cpu, cores: %d, workers: 2, sharing: %s}
workload:
  ops: {a: {duration: 10us}, b: {duration: 10us}}
"""


def makespan(path: Path, *sets: str) -> int:
    return run_scenario(load_scenario(path, sets=sets), check=True).trace.makespan_ns


def test_a_slow_device_is_slower_by_its_factor(tmp_path: Path) -> None:
    assert makespan(write(tmp_path), "noise={devices: {cpu0: 1.2}}") == 54_000  # of 45 us


def test_every_task_may_be_a_straggler(tmp_path: Path) -> None:
    sets = ("noise={stragglers: {probability: 100%, factor: 3}}",)
    assert makespan(write(tmp_path), *sets) == 135_000


def test_the_seed_draws_and_nothing_else(tmp_path: Path) -> None:
    path = write(tmp_path)
    drawn = [makespan(path, "noise={jitter: 0.1}", f"seed={seed}") for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert 30_000 < drawn[0] < 60_000


@pytest.mark.parametrize("sharing", ["sm", "sm+dram, bandwidth: 1TB/s"])
def test_noise_reaches_kernels_that_share_sms(tmp_path: Path, sharing: str) -> None:
    path = write(tmp_path, SMS % sharing)
    assert makespan(path) == 10_000
    assert makespan(path, "noise={devices: {gpu0: 1.5}}") == 15_000


@pytest.mark.parametrize(("cores", "sharing", "expected"), [(1, "time", 20_000), (1, "cores", 20_000)])
def test_noise_reaches_cores(tmp_path: Path, cores: int, sharing: str, expected: int) -> None:
    path = write(tmp_path, TIME % (cores, sharing))
    assert makespan(path) == expected
    assert makespan(path, "noise={devices: {cpu0: 1.5}}") == expected * 3 // 2


def test_an_estimate_changes_what_a_policy_thinks_and_not_what_happens(tmp_path: Path) -> None:
    """Critical path first on one core: the work is 46 us whatever the order; with errors orders differ."""
    text = """\
machine: {devices: {cpu0: {kind: cpu, cores: 1}}}
workload:
  ops: {a: {duration: 10us}, b: {duration: 11us}, c: {duration: 12us}, d: {duration: 13us}}
policy: {name: critical-path}
knowledge: {estimate: 0.5}
"""
    path = write(tmp_path, text)
    orders = set()
    for seed in range(8):
        trace = run_scenario(load_scenario(path, sets=[f"seed={seed}"])).trace
        assert trace.makespan_ns == 46_000
        orders.add(tuple(trace.tasks["op"].tolist()))
    assert len(orders) > 1
    exact = run_scenario(load_scenario(path, sets=["knowledge={estimate: 0}"])).trace
    assert exact.tasks["op"].tolist() == [3, 2, 1, 0]


def test_repeats_are_the_runs_of_the_next_seeds(tmp_path: Path) -> None:
    path = write(tmp_path)
    case = load_scenario(path, sets=["noise={jitter: 0.2}", "seed=5"]).case()
    done = repeat(case, 4)
    assert list(done.seeds) == [5, 6, 7, 8]
    assert list(done.makespan_ns) == [
        makespan(path, "noise={jitter: 0.2}", f"seed={seed}") for seed in range(5, 9)
    ]
    assert done.result.trace.makespan_ns == done.makespan_ns[0]
    with pytest.raises(InputError, match="at least once"):
        repeat(case, 0)


@pytest.mark.parametrize("knowledge", ["exact", "mean", "estimate", "none"])
@pytest.mark.parametrize("placement", ["heft", "round-robin", "heft, compile: [partition]"])
def test_what_a_seed_leaves_alone_is_taken_over(tmp_path: Path, knowledge: str, placement: str) -> None:
    """Costs and placement are worked out once, unless estimates are drawn; runs are those of each seed."""
    path = tmp_path / "s.yaml"
    path.write_text(
        "machine: {devices: {c: {kind: cpu, cores: 2, count: 2}}}\n"
        "workload: {build: {model: random-dag, layers: 4, width: 4, seed: 3}}\n"
        f"policy: {{name: critical-path, placement: {placement}, knowledge: {knowledge}}}\n"
        "noise: {jitter: 0.3}\niterations: 2\n"
    )
    done = repeat(load_scenario(path).case(), 5)
    assert list(done.makespan_ns) == [makespan(path, f"seed={seed}") for seed in range(5)]


def test_percentiles_are_makespans_that_occurred(tmp_path: Path) -> None:
    """Of n sorted values the p-th is the one with rank ceil(p n / 100)."""
    done = repeat(load_scenario(write(tmp_path), sets=["noise={jitter: 0.2}"]).case(), 20)
    ranked = sorted(done.makespan_ns)
    assert [done.percentile_ns(p) for p in (5, 50, 95)] == [ranked[0], ranked[9], ranked[18]]


def test_the_mean_of_noise_is_one(tmp_path: Path) -> None:
    """One op of 10 us: the mean over 400 seeds is within 4 standard errors of it."""
    text = "machine: {devices: {cpu0: {kind: cpu}}}\nworkload: {ops: {a: {duration: 10us}}}\nnoise: "
    text += "{jitter: 0.3}\n"
    done = repeat(load_scenario(write(tmp_path, text)).case(), 400)
    values = np.array(done.makespan_ns)
    assert abs(values.mean() - 10_000) < 4 * 10_000 * 0.31 / 20
    assert values.std() == pytest.approx(3070, rel=0.2)  # 10 us * sqrt(exp(0.09) - 1)


def test_intervals_hold_mean_and_median_in_95_of_100_cases() -> None:
    """Of 400 sets of 12 normal numbers around 1,000; that of the median holds it in 96.1 % exactly."""
    rng, held = np.random.default_rng(5), np.zeros(2)
    for _ in range(400):
        drawn = rng.normal(1000, 100, 12).round().astype(int).tolist()
        found = Repeats(None, range(12), drawn).intervals()  # type: ignore[arg-type]
        for k, key in enumerate(("mean_interval_ns", "p50_interval_ns")):
            held[k] += found[key][0] <= 1000 <= found[key][1]
    assert 0.93 < held[0] / 400 < 0.97
    assert 0.95 < held[1] / 400 < 0.99


def test_the_command_line_repeats(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    result = sim("run", path, "--set", "noise={jitter: 0.1}", "--repeat", "5", "--json")
    repeats = json.loads(result.stdout)["repeats"]
    assert (repeats["runs"], repeats["seeds"]) == (5, [0, 1, 2, 3, 4])
    assert repeats["p5_ns"] <= repeats["p50_ns"] <= repeats["p95_ns"]
    table = sim("run", path, "--repeat", "3").stdout
    *_, row, note = table.splitlines()
    assert row.split() == ["ready-queue", "3", *["45", "us"] * 5]
    assert note == "ready-queue: all seeds take the same; nothing that a seed draws counts here"
    assert "the same" not in sim("run", path, "--set", "noise={jitter: 0.1}", "--repeat", "5").stdout
    assert sim("run", path, "--repeat", "0").exit_code == 2


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("noise={jitter: -1}", "noise.jitter: should be greater than or equal to 0, not -1"),
        ("noise={devices: {cpu0: 0}}", "noise.devices.cpu0: should be greater than 0, not 0"),
        ("noise={devices: {gpu7: 2}}", r"^--set noise=.*: noise.devices.gpu7: unknown device 'gpu7'"),
        ("noise={stragglers: {probability: 2, factor: 2}}", "noise.stragglers.probability"),
        ("noise={jiter: 0.1}", "did you mean 'jitter'"),
        ("knowledge={estimate: much}", "knowledge.estimate: should be a number, not 'much'"),
    ],
)
def test_mistakes_have_a_place(tmp_path: Path, setting: str, says: str) -> None:
    with pytest.raises(ScenarioError, match=says):
        makespan(write(tmp_path), setting)


class Shuffled:
    """A program order that the seed draws."""

    def order(self, job: Job) -> list[int]:
        """Return the ops in a random order."""
        return [int(op) for op in job.rng("order").permutation(len(job.graph))]


@pytest.mark.parametrize("seeded", [True, False], ids=["drawn", "given"])
def test_what_no_seed_changes_is_made_once_and_changes_nothing(tmp_path: Path, seeded: bool) -> None:
    """Each seed gives what a run of its own gives, also where a decision asks for the seed."""
    path = tmp_path / "s.yaml"
    ops = ", ".join(f"o{k}: {{duration: {k + 1}us, output: 1MB}}" for k in range(6))
    path.write_text(
        f"machine: {{devices: {{gpu0: {{kind: gpu}}}}}}\nworkload: {{ops: {{{ops}}}}}\n"
        "policy: in-order\nnoise: {jitter: 0.3}\nengine: kernel\n"
    )

    def case(seed: int) -> Case:
        found = load_scenario(path, sets=[f"seed={seed}"]).case()
        return found.deciding(linearize=Shuffled()) if seeded else found

    alone = [run_case(case(seed)).trace for seed in range(5)]
    job_with = Jobs(case(0))
    for trace, job in zip(alone, map(job_with, range(5)), strict=True):
        again = trace_of(case(0), job)
        assert {name: column.tolist() for name, column in again.tasks.items()} == {
            name: column.tolist() for name, column in trace.tasks.items()
        }
    orders = {tuple(trace.tasks["op"].tolist()) for trace in alone}
    assert (len(orders) > 1) == seeded
    assert repeat(case(0), 5).makespan_ns == [trace.makespan_ns for trace in alone]
