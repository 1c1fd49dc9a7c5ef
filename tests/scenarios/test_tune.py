"""`sim tune` finds what is known to be best, keeps to budget and limits, and its winner can be run again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pandas as pd
import pytest
from cli_runner import sim
from scenario_texts import write

from scenarios.fields.goals import read_goal
from scenarios.run.execute import run_case
from scenarios.run.load import load_scenario
from scenarios.variants.optimum import find_optimum
from scenarios.variants.search_methods import METHODS, Ask
from scenarios.variants.tune import Tuner
from scenarios.variants.tune_report import tuning_figure
from scenarios.variants.variant import Variant, Variants
from sim.base import plugins
from sim.base.errors import InputError, MissingExtraError


def ask_all(method: str, sizes: list[int], budget: int, levels: int = 1, seed: int = 0) -> list[Ask]:
    """Return what a method asks for, if a point costs the distance of its values from 2, 1, 2, 1, ..."""
    search = METHODS[method](sizes, levels, budget, seed)
    asked: list[Ask] = []

    def costs(asks: list[Ask]) -> Iterator[float | None]:
        for ask in asks[: budget - len(asked)]:
            asked.append(ask)
            cost = sum(abs(value - (2 - k % 2)) for k, value in enumerate(ask.point))
            yield None if sum(ask.point) % 5 == 4 else float(cost)

    try:
        asks = next(search)
        while True:
            asks = search.send(costs(asks))
    except StopIteration:
        return asked


@pytest.mark.parametrize("method", ["grid", "random", "local"])
@pytest.mark.parametrize(("sizes", "budget"), [([3, 4], 100), ([5, 5, 5], 20), ([1], 5), ([1, 1, 7], 3)])
def test_no_point_twice_and_no_more_than_the_budget(method: str, sizes: list[int], budget: int) -> None:
    asked = ask_all(method, sizes, budget)
    space = set(product(*map(range, sizes)))
    assert len(asked) == len({ask.point for ask in asked}) == min(budget, len(space))
    assert {ask.point for ask in asked} <= space
    assert asked == ask_all(method, sizes, budget)
    assert (ask_all(method, sizes, budget, seed=1) != asked) == (method != "grid" and len(space) > 1)


def test_halving_keeps_the_better_third_of_each_level() -> None:
    asked = ask_all("halving", [10, 10], 100, levels=3)
    at = [[ask.point for ask in asked if ask.level == level] for level in range(3)]
    assert [len(points) for points in at] == [69, 23, 7]
    assert set(at[2]) < set(at[1]) < set(at[0])
    dropped = [sum(abs(v - w) for v, w in zip(p, (2, 1), strict=True)) for p in set(at[0]) - set(at[1])]
    kept = [sum(abs(v - w) for v, w in zip(p, (2, 1), strict=True)) for p in at[1]]
    assert max(kept) <= sorted(dropped)[len(dropped) // 2]


@pytest.mark.parametrize("budget", [4, 10, 19, 48])
def test_local_is_not_behind_random_with_however_small_a_budget(budget: int) -> None:
    """On a space with one bad value an axis, another bad pair, and no slope in a third of its points."""
    sizes = [6, 4, 4, 2]

    def cost(at: tuple[int, ...]) -> float:
        bad = 40 * (at[0] == 0) + 25 * (at[1] == 3) + 30 * (at[2] == 2 and at[3] == 0)
        return float(bad + (10 if at[0] < 2 else abs(at[0] - 3) + abs(at[1] - 1) + at[2]))

    def least(method: str, seed: int) -> float:
        search, found = METHODS[method](sizes, 1, budget, seed), []

        def costs(asks: list[Ask]) -> Iterator[float | None]:
            for ask in asks[: budget - len(found)]:
                found.append(cost(ask.point))
                yield found[-1]

        with suppress(StopIteration):
            asks = next(search)
            while True:
                asks = search.send(costs(asks))
        return min(found)

    of = {method: sum(least(method, seed) for seed in range(100)) for method in ("local", "random")}
    assert of["local"] <= of["random"]


@pytest.mark.parametrize(("now", "near"), [(100.0, 101.0), (-100.0, -99.0)])
def test_local_goes_on_from_a_slightly_worse_neighbour_of_any_sign(now: float, near: float) -> None:
    search = METHODS["local"]([1000], 1, 100, 0)
    search.send(iter([now] * len(next(search))))
    costs = iter([near] * 8)
    search.send(costs)
    assert len([*costs]) == 7  # the first was accepted, and its own neighbours are asked for


def test_optuna_searches_or_is_named() -> None:
    if find_spec("optuna") is None:
        with pytest.raises(MissingExtraError, match="optuna"):
            ask_all("optuna", [6, 6], 20)
        return
    asked = ask_all("optuna", [6, 6], 20)
    assert len({ask.point for ask in asked}) == len(asked) <= 20


EXAMPLES = Path(__file__).resolve().parents[2] / "scenarios" / "examples"

SCENARIO = """\
name: step
machine: {devices: {cpu0: {kind: cpu, cores: 2}}}
workload:
  ops:
    a: {duration: 10us, output: 4MB}
    b: {duration: 30us, inputs: [a], output: 4MB}
    c: {duration: 20us, inputs: [a], output: 8MB}
    d: {duration: 10us, inputs: [c], output: 4MB}
