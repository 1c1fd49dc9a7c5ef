"""``faults:`` of a scenario: parts of a machine that fail, slow down and come back, as a user writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_runner import sim

from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim.base.errors import ScenarioError, StuckError

EXAMPLE = "scenarios/examples/worker_fails.yaml"

TEXT = """
machine:
  devices: {{gpu: {{kind: gpu, count: 2}}}}
  hosts: {{worker0: {{devices: [gpu0]}}, worker1: {{devices: [gpu1]}}}}
  links: [{{from: gpu0, to: gpu1, bandwidth: 1GB/s, sharing: shared}}]
workload:
  ops:
    a: {{duration: 20ns, output: 10B, device: gpu0}}
    b: {{duration: 5ns, inputs: [a], device: gpu1}}
policy: in-order
faults: {}
"""


def told(tmp_path: Path, faults: str, **more: str) -> dict[str, Any]:
    """Run a scenario with these faults, hold its invariants, and return its summary."""
    path = tmp_path / "faults.yaml"
    path.write_text(TEXT.format(faults), encoding="utf-8")
    for name, text in more.items():
        (tmp_path / f"{name}.csv").write_text(text, encoding="utf-8")
    return run_scenario(load_scenario(path), check=True).summary


RANKS = """
machine:
  devices: {gpu: {kind: gpu, count: 2}}
  hosts: {worker0: {devices: [gpu0]}, worker1: {devices: [gpu1]}}
workload:
  ops:
    a0: {duration: 10us, device: gpu0}
    a1: {duration: 50us, device: gpu1}
    sum0: {kind: all_reduce, duration: 5us, device: gpu0, inputs: [a0], attributes: {communicator: dp}}
    sum1: {kind: all_reduce, duration: 5us, device: gpu1, inputs: [a1], attributes: {communicator: dp}}
