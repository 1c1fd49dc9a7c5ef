"""Change the code at random, one small change at a time, and see whether a test fails.

::

    a line is drawn ─► one of Cosmic Ray's operators, or the statement is dropped ─► tests of its folder
                                                                          fail: caught ◄─┴─► pass: survived

The changes are made in a copy of the repository. Files are drawn by their length, lines evenly; what
means the same to whoever runs it is no change. Tests that run longer than `PATIENCE_S` have caught one: it
made an endless loop. Meant for nightly runs and for a look at one file::

    python tools/mutants.py --sample 200 --seconds 900 --seed 7 policies/issue
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
PATIENCE_S: Final = 120
"""CPU seconds after which tests are taken to hang."""

TESTS: Final = {
    "sim/engine": "engine order_of_ties launch tensor_memory issue_* control_flow pageable rendezvous "
    "random_triples explain column_writer failures kernel kernel_memory kernel_communicators",
    "sim/kernel": "kernel kernel_* order_of_ties",
    "devices/memory": "memory_* tensor_memory allocator_table scenario_memory",
    "devices/processor": "processor_* bounds",
    "devices/cost": "cost_* import_costs presets npu_tiles",
    "devices/collectives": "collective_* nccl_choice communicators kernel_communicators cli_collectives",
    "devices/describe": "devices_* presets units options link_options routing topologies memory_oom schema",
    "devices": "devices_* presets launch units npu_tiles kernels options bounds network_* pipeline_devices",
    "policies/issue": "issue_* executor_orders tfrt_streams virtual_machine order_of_ties runtimes "
    "control_flow_scenarios data_loader",
    "policies/placement": "placement_*",
    "policies/pipeline": "pipeline_*",
    "policies/rewrite": "rewrite compile training partition parallel parallel_*",
    "policies/parallel": "rewrite_names parallel parallel_* expert_* folding folding_combined",
    "policies": "runtimes policy_names options linearize streams virtual_machine training_run",
}
"""Folder → the tests that hold what is in it; the longest folder that fits is taken."""

LEFT_OUT: Final = ("validation/real",)
"""Measures real hardware; held by sessions on a fake one, which take too long here."""

BETWEEN_EQUALS: Final = ("NoOp", "RemoveDecorator", "ExceptionReplacer", "Variable")
"""Operators whose changes mean nothing, or nothing that a test should hold."""


class Mutant(NamedTuple):
    """One change: of a file, at a line, by an operator, the text afterwards."""

    path: str
    line: int
    operator: str
    text: str


def meaning(text: str) -> str | None:
    """Return the program without what a test cannot see; None where it does not compile.

    Those are annotations, docstrings, how arguments have to be given, and whether lengths are compared.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign | ast.arg):
            node.annotation = ast.Constant(None)  # type: ignore[assignment]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        if isinstance(node, ast.arguments):  # a star for a slash: callers give names all the same
            node.args = [*node.posonlyargs, *node.args, *node.kwonlyargs]
            node.defaults = [*node.defaults, *filter(None, node.kw_defaults)]
            node.posonlyargs, node.kwonlyargs, node.kw_defaults = [], [], []
        if isinstance(node, ast.keyword) and node.arg == "strict":  # of `zip`: an assertion
            node.value = ast.Constant(None)
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            body[0].value = ast.Constant("")
    return ast.dump(tree)


@cache
def positions(path: str) -> dict[int, list[tuple[str, int]]]:
    """Return what can be changed on each line of a file: operators, with the how-manieth of its places."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    tree = get_ast((ROOT / path).read_text(encoding="utf-8"))
    nodes = list(ast_nodes(tree))
    found: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for name in sorted(operator_names()):
        if any(word in name for word in BETWEEN_EQUALS):
            continue
        operator, k = get_operator(name)(), 0
        for node in nodes:
            for start, _ in operator.mutation_positions(node):
                found[start[0]].append((name, k))
                k += 1
    for line in statements(path):
        found[line].append(("drop the statement", 0))
    return dict(sorted(found.items()))


@cache
def statements(path: str) -> dict[int, tuple[int, int]]:
    """Return statements that can be dropped by line: their last line and their column."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {
        node.lineno: (node.end_lineno or node.lineno, node.col_offset)
        for node in ast.walk(tree)
        if isinstance(node, ast.AugAssign | ast.Break | ast.Continue)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
        or (isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name))
    }


