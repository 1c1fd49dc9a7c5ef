"""Expectations: what may be expected, how it is read, and when it holds."""

from __future__ import annotations

import time
from fractions import Fraction
from pathlib import Path

import pytest
from cli_runner import sim
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from runs import run_text
from scenario_texts import GOOD, changed, write

from scenarios.expectations import read_relative, resolve
from scenarios.fields.results import OUTCOMES, RATES, RESULTS, holds
from scenarios.regression import check_file
from scenarios.run import execute
from scenarios.run.execute import Result, run_case, run_scenario
from scenarios.run.load import load_scenario, read_scenario
from scenarios.run.prepare_job import job_of
from sim.base.errors import ScenarioError


def run(folder: Path, expect: str, text: str = GOOD) -> Result:
    """Run the scenario `text` with other expectations."""
    head, _, _ = text.partition("expect:")
    return run_text(f"{head}expect: {{{expect}}}\n", folder)


HOLDS = [
    # a 0-10, b 10-30 beside c 10-40, d 40-45: all of it busy, on two cores
    "makespan: 45us",
    "makespan: {equals: 45us}",
    "makespan: {at_most: 45us, at_least: 45000ns}",
    "makespan: {equals: 50us, tolerance: 10%}",
    "makespan: {equals: 44us, tolerance: 1us}",
    "lower_bound: 45us",
    "gap: {at_most: 150%, at_least: 0}",
    "critical_path: 45us",
    "tasks: 4",
    "tasks: {at_most: 1e3}",
    "busy.cpu0: 45us",
    "span.cpu0: 45us",
    "idle.cpu0: 0",
    "utilisation.cpu0: {equals: 72.2%, tolerance: 0.1%}",
    "utilisation.cpu0: {at_least: 0.7}",
    "bubble.cpu0: 0",
    "start.b: 10us",
    "end.d: 45us",
    "ready.d: 40us",
    "issue.d: 40us",
    "order: [a, b, c, d]",
    "order: [b, d]",
    "order.cpu0: [a, d]",
    "exposed_communication.cpu0: 0",
]


@pytest.mark.parametrize("expect", HOLDS)
def test_what_holds(tmp_path: Path, expect: str) -> None:
    result = run(tmp_path, expect)
    assert [outcome.passed for outcome in result.outcomes] == [True]
    assert result.passed


@pytest.mark.parametrize(
    ("expect", "says"),
    [
        ("makespan: 44us", "makespan is 45 us, expected 44 us"),
        ("makespan: {at_most: 44.999us}", "makespan is 45 us, expected at most 44.999 us"),
        ("makespan: {at_least: 46us}", "makespan is 45 us, expected at least 46 us"),
        (
            "makespan: {equals: 50us, tolerance: 9%}",
            "makespan is 45 us, expected 50 us, give or take 4.5 us",
        ),
        ("gap: {at_least: 5%}", "gap is 0%, expected at least 5%"),
        ("tasks: {at_most: 3}", "tasks is 4, expected at most 3"),
        ("utilisation.cpu0: 99%", "utilisation.cpu0 is 0.7222222222, expected 0.99"),
        (
            "order: [b, a]",
            "order is [a, b], expected [b, a]\n  'a' starts at 0 ns, before 'b', which starts at 10 us\n"
            "  at 0 ns 'b' needs 'a', which runs on cpu0/w0",
        ),
    ],
)
def test_what_does_not_hold_says_what_came_out_and_where_it_stands(
    tmp_path: Path, expect: str, says: str
) -> None:
    result = run(tmp_path, expect)
    assert not result.passed
    [outcome] = result.outcomes
    place, _, message = outcome.message.partition(": ")
    message, _, unknown = message.partition("\n  what moved is unknown, as no schedule is recorded: ")
    assert message == says
    assert bool(unknown) == expect.startswith("makespan")
    assert place.startswith(f"{tmp_path}/s.yaml:12:")


