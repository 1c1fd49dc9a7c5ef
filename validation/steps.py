"""`sim validate` as a list of steps that can be inspected before they run.

::

    for step in steps(...):  step.does, step.writes, step.budget_s      what a dry run prints
    run(...)                                                            takes them one by one

A step whose files exist is skipped, so an interrupted run continues; a failed step does
not affect those that do not need it.
"""

from __future__ import annotations

import json
import platform
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

from devices.cost.calibration import Calibration, load_calibration
from sim.base.errors import InfeasibleError, InputError, RunError, SimError, UnknownNameError
from sim.base.files import check_writable, write_text
from validation.calibrate import calibrate
from validation.cases import step_files
from validation.cases.backends import Executor, make_backend, provenance
from validation.cases.calibrated import save_calibration
from validation.cases.draws import EXPERIMENTS, NOT_MEASURED
from validation.cases.tables import BUDGET_S
from validation.experiments import days, memory_experiment
from validation.experiments.measure import ATTEMPTS, ENOUGH, RUNS, measure
from validation.gpu.partitions import library

ALL: Final = sorted([*EXPERIMENTS, memory_experiment.NAME])
"""Every experiment: those with lists of cases, and memory, which is about bytes and not about time."""

_WITHOUT: Final[Mapping[str, str]] = {
    "torch": "nothing can be measured here",
    "simpy": "what is measured is predicted and reported later: sim validate --report DIR",
    "matplotlib": "the report has no pictures",
    "pandas": "the report has no pictures",
    "libcuda": "no partitions of SMs",
}
"""What may be missing, and the consequence."""

GPU_ATTEMPTS: Final = 8
"""Maximum runs of a case if time is short and the machine is ours alone: noise is rare, and a state other
than the calibrated one does not pass by itself. Rejected runs are kept, with their sentinels."""


class Step(NamedTuple):
    """One step.

    Attributes
    ----------
    name, does : str
    writes : str
        Path relative to the output folder.
    budget_s : int
        Longest expected duration.
    needs : str
        Requirements.
    """

    name: str
    does: str
    writes: str
    budget_s: int
    needs: str


def choose(experiments: str | None) -> list[str]:
    """Return the experiments that ``a,b,f`` or ``a-chain,e-random`` names; all by default.

    Raises
    ------
    UnknownNameError
        There is no experiment of that letter or name.
    InputError
        No experiment is named.

    Examples
    --------
    >>> choose("e,a")
    ['a-chain', 'e-random']
    """
    if experiments is None:
        return list(ALL)
    letters = {name[0]: name for name in ALL}
    chosen = set()
    for word in filter(None, (part.strip() for part in experiments.split(","))):
        name = letters.get(word, word)
        if name not in ALL:
            raise UnknownNameError("experiment", word, [*letters, *ALL])
        chosen.add(name)
    if not chosen:
        raise InputError(f"experiments {experiments!r} names none")
    return [name for name in ALL if name in chosen]


def _measured_on(backend: str, chosen: Sequence[str]) -> list[str]:
    """Return the experiments that have cases on a backend.

    Raises
    ------
    InputError
        None of them has any.
    """
    found = [name for name in chosen if _count(name, backend)]
    if not found:
        raise InputError(f"{', '.join(chosen)}: no case of it is measured on {backend}")
    return found


def steps(backend: str, experiments: Sequence[str], *, calibrated: bool) -> list[Step]:
    """Return the steps of `run`, in order."""
    budget = BUDGET_S.get(backend)
    if budget is None:
        raise UnknownNameError("backend", backend, BUDGET_S)
    kernels = "torch" if backend == "cuda" else "numpy"
    does = "measure what single steps cost, warm and in company; refuse to go on when disturbed"
    listed = [] if calibrated else [Step("calibrate", does, "calibration.json", budget["calibrate"], kernels)]
    for name in experiments:
        cases = _count(name, backend)
        if not cases:
            continue
        predict, needs, predict_s = "simulate them", "simpy", 5
        measure_each = f"run each until {RUNS} quiet runs came"
        if name == memory_experiment.NAME:
            predict, needs, predict_s = "ask the model", "numpy", 1
            measure_each = f"run each {memory_experiment.RUNS} times"
        on = f"{kernels}, libcuda" if (name, backend) == ("f-pipeline", "cuda") else kernels
        listed += [
            Step(f"{name}: draw", f"draw {cases} cases by seed", f"plans/{name}.json", 1, "numpy"),
            Step(f"{name}: predict", predict, f"predictions/{name}.json", predict_s, needs),
            Step(f"{name}: measure", measure_each, f"measurements/{name}.json", budget[name], on),
        ]
    files, needs = "report.json, report.md, *.png", "simpy, matplotlib, pandas"
    return [*listed, Step("report", "errors, tables, figures", files, 20, needs)]


def _count(name: str, backend: str) -> int:
    """Return the number of cases of an experiment on a backend."""
    return len(
        memory_experiment.draw(backend)
        if name == memory_experiment.NAME
        else list(EXPERIMENTS[name](backend, "test"))
    )