def mutated(path: str, line: int, operator: str, occurrence: int) -> str | None:
    """Return the text of a file after a change."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    text = (ROOT / path).read_text(encoding="utf-8")
    if operator == "drop the statement":
        end, column = statements(path)[line]
        lines = text.splitlines(keepends=True)
        return "".join([*lines[: line - 1], " " * column + "pass\n", *lines[end:]])
    changed: str | None = mutate_code(text, get_operator(operator)(), occurrence)
    return changed


def draw(paths: list[str], rng: random.Random) -> Iterator[Mutant]:
    """Yield different mutants without end."""
    lengths = [len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in paths]
    seen = set()
    while True:
        (path,) = rng.choices(paths, lengths)
        by_line = positions(path)
        if not by_line:
            continue
        line = rng.choice(list(by_line))
        operator, occurrence = rng.choice(by_line[line])
        text = mutated(path, line, operator, occurrence)
        if text is None or (path, text) in seen:
            continue
        seen.add((path, text))
        before = meaning((ROOT / path).read_text(encoding="utf-8"))
        if meaning(text) not in (None, before):
            yield Mutant(path, line, operator, text)


def tests_of(path: str) -> list[str]:
    """Return the test files that hold a file, those whose name has a word of its name first."""
    folder = max((folder for folder in TESTS if path.startswith(f"{folder}/")), key=len)
    names = [name for word in TESTS[folder].split() for name in ROOT.glob(f"tests/*/test_{word}.py")]
    words = set(Path(path).stem.split("_"))
    ordered = sorted(dict.fromkeys(names), key=lambda name: not words & set(name.stem.split("_")))
    return [str(name.relative_to(ROOT)) for name in ordered]


def test(path: str, copy: Path) -> int:
    """Run the tests of a file in `copy`, in silence, and return pytest's exit status."""
    import pytest

    resource.setrlimit(resource.RLIMIT_CPU, (PATIENCE_S, PATIENCE_S))
    os.chdir(copy)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    sys.path.insert(0, str(copy))
    options = ["-x", "-q", "-n", "0", "--assert=plain", "--benchmark-disable", "-p", "no:cacheprovider"]
    return int(pytest.main([*options, "-m", "not slow", *tests_of(path)]))


def passes(path: str, copy: Path) -> bool:
    """Run the tests of a file in a process of its own, which has the libraries already."""
    child = os.fork()
    if not child:
        code = 1
        try:
            code = test(path, copy)
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def survives(mutant: Mutant, copy: Path) -> bool:
    """Return whether no test fails because of `mutant`."""
    target = copy / mutant.path
    right = target.read_text(encoding="utf-8")
    target.write_text(mutant.text, encoding="utf-8")
    passed = passes(mutant.path, copy)
    target.write_text(right, encoding="utf-8")
    return passed


def main() -> None:
    """Draw mutants and print those that survive."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", default=["sim/engine", "sim/kernel", "devices", "policies"])
    parser.add_argument("--sample", type=int, default=200, help="mutants at most")
    parser.add_argument("--seconds", type=int, default=900, help="CPU seconds at most")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    paths = sorted(
        str(path.relative_to(ROOT))
        for folder in options.folders
        for path in ([ROOT / folder] if folder.endswith(".py") else (ROOT / folder).rglob("*.py"))
    )
    paths = [path for path in paths if not path.startswith(LEFT_OUT)]
    if not paths:
        parser.error(f"no Python files in {' '.join(options.folders)}")
    sys.dont_write_bytecode = True  # within a second two mutants of a file look alike to the cache
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ["HYPOTHESIS_PROFILE"] = "full"
    for heavy in ("numpy", "pandas", "simpy", "pydantic", "hypothesis", "matplotlib", "typer.testing"):
        importlib.import_module(heavy)
    tally: Counter[tuple[str, bool]] = Counter()
    sound: set[tuple[str, ...]] = set()
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "copy"
        tracked = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for name in filter(None, tracked.stdout.split("\0")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
        for mutant in draw(paths, random.Random(options.seed)):
            if sum(tally.values()) >= options.sample or cpu_s() > options.seconds:
                break
            tests = tuple(sorted(tests_of(mutant.path)))
            if tests not in sound and not passes(mutant.path, copy):
                sys.exit(f"the tests of {mutant.path} fail as it is: {' '.join(tests)}")
            sound.add(tests)
            survived = survives(mutant, copy)
            tally[str(Path(mutant.path).parent), survived] += 1
            if survived:
                print(f"{mutant.path}:{mutant.line}: {mutant.operator.removeprefix('core/')}", flush=True)
                old, new = ((ROOT / mutant.path).read_text(encoding="utf-8"), mutant.text)
                pairs = zip(old.splitlines(), new.splitlines(), strict=False)
                for was, now in [pair for pair in pairs if pair[0] != pair[1]][:1]:
                    print(f"    - {was.strip()}\n    + {now.strip()}", flush=True)
    for folder in sorted({folder for folder, _ in tally}):
        caught, survived = tally[folder, False], tally[folder, True]
        print(f"{folder}: {caught} of {caught + survived} caught")
    caught = sum(n for (_, survived), n in tally.items() if not survived)
    print(f"in all: {caught} of {sum(tally.values())} caught, {cpu_s():.0f} s of CPU")


def cpu_s() -> float:
    """Return the CPU seconds spent so far, by the tests as well."""
    times = time.process_time(), os.times()
    return times[0] + times[1].children_user + times[1].children_system


if __name__ == "__main__":
    main()