@pytest.mark.parametrize(
    ("expect", "says"),
    [
        ("makspan: 1us", "expect.makspan: unknown result 'makspan'; did you mean 'makespan'?"),
        ("start: 1us", "expect.start: is of an op: write start.NAME"),
        ("utilisation: 1", "expect.utilisation: is of a device: write utilisation.NAME"),
        ("makespan.cpu0: 1us", "expect.makespan.cpu0: is of the whole run: write makespan"),
        ("utilisation.cpu1: 1", "expect.utilisation.cpu1: unknown device 'cpu1'; did you mean 'cpu0'?"),
        ("start.aa: 1us", "expect.start.aa: unknown op 'aa'; did you mean 'a'?"),
        ("sent.x: 1B", "expect.sent.x: unknown link 'x'"),
        ("order.cpu1: [a]", "expect.order.cpu1: unknown device 'cpu1'; did you mean 'cpu0'?"),
        (
            "makespan: {at_most: 1 x other}",
            "expect.makespan.at_most: there is no other run 'other'; no other",
        ),
        ("other: {makespan: 1us}", "expect.other: unknown run or result 'other'; did you mean 'order'?"),
        (
            "ready-queue: 1us",
            "expect.ready-queue: is a run; say which of its results, as in {makespan: 45us}",
        ),
        ("ready-queue: {makspan: 1us}", "expect.ready-queue.makspan: unknown result 'makspan'; did you mean"),
        (
            "ready-queue: {makespan: {at_mst: 1us}}",
            "expect.ready-queue.makespan.at_mst: no such key; did you",
        ),
        ("makespan: {order: [a]}", "expect.makespan: is a result; give equals, at_most, at_least or"),
        ("order: [a, e]", "expect.order.1: unknown op 'e'; known: a, b, c, d"),
        ("order: [a, a]", "expect.order.1: names the op 'a' twice"),
        ("order: a", "expect.order.equals: 'a' is not a list of ops, as in [a, b, c]"),
        ("order: {at_most: [a]}", "expect.order: is a list of ops and nothing else"),
        ("tasks: 1.5", "expect.tasks.equals: should be a whole number, not 1.5"),
        ("makespan: {}", "expect.makespan: says nothing; give equals, at_most or at_least"),
        ("makespan: {tolerance: 1us}", "expect.makespan.tolerance: needs equals"),
        (
            "makespan: {at_most: 1us, at_least: 2us}",
            "expect.makespan: can never hold: at_least is more than at_most",
        ),
        (
            "makespan: {at_most: fast}",
            "expect.makespan.at_most: 'fast' is not a number and a unit; accepted: ns, us, ",
        ),
        ("pipeline_bubble: 0.1", "expect.pipeline_bubble: this run has no such result"),
    ],
)
def test_what_cannot_be_expected(tmp_path: Path, expect: str, says: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        run(tmp_path, expect).outcomes  # noqa: B018
    place, _, message = str(caught.value).partition(": ")
    assert message.startswith(says)
    assert place.startswith(f"{tmp_path}/s.yaml:12:")


TWO = """\
compare:
  - {label: one core, set: {machine.devices.cpu0.cores: 1}}
  - {label: two, name: ready-queue}
"""
"""One core takes 65 us, two take 45 us."""


def held(folder: Path, expect: str) -> dict[str, list[str]]:
    """Return what each run of the scenario says, by label."""
    head, _, _ = GOOD.partition("expect:")
    scenario = load_scenario(write(folder, f"{head}{TWO}expect: {expect}\n"))
    results = [run_case(case) for case in scenario.expected_cases()]
    return {r.policy: [each.text if not each.passed else "" for each in r.outcomes] for r in results}


def test_runs_are_held_to_one_another(tmp_path: Path) -> None:
    assert held(tmp_path, "{two: {makespan: {at_most: 0.7 x one core, at_least: 0.69 x one core}}}") == {
        "two": [""]
    }
    assert held(
        tmp_path, "{one core: {makespan: {equals: 1.45 x two, tolerance: 1%}}, makespan: 1 x two}"
    ) == {
        "ready-queue": [""],
        "one core": [""],
    }
    assert held(tmp_path, "{one core: {makespan: {at_most: 1.25 x two}, 'utilisation.cpu0': 1 x two}}") == {
        "one core": [
            "makespan is 65 us, expected at most 56.25 us (1.25 x two)",
            "utilisation.cpu0 is 1, expected 0.7222222222 (1 x two)",
        ]
    }
    with pytest.raises(ScenarioError, match="there is no other run 'two'; known: one core, ready-queue"):
        held(tmp_path, "{two: {makespan: 1 x two}}")
    with pytest.raises(
        ScenarioError, match="'two' is a run; write how many times what it has, as in 1 x two"
    ):
        held(tmp_path, "{one core: {makespan: two}}")


def test_a_run_that_others_name_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(
        execute, "job_of", lambda case, **seed: ran.append(case.label) or job_of(case, **seed)
    )
    twice = "{makespan: {at_most: 1 x one core}, tasks: 1 x one core}"
    assert held(tmp_path, f"{{two: {twice}}}") == {"two": ["", ""]}
    assert ran == ["two", "one core"]
    ran.clear()
    both = f"{{one core: {{tasks: 4}}, two: {twice}}}"
    path = write(tmp_path, f"{GOOD.partition('expect:')[0]}{TWO}expect: {both}\n")
    assert sim("compare", path).exit_code == 0
    assert ran == ["one core", "two"]
    ran.clear()
    assert [(each.label, each.exit_status) for each in check_file(path)] == [("one core", 0), ("two", 0)]
    assert ran == ["one core", "two"]


@given(
    st.fractions(0, 3, max_denominator=50).map(lambda f: Fraction(round(f * 100), 100)),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
)
@examples(40)
def test_a_relative_bound_is_exact(times: Fraction, actual: int, other: int) -> None:
    text = f"{float(times)} x other"
    for key, exact in (("at_most", actual <= times * other), ("at_least", actual >= times * other)):
        relative = read_relative(text)
        assert relative is not None
        assert relative.times == times
        assert holds(actual, resolve({key: relative}, {"other": other})) == exact


def test_what_is_said_of_a_late_start_and_of_an_op_elsewhere(tmp_path: Path) -> None:
    [late] = run(tmp_path, "start.d: {at_most: 30us}").outcomes
    assert late.text == (
        "start.d is 40 us, expected at most 30 us\n  at 30 us 'd' needs 'c', which runs on cpu0/w1"
    )
    text = changed("cores: 2}", "cores: 2}\n    cpu1: {kind: cpu}")
    text = changed("a: {duration: 10us", "a: {duration: 10us, device: cpu1", text)
    [elsewhere] = run(tmp_path, "order.cpu0: [a, b]", text).outcomes
    assert elsewhere.text == "order.cpu0 is [b], expected [a, b]\n  'a' does not run on cpu0"


def test_many_expectations_of_many_tasks_take_some_seconds(tmp_path: Path) -> None:
    n, chain = 20_000, "ops: {a: {duration: 1us, inputs: [{from: a, distance: 1}]}}"
    text = f"machine: {{devices: {{cpu0: {{kind: cpu}}}}}}\nworkload: {{{chain}}}\niterations: {n}\n"
    ends = [f"'end.a[{i}]': {i + 1}us" for i in range(0, n, 40)]
    order = ", ".join(f"'a[{i}]'" for i in range(n))
    result = run(tmp_path, ", ".join([*ends, f"order: [{order}]"]), text + "policy: {name: ready-queue}\n")
    begun = time.process_time()
    assert result.passed
    assert time.process_time() - begun < 4


def test_names_are_looked_at_before_anything_runs(tmp_path: Path) -> None:
    """An order that deadlocks would be told as such, were it not for the misspelt op."""
    text = changed("{name: ready-queue}", "{name: in-order, linearize: {name: program, ops: [d, c, b, a]}}")
    with pytest.raises(ScenarioError, match="unknown op 'zz'"):
        run(tmp_path, "start.zz: 1us", text)


def test_iterations_are_named(tmp_path: Path) -> None:
    text = changed("policy: {name: ready-queue}", "policy: {name: in-order}\niterations: 2")
    result = run(
        tmp_path, "'start.a[0]': 0, 'end.d[1]': {at_most: 90us}, order: ['a[0]', 'd[0]', 'd[1]']", text
    )
    assert result.passed
    with pytest.raises(ScenarioError, match=r"unknown op 'a'; did you mean 'a\[1\]'|unknown op 'a'"):
        run(tmp_path, "start.a: 0", text)


def test_links_and_memory(tmp_path: Path) -> None:
    text = """\
machine:
  devices: {gpu0: {kind: gpu}, gpu1: {kind: gpu}}
  links: [{name: wire, from: gpu0, to: gpu1, latency: 1us, bandwidth: 1GB/s, duplex: false}]
workload:
  ops:
    a: {duration: 10us, output: 1kB, device: gpu0}
    b: {duration: 10us, inputs: [a], device: gpu1}
"""
    expect = "sent.wire: 1kB, link_busy.wire: 2us, start.b: 12us, peak_memory.gpu0: {at_least: 1kB}"
    assert run(tmp_path, expect, text).passed
    (outcome,) = run(tmp_path, "peak_memory.gpu1: 500B", text).outcomes
    assert outcome.text.splitlines() == [
        "peak_memory.gpu1 is 1 kB, expected 500 B",
        "  at 10 us, at the peak, gpu1 holds 'a' (1 kB)",
    ]
    (outcome,) = run(tmp_path, "peak_memory.gpu1: 1MiB", text.replace("1kB", "3GiB")).outcomes
    assert outcome.text.splitlines()[0] == "peak_memory.gpu1 is 3 GiB, expected 1 MiB"


def test_to_json_has_base_units(tmp_path: Path) -> None:
    result = run(tmp_path, "makespan: {equals: 50us, tolerance: 10%}, order: [a, d]")
    assert [outcome.to_json() for outcome in result.outcomes] == [
        {"what": "makespan", "equals": 50_000, "tolerance": 5_000, "actual": 45_000, "passed": True},
        {"what": "order", "equals": ["a", "d"], "actual": ["a", "d"], "passed": True},
    ]


OF_FAILURES = ("failed", "aborted", "never_ran", "steps", "steps_lost")
OF_PARALLEL = ("imbalance", "fullest", "dropped", "mean_staleness", "max_staleness")
OF_SERVING = (
    *(f"{metric}_{stat}" for metric in ("ttft", "tpot", "itl", "e2el") for stat in ("mean", "median", "p99")),
    *("request_throughput", "output_throughput", "hit_share", "preemptions", "replicas", "gpus"),
)
OF_TRAINING = ("step_time", "tokens_per_s", "mfu", "step_memory", "step_bubble", "exposed", "fits")
OF_PIPELINES = ("pipeline_bubble", "makespan_bubble", "span_bubble", "bottleneck", "latency")


def test_every_result_can_be_expected_of_a_run(tmp_path: Path) -> None:
    """No entry of the table names a key that results do not have."""
    result = run(tmp_path, "tasks: 4")
    names = {"device": "cpu0", "op": "a", "link": "", "": ""}
    for kind, row in RESULTS.items():
        if row.part not in ("link", "recovery") and kind != "schedule":  # in tests/sim/test_golden.py
            value = row.get(result.summary, result.trace, names[row.part])
            others = (
                *RATES,
                "weighted_tardiness",
                "energy",
                *OF_PIPELINES,
                *OF_TRAINING,
                *OF_FAILURES,
                *OF_PARALLEL,
                *OF_SERVING,
                "peak_reserved",
            )
            assert value is not None or kind in others


FULL = """\
machine: {devices: {gpu0: {kind: gpu, memory: 10MB}}}
workload: {ops: {a: {duration: 10us, output: 20MB}}}
policy: in-order
"""


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        (("", ""), "out of memory"),
        (("20MB", "2MB"), "done"),
        (("duration: 10us", "duration: {npu: 1us}"), "cannot be built"),
    ],
)
def test_how_a_run_ends_can_be_expected(tmp_path: Path, change: tuple[str, str], outcome: str) -> None:
    text = FULL.replace(*change) if change[0] else FULL
    for expected in OUTCOMES:
        path = write(tmp_path, f"{text}expect: {{outcome: {expected}}}\n")
        (one,) = check_file(path)
        assert one.error is None
        assert (one.exit_status == 0) == (expected == outcome)
        assert one.outcomes[0].to_json() == {
            "what": "outcome",
            "equals": expected,
            "actual": outcome,
            "passed": expected == outcome,
        }


