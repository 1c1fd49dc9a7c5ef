"""No key of a scenario is passed over: each key of each example, misspelt, is refused.

Almost all are refused when the file is loaded, entries of ``compare`` included, so that `run`, `check`,
`compare` and `sweep` refuse the same. What is left is held against the machine and the graph, which are
built to run: arguments of a collective model, kinds of op and of device, attributes of ops, allocators.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_runner import sim
from examples import PROFILE, SHARES

from scenarios.file.document import Document, Loc, dotted_path
from scenarios.file.yaml_read import Node
from scenarios.regression import is_scenario
from scenarios.run.execute import run_case
from scenarios.run.scenario import scenario_of
from sim.base.errors import InputError
from sim.base.plugins import Allowed

EXAMPLES = Path(__file__).parents[2] / "scenarios/examples"
FILES = [path for path in sorted(EXAMPLES.rglob("*.yaml")) if is_scenario(path)]
STEP = max(1, round(1 / SHARES[PROFILE][0]))
"""Of so many keys one is misspelt; in `make test-all` each."""

NAMED = (
    {"devices", "hosts"}  # of a machine
    | {"ops", "inputs", "parameters", "functions", "sessions"}  # of a workload
    | {"failures", "slow_downs"}  # causes, of faults and of training runs
)
"""Mappings by names that the user chooses. Another one is no mistake; where the name is used, it is one."""


def keys(node: Node, at: Loc = ()) -> Iterator[Loc]:
    """Yield the path of every key that is no name of the user's."""
    below: Any = node.value
    if isinstance(below, list):
        below = dict(enumerate(below))
    elif isinstance(below, dict):
        yield from ((*at, key) for key in below if not is_name((*at, key)))
    if isinstance(below, dict):
        for key, value in below.items():
            yield from keys(value, (*at, key))


def is_name(loc: Loc) -> bool:
    """Whether the last of a path is a name that the user chose; keys of ``set`` are paths themselves."""
    inside = dotted_path(loc).split(".") if "set" in loc else loc
    return len(inside) > 1 and inside[-2] in NAMED


def misspelt(node: Node, loc: Loc, above: Loc = ()) -> Node:
    """Return a tree in which the key at a path has a letter too many; results name an op behind a dot."""
    first, *rest = loc
    key = str(first)
    below: Any = node.value
    if isinstance(below, list):
        return Node([misspelt(v, tuple(rest)) if i == first else v for i, v in enumerate(below)], node.place)
    if rest:
        inside = misspelt(below[key], tuple(rest), (*above, first))
        return Node({**below, key: inside}, node.place, node.keys)
    head, dot, tail = key.partition(".")
    wrong = f"{head}x{dot}{tail}" if above[-1:] == ("expect",) else f"{key}x"
    value = {wrong if each == first else each: v for each, v in below.items()}
    return Node(value, node.place, {**node.keys, wrong: node.place})


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_misspelt_key_is_refused(file: Path) -> None:
    document = Document.read(file, Allowed(code=True, outside=True))
    scenario_of(document)
    passed = []
    for loc in list(keys(document.root))[FILES.index(file) % STEP :: STEP]:
        try:
            scenario = scenario_of(replace(document, root=misspelt(document.root, loc)))
            run_case(scenario.entry(int(loc[1])) if loc[0] == "compare" else scenario.cases()[0])
        except InputError:
            continue
        passed.append(dotted_path(loc))
    assert not passed


PIPELINE = "workload: {pipeline: {stages: 4, micro_batches: 8, forward: 1ms, backward: 2ms}}\n"
TRAIN = "workload: {train: {model: llama3-8b, sequence: 4096, batch: 8, calibration: %s, dtype: %s}}\n"
SCHEDULES = ["1f1b", "zb-auto", "custom", "pipedream"]


def said(folder: Path, text: str, *verb: str) -> str:
    """Return what the command line says of a scenario that it refuses."""
    path = folder / "s.yaml"
    path.write_text(text, encoding="utf-8")
    result = sim(verb[0], path, *verb[1:])
    assert result.exit_code == 2, result.output
    return result.output


@pytest.mark.parametrize("verb", [("run",), ("check",), ("compare",), ("sweep", "--vary", "seed=1,2")])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_verb_refuses_an_entry_that_it_does_not_run(
    tmp_path: Path, schedule: str, verb: tuple[str, ...]
) -> None:
    entry = f"compare:\n- {{name: {schedule}, label: z, expct: {{makespan: 1h}}}}\n"
    told = said(tmp_path, f"{PIPELINE}policy: gpipe\n{entry}", *verb)
    assert f"s.yaml:4:{len(schedule) + 22}: compare.0.expct: {schedule} has no option 'expct'" in told
    assert "did you mean 'expect'?" in told


