"""What-ifs of one recording, tried one after another: it is read once, and simulated for each."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from pydantic import ValidationError

from scenarios.file.faults import input_error
from scenarios.recorded.as_recorded import as_recorded
from scenarios.recorded.program.program import Program
from scenarios.recorded.what_if.changes import WhatIf, applied
from scenarios.run.case_job import job_of
from scenarios.run.execute import run_case
from scenarios.run.load import load_scenario
from scenarios.run.scenario import Case
from scenarios.run.trials.standard import Trial
from scenarios.work.graph_files import ImportedFile
from sim.graph.graph import Graph
from sim.trace import Trace
from sim.words.arrays import UNSET
from sim.words.errors import InputError, located

__all__ = ["Base", "Outcome", "asked", "base_of", "read_what_if", "try_all"]

_MATTERS = 0.005
"""Part of the makespan by which two models of a recording have to differ to be told apart."""


@dataclass(frozen=True)
class Base:
    """What what-ifs are compared with.

    Attributes
    ----------
    name : str
    graph : Graph
    case : callable
        ``case(graph)`` returns the run of a graph in its place.
    recorded_ns : int or None
        From the begin of a recording to the end of what was recorded last; None: it is none.
    """

    name: str
    graph: Graph
    case: Callable[[Graph], Case]
    recorded_ns: int | None

    @cached_property
    def trace(self) -> Trace:
        """The run as it is."""
        return run_case(self.case(self.graph)).trace

    @cached_property
    def timed(self) -> bool:
        """Whether all ops have a duration: else the policy makes others of them, which have."""
        return bool((self.graph.duration_ns != UNSET).all())


@dataclass(frozen=True)
class Outcome:
    """What became of a what-if.

    Attributes
    ----------
    label : str
    what_if : dict
        As a scenario has it; empty: nothing is changed.
    makespan_ns : int or None
        None: it cannot be done.
    notes : tuple of str
        What was assumed, or why it cannot be done.
    other_saved_ns : int or None
        What is saved without the waits of the host that were inferred and held nothing when recorded; None:
        as much, or there are none.
    """

    label: str
    what_if: dict[str, Any]
    makespan_ns: int | None
    notes: tuple[str, ...] = ()
    other_saved_ns: int | None = None


def base_of(
    path: str, *, sets: Iterable[str] = (), allow_code: bool = False, allow_outside: bool = False
) -> Base:
    """Return a scenario, or a recording on the machine that it shows.

    Parameters
    ----------
    path : str
        Of a scenario, of a recording, or of the folder with those of all ranks.
    sets : iterable of str
        ``KEY=VALUE``, as of scenarios: of a recording, too.
    allow_code, allow_outside : bool
        See `scenarios.run.load.load_scenario`.

    Raises
    ------
    InputError
        It cannot be read.
    """
    scenario = load_scenario(path, sets=sets, allow_code=allow_code, allow_outside=allow_outside)
    case = scenario.case()
    graph = _timed(case)
    return Base(scenario.name, graph, lambda graph: _running(case, graph), _recorded_ns(graph))


def _running(case: Case, graph: Graph) -> Case:
    """Return a case that runs another graph, on the machine that this one shows where it is a recording."""
    scenario, workload = case.scenario, case.scenario.content.workload
    if isinstance(workload, ImportedFile):
        content = scenario.content.model_copy(update={"workload": workload.with_graph(graph)})
        return replace(scenario, content=content).case()
    work = case.work
    return replace(case, make=lambda: work._replace(graph=graph))


def _timed(case: Case) -> Graph:
    """Return the graph of a case; ops that have no duration of their own get what cost models say of them."""
    graph = case.work.graph
    if (graph.duration_ns != UNSET).all():
        return graph
    job = job_of(case)
    if len(job.graph) != len(graph):  # compiled: what is compiled has no durations
        return graph
    return replace(graph, duration_ns=np.asarray(job.duration_ns), duration_by_kind={})


def _recorded_ns(graph: Graph) -> int | None:
    found = as_recorded(graph)
    return int(found.end_ns.max()) if len(found.op) else None


def try_all(base: Base, trials: Sequence[Trial]) -> Iterator[Outcome]:
    """Yield what comes out of the base as it is, and of each what-if.

    What cannot be done of such a recording is an outcome, too.

    Raises
    ------
    InputError
        A what-if that somebody gave cannot be done; nothing was tried then.
    """
    given = {}
    for trial in trials:
        if trial.given:
            with asked(trial.label):
                given[trial.label] = _noted(base, trial)
    unheld, inferred = _without_inferred(base)
    yield Outcome("as recorded" if base.recorded_ns else "as it is", {}, base.trace.makespan_ns)
    for trial in trials:
        if trial.why_not:
            yield Outcome(trial.label, dict(trial.what_if), None, (trial.why_not,))
            continue
        try:
            case, notes = given[trial.label] if trial.given else _noted(base, trial)
        except InputError as error:
            yield Outcome(trial.label, dict(trial.what_if), None, (error.message,))
            continue
        makespan_ns = run_case(case, fits=False, change=trial.job).trace.makespan_ns
        other_ns = None
        if unheld is not None and trial.what_if:
            other, _ = _noted(unheld, trial)
            other_ns = unheld.trace.makespan_ns - run_case(other, fits=False).trace.makespan_ns
            if abs(other_ns - (base.trace.makespan_ns - makespan_ns)) > _MATTERS * base.trace.makespan_ns:
                notes = (
                    *notes,
                    f"rests on {inferred} wait(s) of the host that were inferred and held nothing when "
                    "recorded; the other end of the range is what is saved without them",
                )
            else:
                other_ns = None
        yield Outcome(trial.label, dict(trial.what_if), makespan_ns, notes, other_ns)


def _without_inferred(base: Base) -> tuple[Base | None, int]:
    """Return the base without waits of the host that show in nothing that was recorded, and how many."""
    if not len(base.graph.attribute("inferred_wait")):
        return None, 0
    program = Program(base.graph)
    inferred = program.forget_inferred()
    return replace(base, graph=program.graph()), inferred


@contextmanager
def asked(text: str) -> Iterator[None]:
    """Say of which what-if of the command line an error inside is."""
    try:
        yield
    except InputError as error:
        raise InputError(f"--also {text}: {error}") from error


def _noted(base: Base, trial: Trial) -> tuple[Case, tuple[str, ...]]:
    """Return the run of a what-if, and what it assumes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        case = _changed(base, trial)
    return case, tuple(dict.fromkeys(str(warning.message) for warning in caught))


def _changed(base: Base, trial: Trial) -> Case:
    """Return the run of a what-if."""
    if trial.what_if:
        return base.case(applied(base.graph, [read_what_if(dict(trial.what_if))]))
    case = base.case(base.graph)
    if trial.machine is None:
        return case
    work = case.work._replace(graph=base.graph, machine=trial.machine(case.work.machine))
    return replace(case, make=lambda: work)


def read_what_if(value: dict[str, Any]) -> WhatIf:
    """Return a what-if from what a scenario would have.

    Raises
    ------
    InputError
        An unknown key, or a value that is none of it.
    """
    try:
        return WhatIf.model_validate(value)
    except ValidationError as error:
        with located("what_if"):
            raise input_error(error, WhatIf, value) from None