policy: {name: ready-queue}
expect: {makespan: 40us}
compare: [in-order]
"""


def tuner(path: Path, **more: Any) -> Tuner:
    goal = read_goal("makespan", None)
    assert goal is not None
    return Tuner(Variants(str(path), results=goal.results, all_columns=False), goal, **more)


@pytest.mark.parametrize(
    ("name", "best_us"),
    [
        ("head_of_line", 50),
        ("branches", 60),
        ("fusion", 35),
        ("synchronous", 56),
        ("ten_tasks", 73),
    ],
)
def test_small_graphs_get_their_optimum(name: str, best_us: int) -> None:
    found = tuner(EXAMPLES / f"{name}.yaml")
    found.schedules(100)
    tuning = found.tuning
    assert tuning.best is not None
    assert len(tuning.trials) <= 100
    assert tuning.trials[tuning.best].row["makespan_ns"] == best_us * 1000
    if find_spec("ortools") is not None:  # which proves it
        base = run_case(load_scenario(EXAMPLES / f"{name}.yaml").case())
        assert find_optimum([base], limit_ns=20 * 10**9, placed=False).lower_bound == best_us * 1000


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:h200-sxm.*have no measured cost")
def test_the_quickstart_is_as_fast_as_under_every_policy_that_is_built_in() -> None:
    path = EXAMPLES / "quickstart.yaml"
    found = tuner(path)
    found.schedules(100)
    tuning = found.tuning
    assert tuning.best is not None
    scenario = load_scenario(path)
    built_in = [name for name in plugins.names("sim.policies") if name != "replay"]  # which needs a plan
    assert len(built_in) >= 9
    least = min(run_case(scenario.case(name)).trace.makespan_ns for name in built_in)
    assert tuning.trials[tuning.best].row["makespan_ns"] <= 1.001 * least


def test_the_winner_is_a_scenario_that_does_the_same(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.replace("cores: 2", "cores: 1").replace("makespan: 40us", "makespan: 70us"))
    text = SCENARIO.replace("policy: {name: ready-queue}", "policy: {name: in-order}")
    path.write_text(text.replace("expect: {makespan: 40us}\n", ""))
    out, table, plot = (tmp_path / name for name in ("best.yaml", "t.csv", "p.png"))
    done = sim("tune", path, "--budget", 30, "--out", out, "--table", table, "--plot", plot, "--json")
    told = json.loads(done.stdout)
    best = told["best"]["makespan_ns"]
    assert told["schema"] == "sim.tuning/1"
    again = json.loads(sim("run", out, "--json").stdout)
    assert again["makespan_ns"] == best == 40_000
    assert sim("check", out).exit_code == 0
    assert pd.read_csv(table)["makespan_ns"].min() == best
    assert plot.stat().st_size > 5000


PIPELINE = """\
workload: {pipeline: {ranks: 2, micro_batches: 4, forward: 1ms, backward: 2ms, transfer: 0.5ms, kept: 1MB}}
policy: 1f1b
"""


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "chimera"])
@pytest.mark.parametrize("verb", ["tune", "optimum"])
def test_the_best_order_of_a_pipeline_is_a_custom_schedule(name: str, verb: str, tmp_path: Path) -> None:
    path, out = write(tmp_path, PIPELINE), tmp_path / "best.yaml"
    limit = ("--budget", 20) if verb == "tune" else ("--limit", "2s")
    if verb == "optimum":
        pytest.importorskip("ortools")
    done = sim(verb, path, "--policy", name, *limit, "--out", out, "--json")
    assert "name: custom" in out.read_text()
    told, again = (json.loads(each.stdout) for each in (done, sim("run", out, "--json")))
    assert again["makespan_ns"] == told.get("best", told)["makespan_ns"]
    assert sim("check", out).exit_code == 0


def test_what_a_custom_schedule_does_not_reproduce_is_not_written(tmp_path: Path) -> None:
    text = PIPELINE.replace("backward: 2ms", "input_grad: 1ms, weight_grad: 1ms").replace("0.5ms", "2.5ms")
    path, out = write(tmp_path, text.replace("kept:", "collectives: 0.2ms, kept:")), tmp_path / "best.yaml"
    done = sim("tune", path, "--policy", "dualpipe", "--budget", 60, "--out", out)
    assert done.exit_code == 2
    assert "not written: what was found is no mere order of slots" in done.stderr
    assert [*tmp_path.iterdir()] == [path]


def test_the_best_of_a_compiled_graph_runs_on_that(tmp_path: Path) -> None:
    """The plan names its Send and Recv; c has a stream of its own, and b ends at 10 + 10 + 10 us."""
    path, out = tmp_path / "s.yaml", tmp_path / "best.yaml"
    path.write_text(
        "machine:\n"
        "  devices: {cpu0: {kind: cpu, cores: 1}, gpu0: {kind: gpu, streams: 2}}\n"
        "  links: [{from: cpu0, to: gpu0, bandwidth: 1GB/s}]\n"
        "workload:\n"
        "  ops:\n"
        "    a: {duration: 10us, output: 10kB, device: cpu0}\n"
        "    b: {duration: 10us, inputs: [a], device: gpu0}\n"
        "    c: {duration: 30us, device: gpu0}\n"
        "policy: {name: in-order, streams: single, compile: [partition]}\n"
    )
    assert sim("optimum", path, "--out", out).exit_code == 0
    assert "makespan: 30 us" in out.read_text()
    assert sim("check", out).exit_code == 0


def test_a_pipeline_keeps_its_schedule_if_settings_alone_are_better(tmp_path: Path) -> None:
    path, out = write(tmp_path, PIPELINE), tmp_path / "best.yaml"
    sim("tune", path, "--vary", "workload.pipeline.micro_batches=4,8", "--policy", "gpipe", "--out", out)
    assert "name: gpipe" in out.read_text()
    assert sim("check", out).exit_code == 0


@pytest.mark.parametrize("more", ["optimizer: 1ms", "dp: {all_reduce: 3ms}", "overlap: false"])
@pytest.mark.parametrize("verb", ["tune", "optimum"])
def test_no_order_is_searched_where_places_among_slots_count(verb: str, more: str, tmp_path: Path) -> None:
    """No edge keeps the optimizer behind all backwards: it stands behind the last of the program."""
    done = sim(verb, write(tmp_path, PIPELINE.replace("ranks: 2", f"ranks: 2, {more}")))
    assert done.exit_code == 2
    assert "has its place among slots; leave out what surrounds the schedule" in done.stderr


def test_a_name_in_the_picture_is_no_formula(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.replace("cpu0", r"$\z$").replace("expect: {makespan: 40us}\n", ""))
    goal = ("--vary", r"machine.devices.$\z$.cores=1,2", "--minimise", r"compute.$\z$")
    assert sim("tune", path, *goal, "--plot", tmp_path / "p.png").exit_code == 0


def test_the_winner_has_no_key_that_its_settings_leave_without_effect(tmp_path: Path) -> None:
    path, out = tmp_path / "s.yaml", tmp_path / "best.yaml"
    model = "model: {layers: 2, hidden: 64, heads: 4, vocabulary: 128}, calibration: h100-sxm, sequence: 32"
    parallel = "parallel: {tp: 2, sequence_parallel: false}"
    path.write_text(f"workload: {{train: {{{model}, batch: 2, {parallel}}}}}\n")
    sim("tune", path, "--vary", "workload.train.parallel.tp=1", "--budget", 1, "--out", out)
    assert sim("check", out).exit_code == 0


@pytest.mark.slow
def test_any_number_of_processes_finds_the_same(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    settings = [
        "--vary",
        "machine.devices.cpu0.cores=1,2,4",
        "--vary",
        "workload.ops.b.duration=10us,20us,30us",
    ]
    told = []
    for jobs in (1, 2):
        table = tmp_path / f"{jobs}.csv"
        words = [*settings, "--method", "local", "--schedules", "--budget", 40, "--jobs", jobs, "--json"]
        told.append((sim("tune", path, *words, "--table", table).stdout, table.read_bytes()))
    assert told[0] == told[1]
    assert {"settings", "list"} < set(pd.read_csv(tmp_path / "2.csv")["what"])


def test_settings_are_searched_within_limits(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    vary = ["--vary", "machine.devices.cpu0.cores=1,2,4", "--vary", "policy.name=in-order,ready-queue"]
    told = json.loads(sim("tune", path, *vary, "--out", tmp_path / "best.yaml", "--json").stdout)
    assert (told["trials"], told["best"]["makespan_ns"]) == (6, 40_000)
    assert told["best"]["machine.devices.cpu0.cores"] == "2"  # the first of equal ones
    assert json.loads(sim("run", tmp_path / "best.yaml", "--json").stdout)["makespan_ns"] == 40_000
    limit = ["--subject-to", "utilisation.cpu0>=0.9", "--against", "peak_memory.cpu0"]
    told = json.loads(sim("tune", path, *vary, *limit, "--json").stdout)
    assert told["best"]["makespan_ns"] == 70_000
    assert [row["makespan_ns"] for row in told["front"]] == [70_000]
    none = sim("tune", path, *vary, "--subject-to", "makespan<=1us")
    assert none.exit_code == 1
    assert "6 trials, and none is an answer: limits are not kept" in none.stdout


def test_improvements_that_are_not_listed_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path)
    vary = f"workload.ops.c.duration={','.join(f'{us}us' for us in range(60, 46, -1))}"
    told = sim("tune", path, "--vary", vary).stdout
    assert "the first 2 and the last 10 of 14 improvements; --json has all\n" in told
    assert "of 1 trial;" in sim("tune", path, "--budget", 1).stdout


def test_halving_answers_at_the_last_level_only(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.replace("expect: {makespan: 40us}\n", ""))
    vary = ["--vary", "machine.devices.cpu0.cores=1,2,3,4,5,6", "--level", "iterations=1,4"]
    told = json.loads(sim("tune", path, *vary, "--budget", 8, "--json").stdout)
    assert told["best"]["iterations"] == "4"
    assert told["answers"] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "local"], "--method local is for settings: give --vary"),
        (["--vary", "iterations=1,2", "--method", "loca"], "unknown method 'loca'; did you mean 'local'?"),
        (
            ["--vary", "iterations=1,2", "--method", "halving"],
            "--method halving and --level KEY=V1,V2 (cheap to exact) go together",
        ),
        (
            ["--vary", "iterations=1,2", "--method", "grid", "--budget", "1"],
            "grid tries all 2 points, and --budget allows 1 runs",
        ),
        (["--level", "iterations=1,2"], "--level is for --method halving of --vary"),
        (
            ["--vary", "iterations=1,2", "--level", "seed=1,2", "--method", "grid"],
            "--method halving and --level KEY=V1,V2 (cheap to exact) go together",
        ),
        (["--out", f"{gettempdir()}/best.yaml"], "what a scenario names is found beside it; write into"),
        (["--vary", "machine.devices.cpu0.core=1"], "no such key; did you mean 'cores'?"),
        (["--minimise", "makspan"], "unknown result 'makspan'"),
        (["--against", "makespan"], "--against makespan: the search is for it already"),
    ],
)
def test_wrong_words_are_one_line(tmp_path: Path, options: list[str], message: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    done = sim("tune", path, *options)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_has_no_schedule_to_search_says_so() -> None:
    with pytest.raises(InputError, match="no one order"):
        tuner(EXAMPLES / "loop.yaml").schedules(10)


NOISY = """\
machine: {devices: {cpu: {kind: cpu, cores: 2}}}
workload: {build: {model: random-dag, layers: 5, width: 6, seed: 3}}
policy: ready-queue
compare: [critical-path]
noise: {jitter: 0.3}
seed: 4
"""


def test_under_noise_a_trial_is_a_mean_and_its_worth_is_measured_on_other_seeds(tmp_path: Path) -> None:
    """Seeds 4 to 8 are those of trials, and 9 to 28 those that none has seen: by hand, run after run."""
    path = write(tmp_path, NOISY)

    def runs(cores: int, seeds: range) -> list[int]:
        variants = [Variant((("machine.devices.cpu.cores", str(cores)), ("seed", str(k)))) for k in seeds]
        return [row["makespan_ns"] for _, row in Variants(str(path)).rows(variants)]

    done = sim("tune", path, "--vary", "machine.devices.cpu.cores=1,2,3", "--json")
    told = json.loads(done.stdout)
    assert (told["trials"], told["seeds"], told["best"]["machine.devices.cpu.cores"]) == (3, 5, "3")
    assert told["best"]["makespan_ns"] == round(sum(runs(3, range(4, 9))) / 5)
    best, before = (runs(cores, range(9, 29)) for cores in (3, 2))
    fresh = told["fresh"]
    assert (fresh["runs"], fresh["best"], fresh["before"]) == (20, sum(best) / 20, sum(before) / 20)
    gains = [1 - one / other for one, other in zip(best, before, strict=True)]
    assert fresh["gain"] == pytest.approx(sum(gains) / 20)
    assert min(gains) < fresh["interval"][0] < fresh["gain"] < fresh["interval"][1] < max(gains)


@pytest.mark.slow
def test_what_is_far_behind_is_dropped_and_its_runs_go_to_others(tmp_path: Path) -> None:
    """One core is far behind three, eight orders on: with two of five seeds, on any number of processes."""
    path, told = write(tmp_path, NOISY), []
    keys = ["--vary", "machine.devices.cpu.cores=3,1", "--vary", "name=" + ",".join("abcdefgh")]
    for jobs in ("1", "2"):
        table = tmp_path / f"{jobs}.json"
        more = ["--method", "grid", "--budget", "60", "--jobs", jobs, "--table", table, "--json"]
        done = json.loads(sim("tune", path, *keys, *more).stdout)
        told.append((done["trials"], done["best"], json.loads(table.read_text())))
    assert told[0] == told[1]
    trials, best, rows = told[0]
    assert best["machine.devices.cpu.cores"] == "3"
    whys = [row["why_not"] if "why_not" in row else row.get("error") for row in rows]
    dropped = [why for why in whys if why]
    assert set(dropped) == {"dropped: far behind the best with each of 2 seeds"}
    assert len(dropped) == 8
    assert trials == 16 > 60 // 5


@pytest.mark.parametrize("method", ["grid", "random", "local"])
def test_under_noise_a_search_ends_with_its_budget(tmp_path: Path, method: str) -> None:
    """Which it reaches before it has asked for all the points that it might if all were dropped."""
    path = write(tmp_path, NOISY)
    keys = ["--vary", "machine.devices.cpu.cores=1,2,3,4", "--vary", "policy=ready-queue,in-order,lifo"]
    told = json.loads(sim("tune", path, *keys, "--method", method, "--budget", "22", "--json").stdout)
    assert 22 // 5 <= told["trials"] <= 22 // 2


@pytest.mark.slow
def test_a_search_that_was_cut_off_goes_on_where_it_was(tmp_path: Path) -> None:
    """The same table comes out; what is kept is not run again, unless the scenario is another one."""
    path, table = write(tmp_path, NOISY), tmp_path / "trials.csv"
    points = tmp_path / "trials.csv.points"
    search = ["tune", path, "--budget", "60", "--table", table]
    assert sim(*search).exit_code == 0
    whole, kept = table.read_bytes(), points.read_text().splitlines(keepends=True)
    points.write_text("".join(kept[: len(kept) // 2]) + kept[-1][:20])
    assert sim(*search).exit_code == 0
    assert table.read_bytes() == whole
    entry = json.loads(kept[0])
    points.write_text(json.dumps(entry | {"row": entry["row"] | {"makespan_ns": 10**12}}) + "\n")
    assert sim(*search).exit_code == 0
    assert table.read_bytes() != whole
    assert sim(*search, "--set", "noise.jitter=0.2").exit_code == 0
    other = table.read_bytes()
    points.unlink()
    assert sim(*search, "--set", "noise.jitter=0.2").exit_code == 0
    assert table.read_bytes() == other


def test_luck_is_told_to_be_noise_and_a_winner_under_noise_does_the_same_again(tmp_path: Path) -> None:
    """On one core all orders take as long."""
    path = write(tmp_path, NOISY)
    out = tmp_path / "best.yaml"
    done = sim("tune", path, "--set", "machine.devices.cpu.cores=1", "--budget", "60", "--out", out)
    assert done.exit_code == 0
    assert "on average over 5 seeds, of 12 trials" in done.stdout
    line = "no better than ready-queue: 0.0 % (95 %: 0.0 to 0.0 %) is within noise"
    assert line in done.stdout
    assert sim("check", out).exit_code == 0


def test_a_first_point_that_cannot_be_built_is_told_and_does_not_hide_the_noise(tmp_path: Path) -> None:
    """No policy is called fastest: the second point says that seeds matter."""
    path = write(tmp_path, NOISY)
    done = sim("tune", path, "--vary", "policy=fastest,ready-queue")
    assert "on average over 5 seeds, of 2 trials" in done.stdout
    assert "without a result: 1 cannot be built; the first: invalid: --vary policy=fastest: " in done.stdout


def test_where_seeds_change_nothing_a_trial_is_a_run(tmp_path: Path) -> None:
    path = write(tmp_path, NOISY)
    told = json.loads(sim("tune", path, "--set", "noise.jitter=0", "--budget", "9", "--json").stdout)
    assert (told["trials"], told["seeds"], told["fresh"]) == (9, 1, None)


def test_a_picture_shows_all_trials_where_none_beats_the_first() -> None:
    found = tuner(EXAMPLES / "gpipe.yaml", axes={"workload.pipeline.micro_batches": ["4", "8", "32"]})
    found.settings("grid", 3)
    ax = tuning_figure(found.tuning).axes[0]
    low, high = ax.get_ylim()
    assert low < 21e6 < 105e6 < high, "4 and 32 micro-batches"
    assert all(tick == round(tick) for tick in ax.get_xticks())


def test_a_space_of_more_points_than_a_machine_can_count_is_searched() -> None:
    sizes = [8] * 22  # 2 ** 66 points
    assert len({ask.point for ask in ask_all("random", sizes, 5)}) == 5
    assert len({ask.point for ask in ask_all("local", sizes, 30)}) == 30