def test_an_outcome_stands_alone_and_is_a_known_one(tmp_path: Path) -> None:
    path = write(tmp_path, f"{FULL}expect: {{outcome: out of memory, tasks: 1}}\n")
    (one,) = check_file(path)
    assert "expect.outcome: such a run has no other results; expect nothing else of it" in str(one.error)
    (one,) = check_file(write(tmp_path, f"{FULL}expect: {{outcome: out of memry}}\n"))
    assert str(one.error).endswith("not 'out of memry'; did you mean 'out of memory'?")


def test_a_golden_schedule_has_a_tolerance(tmp_path: Path) -> None:
    text = FULL.replace("20MB", "2MB")
    assert sim("run", write(tmp_path, text), "--ops", tmp_path / "golden.csv").exit_code == 0
    later = text.replace("10us", "12us")
    for tolerance, status in (("1us", 1), ("2us", 0)):
        held = f"expect: {{schedule: {{equals: golden.csv, tolerance: {tolerance}}}}}\n"
        assert [one.exit_status for one in check_file(write(tmp_path, later + held))] == [status]
    wrong = "expect: {schedule: {equals: golden.csv, tolerance: 1%}}\n"
    (one,) = check_file(write(tmp_path, later + wrong))
    assert one.exit_status == 2


def test_every_result_of_serving_can_be_expected() -> None:
    step = "{fixed: 1ms}, kv: {blocks: 50}, requests: {in_flight: 2, prompt: 9, output: 3, count: 4}"
    result = run_scenario(read_scenario(f"workload: {{serving: {{step: {step}}}}}"))
    for kind in (*OF_SERVING, "goodput"):
        assert RESULTS[kind].get(result.summary, result.trace, "") is not None


def test_a_result_of_one_part_is_named_where_the_whole_run_has_none(root: Path, tmp_path: Path) -> None:
    """Two recovery policies have two goodputs."""
    example = (root / "scenarios" / "examples" / "training_run.yaml").read_text(encoding="utf-8")
    text = example.partition("expect:")[0] + "expect:\n  goodput: {at_least: 0.5}\n"
    (tmp_path / "s.yaml").write_text(text, encoding="utf-8")
    shown = sim("check", str(tmp_path / "s.yaml"))
    assert shown.exit_code == 2
    assert "has no such result; goodput.NAME is that of one recovery" in " ".join(shown.output.split())


def test_an_op_that_failed_is_told_beside_what_came_out_as_expected(tmp_path: Path) -> None:
    text = GOOD.partition("expect:")[0].replace("  ops:\n", "  ops:\n    e: {duration: 1us, fails: true}\n")
    result = sim("check", write(tmp_path, f"{text}expect: {{makespan: 45us}}\n"))
    assert result.exit_code == 0
    assert "op 'e' failed on cpu0 in step 0 at " in result.stdout