def list_steps(backend: str, out: Path, experiments: Sequence[str], *, calibrated: bool) -> str:
    """Return the list of steps as text: action, budget, requirements and output of each."""
    listed = steps(backend, experiments, calibrated=calibrated)
    lines = []
    for step in listed:
        words = [f"{word}{_lack(word)}" for word in step.needs.split(", ")]
        lines += [
            f"{step.name:26} {step.budget_s:4d} s  {step.does}",
            f"{'':34}needs {', '.join(words)}; writes {out / step.writes}",
        ]
    lines += [f"{what:26}   not  {why}" for what, why in NOT_MEASURED.items()]
    lines.append(f"{'in all, at most':26} {sum(step.budget_s for step in listed):4d} s")
    lines += [
        f"Nothing is written outside {out} but matplotlib's cache of fonts.",
        "What is interrupted goes on with the next step, or case, when the command is given again.",
        f"Here: Python {platform.python_version()}, {sys.executable}.",
    ]
    needed = {word for step in listed for word in step.needs.split(", ")}
    missing = [
        f"  {word}{_lack(word)}: {why}" for word, why in _WITHOUT.items() if word in needed and _lack(word)
    ]
    return "\n".join([*lines, *(["Missing:", *missing] if missing else ["Nothing is missing."])])


def _lack(module: str) -> str:
    """Return why a module cannot be used, in brackets, or "" if it can."""
    try:
        if module == "libcuda":
            library()
            return ""
        found = find_spec(module)
        if found is None or found.origin is None:  # a folder of that name is not a package
            return " (not here)"
        if module != "torch":
            return ""
        return "" if import_module("torch").cuda.is_available() else " (finds no CUDA device here)"
    except (ImportError, InfeasibleError):  # importing it is blocked, or there is no driver
        return " (not here)"


def default_folder(backend: str) -> Path:
    """Return ``validation/data/DEVICE-DATE``, with the device's name short and safe for files."""
    facts = provenance(make_backend(backend))
    device = str(facts.get("gpu") or f"{facts['processor']} {facts['cores']} cores {backend}").lower()
    plain = re.sub("[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)|processor|cpu", "", device)).strip("-")
    return Path("validation/data") / f"{plain}-{facts['date']}"


def validate(
    backend: str | None,
    out: Path | None,
    experiments: str | None,
    calibration: Path | None,
    *,
    dry_run: bool,
    report: Path | None,
    **options: Any,
) -> tuple[dict[str, Any] | None, str]:
    """Run the command; return the report, if there is one, and the text to print.

    Parameters
    ----------
    backend : str, optional
        Not needed for a `report`.
    out : Path, optional
        By default `default_folder`.
    experiments : str, optional
        As `choose` takes them.
    calibration : Path, optional
    dry_run : bool
        Whether to list the steps without running them.
    report : Path, optional
        A folder: predict again, and report on its content.
    **options
        Options of `run`.

    Raises
    ------
    InputError
        There is neither a backend nor a folder to report on; a file of that folder is damaged; an option has
        no meaning there.
    RunError
        See `run`; or a report is requested where the simulator cannot be imported.
    """
    chosen = choose(experiments)
    runs, limit_s = options.get("runs", RUNS), options.get("limit_s")
    if runs < ENOUGH:
        raise InputError(f"--runs {runs}: give {ENOUGH} or more")
    if limit_s is not None and not 0 < limit_s < inf:
        raise InputError(f"--limit {limit_s:g}: give the seconds, more than 0")
    if report is not None:
        given = {"--out": out, "--dry-run": dry_run, "--again": options.get("again"), "--limit": limit_s}
        if vain := [name for name, value in given.items() if value]:
            raise InputError(f"--report measures nothing; leave out {' and '.join(vain)}")
        check_writable(report / "report.md")
        found = load_calibration(calibration or report / "calibration.json")
        if found.backend not in BUDGET_S:
            raise UnknownNameError("backend", found.backend, BUDGET_S)
        if backend not in (None, found.backend):
            raise InputError(f"{report} was measured on {found.backend}, not on {backend}")
        measured = _measured_on(found.backend, chosen)
        for name in measured:
            step_files.read_all(report, name)
        result = write_report(report, found.backend, found, measured, recompute=True)
        return result, _head(report)
    if backend is None:
        raise InputError("which backend? --backend timer, threads or cuda; or --report DIR")
    if dry_run:
        if calibration is not None:
            load_calibration(calibration)
        folder = out or Path("validation/data/DEVICE-DATE")
        return None, list_steps(backend, folder, chosen, calibrated=calibration is not None)
    out = out or default_folder(backend)
    made = run(backend, out, chosen, calibration_file=calibration, **options)
    if made is not None:
        return made, _head(out)
    return None, (
        f"Measured, and kept in {out}. To predict and report it, bring the folder to a machine with the "
        f"simulator:\n    sim validate --report {out.name}"
    )


