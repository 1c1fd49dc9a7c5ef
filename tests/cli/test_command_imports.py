"""A command imports what it uses and no more: what a plain run must not wait for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim.kernel.run import is_compiled

HEAVY = (
    *("pandas", "matplotlib", "plotly", "onnx", "torch", "ortools", "distributed", "simpy", "numpy.ma"),
    *(
        "rich",
        "devices.memory",
        "devices.network",
        "devices.shared_sms",
        "devices.cost.npu_tiles",
    ),
    *(
        "policies.pipeline",
        "scenarios.cli.verbs.search",
        "scenarios.importers",
        "scenarios.report.outputs",
        "scenarios.workloads.pipeline_workload",
    ),
)
TELL = "import sys, atexit; atexit.register(lambda: print(*sys.modules, file=sys.stderr))"


def imported(root: Path, *words: str) -> set[str]:
    """Return the modules that a command has imported when it ends."""
    command = [sys.executable, "-c", f"{TELL}; from scenarios.cli import app; app()", *words]
    environment = (
        os.environ if is_compiled() else {**os.environ, "SIM_PURE": "1"}
    )  # never the engine on SimPy
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_a_plain_run_imports_nothing_heavy(root: Path) -> None:
    done = subprocess.run([sys.executable, "-c", f"{TELL}; import numpy"], capture_output=True, text=True)
    heavy = {*HEAVY} - set(done.stderr.split())  # numpy 1 imports numpy.ma itself
    assert imported(root, "run", "scenarios/examples/branches.yaml").isdisjoint(heavy)


@pytest.mark.parametrize(("words", "nor"), [(["--help"], {"pydantic"}), (["run", "--help"], set())])
def test_help_imports_no_part_of_the_simulator(root: Path, words: list[str], nor: set[str]) -> None:
    others = {"numpy", "pandas", "matplotlib", "simpy", "yaml", "onnx", "torch", "scenarios.run.load"}
    assert imported(root, *words).isdisjoint(others | nor)


def test_python_without_docstrings_is_refused() -> None:
    command = [sys.executable, "-OO", "-c", "from scenarios.cli import app; app()", "run", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    told = "options and their help are docstrings, which Python leaves out under -OO\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", told)