policy: in-order
faults: {failures: {crash: {worker: worker1, at: [20us]}}, timeout: {collectives: 100us}, restart: 10us}
"""


def test_who_waits_for_a_rank_that_failed_is_told_its_name(tmp_path: Path) -> None:
    path = tmp_path / "ranks.yaml"
    path.write_text(RANKS, encoding="utf-8")
    told = sim("explain", path).stdout
    assert "at 10 us: 'sum0'[0] waits on communicator 'dp' for gpu1, which never came" in told
    assert "100 us for gpu1, which never came" in told
    assert "for gpu0" not in told


def test_the_example_loses_a_step_without_checkpoints() -> None:
    scenario = load_scenario(EXAMPLE)
    failures = run_scenario(scenario, check=True).summary["failures"]
    assert (failures["steps"], failures["steps_lost"], failures["aborted"]) == (4, 0, 1)
    first, second = failures["attempts"]
    assert first["broken"] == [
        {"time_ns": 120_000_000, "part": "worker", "name": "worker1", "cause": "crash"}
    ]
    detection = {"how": "send-recv", "by": "server", "time_ns": 120_000_000}
    assert first["detection"] == detection | {"what": "transfer of gradients1 to server"}
    # It is back after 30 ms; to start and to restore takes 60 ms more.
    assert (second["begin_ns"], second["first_step"]) == (210_000_000, 2)


def test_commands_say_what_failed_and_who_noticed() -> None:
    line = (
        "worker worker1 failed at 120 ms (crash); server noticed at 120 ms (send-recv: transfer of "
        "gradients1 to server); step 2 aborted, 0 steps lost; restarted at 210 ms"
    )
    ran = sim("run", EXAMPLE)
    assert ran.exit_code == 0
    assert line in ran.stdout
    assert "makespan 300 ms; 4 steps done, 0 steps lost; 19 tasks ran" in ran.stdout
    explained = sim("explain", EXAMPLE).stdout
    assert line in explained
    assert "a part of the machine failed, and 'weights'[3] is the first after the restart" in explained
    late = sim("run", EXAMPLE, "--set", "faults.failures.crash.at=[900ms]").stdout
    assert "crash at 900 ms has no effect: the run ends at 186.1 ms" in late


@pytest.mark.parametrize(
    ("faults", "makespan_ns"),
    [
        ("{slow_downs: {heat: {device: gpu0, at: [10ns], factor: 2}}}", 10 + 20 + 10 + 5),
        ("{slow_downs: {heat: {worker: worker*, at: [10ns], duration: 10ns, factor: 2}}}", 25 + 10 + 5),
        ("{slow_downs: {jam: {link: gpu0->gpu1, at: [25ns], factor: 4}}}", 20 + 5 + 20 + 5),
        ("{failures: {cable: {link: '*', at: [25ns], repair: 6ns}}, timeout: {transfer: 7ns}}", 41),
        ("{failures: {cable: {link: '*', at: [25ns], repair: 6ns}}, timeout: {transfer: 4ns}}", 29),
        ("{failures: {dead: {device: gpu0, at: [7ns]}}}", 7),
        ("{failures: {dead: {device: gpu0, at: [7ns], detect: timeout}}, timeout: {transfer: 4ns}}", 11),
        ("{failures: {dead: {worker: worker0, at: [7ns], detect: timeout}}, health_check: 6ns}", 12),
    ],
)
def test_small_cases(tmp_path: Path, faults: str, makespan_ns: int) -> None:
    assert told(tmp_path, faults)["makespan_ns"] == makespan_ns


def test_causes_that_were_counted_are_the_same_as_their_mtbf(tmp_path: Path) -> None:
    table = "component,count\nGPU,4\nNIC,2\n"
    counted = "{failures: {seen: {device: gpu*, file: seen.csv, over: 1us, devices: 8}}, health_check: 1ns}"
    by_rate = (
        "{failures: {'seen: GPU': {device: gpu*, mtbf: 2us}, 'seen: NIC': {device: gpu*, mtbf: 4us}}, "
        "health_check: 1ns}"
    )
    one, other = (told(tmp_path, faults, seen=table) for faults in (counted, by_rate))
    assert one == other
    assert told(tmp_path, counted.replace("1us", "10ns"), seen=table)["failures"]["attempts"][0]["broken"]


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ("{}", r"faults: needs failures or slow_downs"),
        ("{failures: {x: {at: [1ns]}}}", r"faults.failures.x: needs one of device, worker, link; found none"),
        (
            "{failures: {x: {device: gpu0, at: [1ns], mtbf: 1h}}}",
            r"faults.failures.x: needs one of at, mtbf, count, file; found at and mtbf",
        ),
        (
            "{failures: {x: {device: gpu7, at: [1ns]}}}",
            r"x.device: unknown device 'gpu7'; known: gpu0 to gpu1",
        ),
        ("{failures: {x: {worker: job, at: [1ns]}}}", r"x.worker: unknown worker 'job'; known: worker0"),
        ("{failures: {x: {link: gpu0, at: [1ns]}}}", r"x.link: unknown link 'gpu0'"),
        ("{failures: {x: {device: gpu0, mtbf: 0s}}}", r"x.mtbf: should be greater than 0"),
        ("{failures: {x: {link: '*', at: [1ns], repair: 0s}}}", r"x.repair: should be more than 0"),
        ("{failures: {x: {link: '*', at: [1ns], detect: timeout}}}", r"x.detect: has no effect"),
        ("{failures: {x: {device: gpu0, count: 3}}}", r"over and devices go with count or file"),
        ("{slow_downs: {x: {device: gpu0, at: [1ns], factor: 1}}}", r"x.factor: should be greater than 1"),
        (
            "{failures: {x: {device: gpu0, at: [1ns]}}, checkpoint: {every: 2}}",
            r"faults.checkpoint: has no effect: nothing restarts; give restart",
        ),
        ("{failures: {x: {device: gpu0, at: [1ns]}}, health_check: 0s}", r"should be greater than 0"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, faults: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message) as caught:
        told(tmp_path, faults)
    assert str(caught.value).startswith(f"{tmp_path}/faults.yaml:")


def test_what_does_not_go_together_is_said_with_its_place() -> None:
    for setting, message in (
        ("memory.allocator=caching", "faults: an allocator cannot follow a step that may be aborted"),
        ("workload.ops.update.fails=true", "faults: ops that fail and parts of the machine"),
        (
            "training_run={workers: 2, steps: 10, recovery: [restart-job]}",
            "faults: a training run repeats a step in which nothing fails",
        ),
        ("engine=kernel", "parts of the machine fail, or become slow"),
    ):
        ran = sim("run", EXAMPLE, "--set", setting)
        assert ran.exit_code == 2
        assert message in ran.stderr


@pytest.mark.parametrize("part", ["worker: worker1", "worker: ps", "link: cpu0->server", "device: cpu0"])
def test_tensorflow_goes_on_whatever_fails_and_whenever(part: str) -> None:
    """Sends and Recvs by key: every step is done in the end."""
    for at in ("5ms", "43ms", "95ms"):
        sets = [
            "policy.compile=[partition]",
            f"faults.failures={{x: {{{part}, at: [{at}], repair: 30ms}}}}",
            "faults.timeout={transfer: 10ms}",
        ]
        result = run_scenario(load_scenario(EXAMPLE, sets=sets), check=True)
        assert result.summary["failures"]["steps"] == 4
        for use in result.summary["devices"].values():
            assert sum(use["idle_reasons"].values()) == use["idle_ns"]


@pytest.mark.parametrize(
    ("sharing", "message"),
    [
        ("independent", r"a transfer of 10 B met 5 changes of gpu0->gpu1 by 25 ns, and 7 B are left"),
        ("shared", r"link gpu0->gpu1 has changed 5 times, and nothing arrives anywhere"),
    ],
)
def test_a_link_that_changes_too_often_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sharing: str, message: str
) -> None:
    """From 20 ns on a byte takes a ns, and the link is down every other ns."""
    monkeypatch.setattr("sim.faults.MOST_FAILURES", 5)
    monkeypatch.setattr("devices.network.MOST_FAILURES", 5)
    path = tmp_path / "flaps.yaml"
    times = ", ".join(f"{at}ns" for at in range(21, 90, 2))
    faults = f"{{failures: {{flaps: {{link: gpu0->gpu1, at: [{times}], repair: 1ns}}}}}}"
    path.write_text(TEXT.format(faults).replace("shared", sharing), encoding="utf-8")
    with pytest.raises(StuckError, match=message):
        run_scenario(load_scenario(path))


def test_a_failure_that_nobody_notices_ends_the_run_with_a_message(tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text(TEXT.format("{failures: {dead: {device: gpu1, at: [32ns]}}}"), encoding="utf-8")
    ran = sim("run", str(path))
    assert ran.exit_code == 1
    assert "device gpu1 has failed at 32 ns (dead), and nothing detects it" in ran.stderr


def test_a_training_run_takes_its_step_from_the_simulation(tmp_path: Path) -> None:
    """The step of `training_run` is the makespan of the scenario's own run, an iteration on average."""
    path = tmp_path / "run.yaml"
    text = TEXT.partition("faults:")[0].replace("{{", "{").replace("}}", "}")
    run = "training_run: {steps: 10, workers: 2, recovery: [restart-job]}"
    path.write_text(f"{text}iterations: 2\n{run}\n", encoding="utf-8")
    result = run_scenario(load_scenario(path))
    (life,) = result.lives.values()
    assert life.useful_ns == 10 * ((result.trace.makespan_ns + 1) // 2)  # rounded half up


FAILS = "faults: {failures: {x: {device: %s, at: [50us]}}, health_check: {every: 60us, timeout: 1us}%s}\n"


@pytest.mark.parametrize(("restart", "done"), [(", restart: 20us", 2), ("", 0)])
def test_rates_count_the_steps_that_are_done(restart: str, done: int, tmp_path: Path) -> None:
    """The first of two steps is lost; without a restart rank 1 never runs anything."""
    pipeline = "workload: {pipeline: {ranks: 2, micro_batches: 3, forward: 1ms}}\npolicy: forward-only\n"
    path = tmp_path / "pipeline.yaml"
    path.write_text(f"{pipeline}iterations: 2\n{FAILS % ('rank0', restart)}")
    summary = run_scenario(load_scenario(path), check=True).summary
    assert summary["failures"]["steps"] == done
    assert summary["micro_batches_per_s"] == pytest.approx(3 * done * 1e9 / summary["makespan_ns"])
    assert summary["pipeline"]["latency_ns"] == ({"median": 2e6, "max": 2e6} if done else None)


def test_an_op_that_is_lost_is_late_flows_and_needs_memory_once(tmp_path: Path) -> None:
    """It is noticed at 61 us; from 81 us on both run again, and a ends at 91 us in place of 5."""
    a = "{duration: 10us, output: 1MB, attributes: {due: 5us, weight: 2}}"
    ops = f"{{a: {a}, b: {{duration: 100us, inputs: [a]}}}}"
    path = tmp_path / "due.yaml"
    machine = "machine: {devices: {gpu0: {kind: gpu}}}"
    path.write_text(
        f"{machine}\nworkload: {{ops: {ops}}}\npolicy: in-order\n{FAILS % ('gpu0', ', restart: 20us')}"
    )
    summary = run_scenario(load_scenario(path), check=True).summary
    assert (summary["weighted_tardiness_ns"], summary["mean_flow_time_ns"]) == (172_000, 191_000)
    assert summary["devices"]["gpu0"]["peak_memory_bytes"] == 1_000_000


def test_jobs_of_which_none_ends_have_no_mean_flow_time(tmp_path: Path) -> None:
    """The GPU fails at 50 us and nothing restarts."""
    ops = "{a: {duration: 10us, attributes: {due: 5us}}, b: {duration: 100us, inputs: [a]}}"
    machine = "machine: {devices: {gpu0: {kind: gpu}}}"
    faults = FAILS % ("gpu0", "")
    path = tmp_path / "none.yaml"
    path.write_text(f"{machine}\nworkload: {{ops: {ops}}}\npolicy: in-order\n{faults}")
    assert "mean_flow_time_ns" not in run_scenario(load_scenario(path)).summary
    path.write_text(path.read_text() + "expect: {mean_flow_time: 0us}")
    told = sim("run", path)
    assert (told.exit_code, "no step was done" in told.output) == (2, True), told.output
    both = sim("sweep", path, "--vary", "workload.ops.b.duration=30us,100us", "--minimise", "mean_flow_time")
    assert "best: duration=30us, in-order: mean_flow_time 40 us" in both.stdout
    assert "2 points ran: 1 done, 1 an op failed" in both.stdout


def test_a_restart_reads_nothing_of_the_attempt_before(tmp_path: Path) -> None:
    """Only a next step would read what a makes, and there is none: it is free when a ends, both times."""
    b = "{duration: 100us, output: 1MB, after: [a], inputs: [{from: a, distance: 1}]}"
    path = tmp_path / "last.yaml"
    path.write_text(
        "machine: {devices: {gpu0: {kind: gpu}}}\npolicy: in-order\n"
        f"workload: {{ops: {{a: {{duration: 10us, output: 1MB}}, b: {b}}}}}\n"
        f"{FAILS % ('gpu0', ', restart: 20us')}"
    )
    summary = run_scenario(load_scenario(path), check=True).summary
    assert summary["devices"]["gpu0"]["peak_memory_bytes"] == 1_000_000


@pytest.mark.parametrize("restart", [", restart: 20us", ""])
def test_data_loading_is_that_of_the_epochs_that_are_done(restart: str, tmp_path: Path) -> None:
    """The first of two epochs is lost when it has loaded a batch; without a restart there is none."""
    loader = "{model: data-loader, steps: 4, load: 40us, workers: 2, train: 90us}"
    path, told = tmp_path / "loader.yaml", []
    for more in ("", FAILS % ("gpu0", restart)):
        path.write_text(f"workload: {{build: {loader}}}\niterations: 2\n{more}")
        told.append(run_scenario(load_scenario(path), check=True).summary.get("data_loading"))
    assert told[1] == (told[0] if restart else None)


def test_a_run_in_which_nothing_ran_is_told(tmp_path: Path) -> None:
    path = tmp_path / "nothing.yaml"
    text = FAILS.replace("50us", "0us") % ("gpu0", "")
    path.write_text(
        f"machine: {{devices: {{gpu0: {{kind: gpu}}}}}}\nworkload: {{ops: {{a: {{duration: 10us}}}}}}\n{text}"
    )
    told = sim("run", path)
    assert told.exit_code == 0
    assert "0 steps done, 0 steps lost; 0 tasks ran" in told.stdout


def test_a_comparison_says_why_a_run_that_was_restarted_has_no_lower_bound() -> None:
    told = sim("compare", EXAMPLE).stdout.splitlines()
    assert "no lower bound: an op or a device failed, so that others never ran or ran again" in told