@pytest.mark.parametrize("verb", ["run", "compare", "check"])
@pytest.mark.parametrize(
    ("policy", "entry", "told"),
    [
        ("redy-queue", "{label: z}", "3:9: policy.name: unknown policy 'redy-queue'"),
        ("in-order", "redy-queue", "4:11: compare.0.name: unknown policy 'redy-queue'"),
        (
            "{name: in-order, streams: recoded}",
            "{label: z}",
            "3:35: policy.streams: unknown stream assignment",
        ),
        (
            "{name: in-order, streams: recoded}",
            "ready-queue",
            "3:35: policy.streams: unknown stream assignment",
        ),
        ("{name: in-order, windw: 1}", "{label: z}", "3:26: policy.windw: in-order has no option 'windw'"),
        ("in-order", "{streams: recoded}", "4:21: compare.0.streams: unknown stream assignment"),
        (
            "{name: in-order, compile: [{name: ddp, ranks: 0}]}",
            "{label: z, set: {machine.devices.g.streams: 2}}",
            "3:55: policy.compile.0.ranks: ddp: ranks must be a whole number of at least 1",
        ),
        (
            "{name: in-order, compile: [{name: ddp, ranks: 1}]}",
            "{label: z, set: {policy.compile.0.overlap: maybe}}",
            "4:54: policy.compile.0.overlap: should be true or false",
        ),
    ],
)
def test_what_an_entry_takes_from_the_policy_is_wrong_there(
    tmp_path: Path, policy: str, entry: str, told: str, verb: str
) -> None:
    text = "machine: {devices: {g: {kind: gpu}}}\nworkload: {ops: {a: {duration: 1us}}}\n"
    path = tmp_path / "s.yaml"
    path.write_text(f"{text}policy: {policy}\ncompare: [{entry}]\n", encoding="utf-8")
    assert f"s.yaml:{told}" in sim(verb, path).output


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("{name: gpipe, ordr: fifo}", "policy.ordr: gpipe has no option 'ordr'; did you mean 'order'?"),
        ("{ordr: fifo}", "policy: names no schedule"),
        ("{name: gpipe, ranks: 4}", "gpipe takes no ranks: the workload says it"),
        ("{name: interleaved-1f1b, chunks: many}", "chunks must be a whole number of at least 1"),
        ("{name: zb-auto, limit: much}", "policy.limit: "),
    ],
)
def test_options_of_a_schedule_that_only_stands_there(tmp_path: Path, policy: str, told: str) -> None:
    assert told in said(tmp_path, f"{PIPELINE}policy: {policy}\ncompare: [1f1b]\n", "compare")


@pytest.mark.parametrize("size", ["ranks", "micro_batches", "chunks"])
def test_a_training_has_the_sizes_of_its_layout(tmp_path: Path, size: str) -> None:
    text = f"{TRAIN % ('h100-sxm', 'bf16')}policy: {{name: 1f1b, {size}: 2}}\n"
    assert f"policy.{size}: 1f1b has no option '{size}'" in said(tmp_path, text, "run")


def test_a_precision_that_a_calibration_cannot_tell_apart(tmp_path: Path) -> None:
    own = "{peak: 1PFLOP/s, bandwidth: 1TB/s, memory: 80GB, nccl: h100}"
    told = said(tmp_path, TRAIN % (own, "fp16"), "run")
    assert "workload.train.calibration: calibration has one peak, and knows no precisions apart" in told
    path = tmp_path / "s.yaml"
    path.write_text(TRAIN % ("h100-sxm", "fp8"), encoding="utf-8")
    assert sim("run", path).exit_code in (0, 1)


def test_a_limit_of_350_digits_is_a_number(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    split = PIPELINE.replace("backward: 2ms", "input_grad: 1ms, weight_grad: 1ms")
    text = f"{split}policy: {{name: zb-auto, in_flight: {'9' * 350}}}\nexpect: {{outcome: done}}\n"
    path.write_text(text, encoding="utf-8")
    result = sim("check", path)
    assert result.exit_code == 0, result.output


def test_a_tolerance_of_350_digits_without_a_unit_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    text = f"{PIPELINE}policy: gpipe\nexpect: {{makespan: {{equals: 33ms, tolerance: {'9' * 350}}}}}\n"
    path = tmp_path / "s.yaml"
    path.write_text(text, encoding="utf-8")
    assert sim("check", path).exit_code == 2
