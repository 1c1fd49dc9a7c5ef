"""The scenarios that ship: each says what has to come out, and it does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import sim

from scenarios.regression import check_file, scenario_files
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim.explain.derived import DerivedColumns
from sim.explain.idle import idle_reasons
from sim.explain.narration import grouped_gaps

FOLDER = Path(__file__).resolve().parents[2] / "scenarios" / "examples"
FILES = [path for path in scenario_files([FOLDER]) if path.parent.name != "zero_bubble"]
"""Those of the published bubble rates take half a minute: see ``test_pipeline_scenarios.py``."""

LONG = ("training_run", "parallel_layers", "ddp", "serving")


@pytest.mark.filterwarnings("ignore:.* data-sheet rooflines")
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=pytest.mark.slow if path.stem in LONG else ()) for path in FILES],
)
def test_what_is_expected_comes_out(path: Path) -> None:
    """Every run expects something, whatever policy it is under."""
    checked = list(check_file(path))
    assert [message for one in checked for message in one.messages] == []
    assert all(one.outcomes for one in checked)
    scenario = load_scenario(path)
    assert len(checked) == len(scenario.expected_cases()) >= max(1, len(scenario.variants))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_reader_is_told_what_it_is(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# yaml-language-server: $schema=")
    content = load_scenario(path).content
    assert content.name
    assert content.description


def test_none_is_missing() -> None:
    shipped = {path.stem for path in FILES}
    assert shipped >= {"topological", "branches", "head_of_line", "split", "synchronous", "quickstart"}


def test_files_pass_as_a_whole() -> None:
    result = sim("check", *(FOLDER / f"{name}.yaml" for name in ("topological", "branches", "split")))
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].endswith("runs, all as expected")


def idle_ns(facts: DerivedColumns, device: int, lane: int | None, from_ns: int, to_ns: int) -> int:
    """Return for how long no task of a device, or of one of its lanes, runs, one task after another."""
    here = facts.device == device
    if lane is not None:
        here &= facts.lane == facts.machine.first_stream[device] + lane
    busy, idle = from_ns, 0
    spans = zip(facts.begins[here].tolist(), facts.trace.occupied_until_ns[here].tolist(), strict=True)
    for begin, end in sorted(spans):
        idle += max(0, min(begin, to_ns) - busy)
        busy = max(busy, min(end, to_ns))
    return idle + max(0, to_ns - busy)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* data-sheet rooflines", "ignore:.*have no measured cost")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_blame_adds_up_to_what_is_idle_on_every_device_grouped_and_in_any_place(path: Path) -> None:
    trace = run_scenario(load_scenario(path)).trace
    facts, end = DerivedColumns(trace), trace.makespan_ns
    for from_ns, to_ns in ((0, end), (end // 3, end - end // 4)):
        part = facts.within(from_ns=from_ns, to_ns=to_ns)
        reasons = idle_reasons(part)
        for d, device in enumerate(facts.devices):
            assert sum(reasons[device.name].values()) == idle_ns(facts, d, None, from_ns, to_ns)
        over = sum(why.get("finished", 0) + why.get("unused", 0) for why in reasons.values())
        grouped = sum(group.total_ns * len(group.devices) for group in grouped_gaps(part))
        assert grouped == sum(sum(why.values()) for why in reasons.values()) - over
    first = facts.devices[0].name
    why = idle_reasons(facts.within(first, 0, end // 3))[first]
    assert sum(why.values()) == idle_ns(facts, 0, 0, end // 3, end)


def test_head_of_line_blocking_is_told_in_words() -> None:
    found = json.loads(sim("compare", FOLDER / "head_of_line.yaml", "--json").stdout)
    assert [(one["policy"], one["makespan_ns"]) for one in found["results"]] == [
        ("window 4", 50_000),
        ("streams, issued asynchronously", 50_000),
        ("window 2", 70_000),
        ("in-order", 80_000),
        ("window 1", 80_000),
    ]
    why = {one["policy"]: one["why"] for one in found["results"]}
    assert why["in-order"].startswith("30 us slower, mainly because in-order holds ready ops back (+20 us)")


@pytest.mark.parametrize(
    ("parts", "makespan_ns"), [(1, 103_000), (2, 63_000), (3, 49_667), (5, 56_000), (16, 46_000)]
)
def test_any_number_of_parts(parts: int, makespan_ns: int) -> None:
    """Worked as in the file: read 11, write 11, and the waves of (1 + 80 / k) us on four cores.

    The largest of 3 parts takes 26,667 ns. 5 parts are two waves of 17 us, 16 parts four waves of 6 us.
    """
    scenario = load_scenario(FOLDER / "split.yaml", sets=[f"workload.ops.work.split={parts}"])
    assert run_scenario(scenario, check=True).trace.makespan_ns == makespan_ns


@pytest.mark.filterwarnings("ignore:.* data-sheet rooflines")
@pytest.mark.parametrize("batch", [1, 32])
def test_quickstart_at_either_batch(batch: int) -> None:
    found = json.loads(
        sim("compare", FOLDER / "quickstart.yaml", "--json", "--set", f"workload.batch={batch}").stdout
    )
    times = {one["policy"]: one["makespan_ns"] for one in found["results"]}
    assert times["streams"] < times["critical-path"] < times["in-order"]
    assert times["ready-queue"] < times["in-order"]
    assert times["out-of-order"] < times["in-order"]
    for one in found["results"]:
        assert one["makespan_ns"] >= one["lower_bound_ns"]
        assert one["tasks"] == 143
        assert "\n" not in one["why"]
        assert one["why"]