def _head(out: Path) -> str:
    """Return the beginning of a report, up to its first section."""
    return (out / "report.md").read_text().partition("\n## ")[0]


def run(
    backend: str,
    out: Path,
    experiments: Sequence[str],
    *,
    calibration_file: Path | None = None,
    runs: int = RUNS,
    limit_s: float | None = None,
    again: bool = False,
    executor: Executor | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any] | None:
    """Calibrate, draw, predict, measure and report.

    Parameters
    ----------
    backend : str
    out : Path
    experiments : sequence of str
    calibration_file : Path, optional
        Default: ``calibration.json`` in `out`, created if it does not exist.
    runs : int
        Number of quiet runs of each case.
    limit_s : float, optional
        Cases that would begin later are skipped and reported; a further run does them.
    again : bool
        Whether to repeat cases that have been measured.
    executor : Executor, optional
    say : callable
        Receives progress messages.

    Returns
    -------
    dict or None
        The report; None if the simulator cannot be imported, in which case nothing is lost.

    Raises
    ------
    RunError
        The machine was too disturbed to calibrate.
    """
    deadline = None if limit_s is None else time.monotonic() + limit_s
    executor = executor or make_backend(backend)
    experiments = _measured_on(backend, experiments)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: {error.strerror}") from error
    check_writable(out / "report.md")  # before anything is measured
    file = calibration_file or out / "calibration.json"
    if calibration_file is None and not file.exists():
        say(f"calibrating {backend}")
        # Half of the time; after that, optional parts are omitted.
        half = None if limit_s is None else time.monotonic() + limit_s / 2
        save_calibration(calibrate(backend, executor, deadline=half), file)
    calibration = load_calibration(file)
    if calibration.backend != backend:
        raise InputError(f"{file} is a calibration of {calibration.backend}, not of {backend}")
    for name in experiments:
        if not again and not _unfinished(out, name):
            say(f"{name}: measured before")
            continue
        try:
            if again and days.keep_day(out, name) is not None:
                say(f"{name}: the earlier measurement is kept")
            _experiment(name, out, executor, calibration, runs, deadline, again, say)
        except SimError as error:
            say(f"{name}: {error}")
        except Exception:  # whatever a library raises: it loses one experiment, not the others
            say(f"{name}: {traceback.format_exc()}")
    return None if _lack("simpy") else write_report(out, backend, calibration, experiments)


def _experiment(
    name: str, out: Path, executor: Executor, calibration: Calibration,
    runs: int, deadline: float | None, again: bool, say: Callable[[str], None],
) -> None:  # fmt: skip
    """Draw, predict and measure the cases of an experiment."""
    from validation.experiments.predict import draw_plans, predict

    backend = executor.name
    draw_plans(name, backend, out)
    if name != memory_experiment.NAME and _lack("simpy"):
        say(f"{name}: measured without a prediction: the simulator needs simpy")
    else:
        say(f"{name}: predicting")
        try:
            predict(name, out, calibration)
        except Exception:  # there may be no second chance to measure; missing predictions are made later
            say(f"{name}: measured without a prediction: {traceback.format_exc()}")
    say(f"{name}: measuring")
    attempts = GPU_ATTEMPTS if backend == "cuda" else ATTEMPTS
    measure(
        name, out, backend, executor, calibration,
        runs=runs, attempts=attempts, deadline=deadline, again=again,
    )  # fmt: skip


def _unfinished(out: Path, name: str) -> bool:
    measured = step_files.read(out, "measurements", name)
    return measured is None or any("skipped" in entry for entry in measured["cases"])


def write_report(
    out: Path, backend: str, calibration: Calibration, experiments: Sequence[str], *, recompute: bool = False
) -> dict[str, Any]:
    """Report on the content of a folder, and write the report into it.

    Raises
    ------
    RunError
        The simulator cannot be imported here.
    """
    if _lack("simpy"):
        raise RunError("a report needs the simulator, and simpy is missing here")
    from validation.report.experiment_report import report
    from validation.report.markdown import to_markdown

    result = report(out, backend, calibration, experiments, recompute=recompute)
    result["days"] = {name: days.compare_days(out, name) for name in experiments}
    drawn = [] if _lack("matplotlib") or _lack("pandas") else _draw(result, out, calibration)
    write_text(out / "report.json", json.dumps(result, indent=1) + "\n")
    write_text(out / "report.md", to_markdown(result, drawn) + days.to_markdown(result["days"]))
    return result


def _draw(result: dict[str, Any], out: Path, calibration: Calibration) -> list[str]:
    """Draw the figures of a report; return the names of those that are not empty."""
    from validation.report.figures import draw_scatter, draw_worst

    figures = {
        "scatter.png": draw_scatter(result, out / "scatter.png"),
        "worst.png": draw_worst(result, out, calibration, out / "worst.png"),
    }
    return [name for name, has_points in figures.items() if has_points]
