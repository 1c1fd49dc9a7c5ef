"""How a command ends that is interrupted, takes too long, or loses its reader."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cli_runner import sim
from scenario_texts import GOOD, write
from typer.core import TyperGroup
from typer.main import get_command

from scenarios.cli import app

SLOW = """\
machine: {devices: {g: {kind: gpu, count: 4}}}
workload: {build: {model: random-dag, layers: 8, width: 8, seed: 3}}
policy: {name: in-order, placement: optimal}
"""
"""A search that goes on for half a minute."""


ANNOUNCED = """\
import sys, threading
from ortools.sat.python.cp_model import CpSolver
from scenarios.cli import options

known, solve, watch = threading.Event(), CpSolver.solve, options._watch

def announced(solver, model):
    def told(bound):
        if not known.is_set():
            print("searching", file=sys.stderr, flush=True)
            known.set()
    solver.best_bound_callback = told
    return solve(solver, model)

def begun(seconds, *rest):  # the limit counts from the first bound on
    known.wait()
    watch(seconds, *rest)

CpSolver.solve, options._watch, options._GRACE_S = announced, begun, 40
"""
"""A search that says when it knows a first bound: on a busy machine nobody knows when that is."""


def start(*arguments: object, before: str = "") -> subprocess.Popen[str]:
    program = f"{before}\nfrom scenarios.cli import app; app()"
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests may run where it is ignored
    )


def interrupted(running: subprocess.Popen[str]) -> tuple[str, str, float]:
    """Press Ctrl-C; return what was said, and how long the end took."""
    assert running.poll() is None
    begun = time.monotonic()
    os.killpg(running.pid, signal.SIGINT)
    out, err = running.communicate(timeout=20)
    return out, err, time.monotonic() - begun


@pytest.mark.slow
def test_ctrl_c_ends_a_search(tmp_path: Path) -> None:
    pytest.importorskip("ortools", reason="needs the extra opt")
    running = start("run", write(tmp_path, SLOW), before=ANNOUNCED)
    assert running.stderr is not None
    assert "searching\n" in iter(running.stderr.readline, "")
    _, err, took_s = interrupted(running)
    assert running.returncode == 130, err
    assert "interrupted; the " in err
    assert "can take less than" in err
    assert took_s < 10  # of some thirty that the search would take


@pytest.mark.slow
def test_a_limit_ends_a_search(tmp_path: Path) -> None:
    pytest.importorskip("ortools", reason="needs the extra opt")
    running = start("run", write(tmp_path, SLOW), "--limit", "0.5", before=ANNOUNCED)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 124, err
    assert "stopped after 0.5 s (--limit); the " in err


@pytest.mark.slow
def test_ctrl_c_ends_a_sweep_on_processes_and_keeps_what_is_done(tmp_path: Path) -> None:
    pytest.importorskip("ortools", reason="needs the extra opt")
    path = write(tmp_path, SLOW)
    out = tmp_path / "t.csv"
    arguments = ["sweep", path, "--vary", "policy.placement=heft,optimal,cpop", "--jobs", "2", "--out", out]
    running = start(*arguments)
    points = Path(f"{out}.points")
    while not (points.exists() and len(points.read_text().splitlines()) == 2):
        assert running.poll() is None
        time.sleep(0.2)
    shown, err, took_s = interrupted(running)
    assert running.returncode == 130, err
    assert f"interrupted; 2 of 3 points are done; {points} keeps them" in err
    assert "Traceback" not in err
    assert [line.split()[0] for line in shown.splitlines()[1:3]] == ["heft", "cpop"]
    assert took_s < 2


def test_every_command_that_takes_time_has_a_limit() -> None:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    context: Any = None
    options = {
        verb: [name for param in group.get_command(context, verb).params for name in param.opts]
        for verb in group.list_commands(context)
    }
    assert {"run", "sweep", "calibrate", "validate"} <= set(options)
    without = [verb for verb, names in options.items() if "--limit" not in names]
    assert without == ["new", "list", "policies", "devices", "runtimes", "schema"]


@pytest.mark.slow
def test_a_limit_ends_a_calibration(tmp_path: Path) -> None:
    out = tmp_path / "c.json"
    running = start("calibrate", "--backend", "timer", "--out", out, "--limit", "1.5")
    _, err = running.communicate(timeout=20)
    assert running.returncode == 124, err
    assert err.splitlines()[-1].startswith("stopped after 1.5 s (--limit)")
    assert "Traceback" not in err
    assert not out.exists()


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon"])
def test_a_limit_is_a_time(tmp_path: Path, seconds: str) -> None:
    assert sim("run", write(tmp_path), "--limit", seconds).exit_code == 2


def test_a_reader_that_leaves_early_costs_no_files(tmp_path: Path) -> None:
    ops = tmp_path / "ops.csv"
    with start("run", write(tmp_path, GOOD), "--ops", ops) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        told = running.stderr.read().splitlines()
        # On a machine that is busy it also says what takes so long.
        assert [line for line in told if not line.endswith("...")] == [f"wrote {ops}"]
    assert running.returncode == 0
    assert ops.exists()


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["run", "explain", "check", "schedule", "--help", "--version"])
def test_an_output_that_is_full_is_named(tmp_path: Path, verb: str) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    command = [
        sys.executable,
        "-c",
        "from scenarios.cli import app; app()",
        verb,
        *(
            ["1f1b", "--ranks", "2", "--micro-batches", "2"]
            if verb == "schedule"
            else [str(write(tmp_path, GOOD))] * (verb[0] != "-")
        ),
    ]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert (
        done.stderr.splitlines()[-1] == "<stdout>: No space left on device"
    )  # after progress, if it is slow


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_output_that_is_closed_is_dropped(tmp_path: Path, closed: str) -> None:
    program = f"{sys.executable} -c 'from scenarios.cli import app; app()'"
    for scenario, status in ((write(tmp_path, GOOD), 0), (tmp_path / "none.yaml", 2)):
        done = subprocess.run(
            f"{program} run {scenario} {closed}", shell=True, capture_output=True, text=True, check=False
        )
        assert (done.returncode, "Traceback" in done.stderr) == (status, False)


def test_help_on_a_terminal_has_no_codes() -> None:
    main, terminal = os.openpty()
    command = [sys.executable, "-c", "from scenarios.cli import app; app()", "--help"]
    running = subprocess.Popen(command, stdout=terminal, env={**os.environ, "TERM": "xterm"})
    os.close(terminal)
    told = b""
    with suppress(OSError):  # the end of a terminal that is closed
        while found := os.read(main, 65536):
            told += found
    os.close(main)
    assert running.wait() == 0
    assert b"Usage" in told
    assert b"\x1b" not in told
    assert b"\\u001b" not in told


def test_an_interrupt_before_the_verb_is_a_word() -> None:
    """While modules are imported nothing catches it yet."""
    program = "import scenarios.cli; raise KeyboardInterrupt"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "interrupted\n")
