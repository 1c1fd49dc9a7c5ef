"""The best of many runs of a scenario: over settings, then over orders, placements and streams.

::

    --vary KEY=V1,V2 ...     settings ──► run each ──► best          a method asks (`scenarios.tune.methods`)
    --schedules              runs as the scenario says ──► best ──► change its schedule ──► better, or hardly
                                                             ▲ go back, or on from there ◄──┘ worse?

The second search accepts what is worse by a threshold that shrinks to nothing (Dueck and Scheuer 1990,
"Threshold accepting", J. Comput. Phys. 90), as placement `auto-tune` does. Everything is run as `sim run`
runs it, so what holds for a run (memory, links, communicators, limits of the answer) holds for each trial.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from policies.issue.out_of_order import OutOfOrder
from policies.linearize.critical_path_first import CriticalPathFirst
from policies.linearize.memory_aware import MemoryAware
from policies.streams.per_branch import PerBranch
from scenarios.fields.goals import Goal, front
from scenarios.fields.results import Value, column_of_result, result_of_run
from scenarios.file.document import Document
from scenarios.run.execute import Result, run_case
from scenarios.run.load import Case, scenario_of
from scenarios.tune.methods import METHODS
from scenarios.tune.schedules import Given, Order, Schedule, Space
from sim.analysis.failed_ops import failure_text
from sim.graph.frames import has_control_flow
from sim.trace import Trace
from sim.words.errors import InputError, RunError, SimError, UnknownNameError

__all__ = ["Trial", "Tuner", "Tuning"]

_WORSE: Final = 0.005
"""So much worse, relatively, a schedule may be at first to be gone on from."""

_ORDERS: Final = (CriticalPathFirst(), MemoryAware())
"""Orders that are tried before they are changed, on the run's own streams and on one for each branch."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One run of a search.

    Attributes
    ----------
    what : str
        How it came about: ``"settings"``; ``"start"``, its schedule as a ``"list"``, or what was changed of
        that: ``"order"``, ``"stream"``, ``"device"``.
    settings : tuple of str
        ``KEY=VALUE`` of what was varied.
    policy : str
        What the policy is called.
    row : dict
        The results that are sought or limited, and ``error``: None, or why it could not run.
    level : int
        How exactly it was run; see `scenarios.tune.methods`. None: it is a candidate for the best.
    document : Document
        The scenario with these settings.
    follows : str or None
        The synchronisation of the policy that follows the plan of this run; None: the scenario's own policy
        does the same.
    """

    what: str
    settings: tuple[str, ...]
    policy: str
    row: dict[str, Any]
    document: Document
    level: int | None = None
    follows: str | None = None


@dataclass
class Tuning:
    """What a search has found so far.

    Attributes
    ----------
    goal : Goal
    trials : list of Trial
        In the order in which they were run.
    best : int or None
        Index of the best trial: the first of equal ones.
    trace : Trace or None
        Of the best trial.
    """

    goal: Goal
    trials: list[Trial] = field(default_factory=list)
    best: int | None = None
    trace: Trace | None = None

    def add(self, trial: Trial, result: Result | None) -> float | None:
        """Put a trial down and return its cost: small is good; None: it is no answer."""
        self.trials.append(trial)
        if not self.goal.allows(trial.row):
            return None
        cost = self.cost(trial)
        if trial.level is None and (self.best is None or cost < self.cost(self.trials[self.best])):
            self.best = len(self.trials) - 1
            self.trace = None if result is None else result.trace
        return cost

    def cost(self, trial: Trial) -> float:
        """Return what is to be small."""
        value: float = trial.row[self.goal.column]
        return -value if self.goal.most else value

    def front(self, against: str) -> list[int]:
        """Return the trials that no other one beats in both the goal and the least of another result."""
        column = column_of_result(against)
        answers = [
            k
            for k, trial in enumerate(self.trials)
            if trial.level is None and self.goal.allows(trial.row) and trial.row.get(column) is not None
        ]
        points = [(self.cost(self.trials[k]), self.trials[k].row[column]) for k in answers]
        return [answers[i] for i in front(points)]


class Tuner:
    """A search over one scenario.

    Parameters
    ----------
    document : Document
    goal : Goal
    axes : mapping of str to list of str
        What is varied: key → values.
    policies : sequence of str or None
        Policies that are tried, as ``sim run --policy`` takes them; None: the scenario's own.
    results : sequence of str
        What trials tell besides what the goal asks for.
    levels : (str, list of str), optional
        A key and its values, the cheapest first, for ``halving``; only the last value is an answer.
    seed : int
    allow_code : bool
    tell : callable
        Told after each trial.
    """

    def __init__(
        self,
        document: Document,
        goal: Goal,
        *,
        axes: dict[str, list[str]] | None = None,
        policies: Sequence[str | None] = (None,),
        results: Sequence[str] = (),
        levels: tuple[str, list[str]] | None = None,
        seed: int = 0,
        allow_code: bool = False,
        tell: Callable[[Tuning], None] = lambda tuning: None,
    ) -> None:
        self.document, self.goal, self.seed, self.allow_code = document, goal, seed, allow_code
        self.axes, self.policies, self.levels, self.tell = axes or {}, list(policies), levels, tell
        self.results = tuple(dict.fromkeys([*goal.results, *results]))
        self.tuning = Tuning(goal)

    # -- settings -----------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """How many settings there are."""
        return math.prod(map(len, self.axes.values())) * len(self.policies)

    def settings(self, method: str | None, budget: int) -> None:
        """Search over settings and policies, with so many runs at most.

        Parameters
        ----------
        method : str, optional
            One of `METHODS`; by default every point if the budget allows, else ``local``, and ``halving``
            if there are levels.
        budget : int

        Raises
        ------
        UnknownNameError
            No such method.
        InputError
            Levels without ``halving`` or the other way round; settings that make no scenario.
        """
        method = method or ("halving" if self.levels else "grid" if self.size <= budget else "local")
        if method not in METHODS:
            raise UnknownNameError("method", method, METHODS)
        if (method == "halving") != (self.levels is not None):
            raise InputError(
                "halving compares points at cheap levels first: give --level KEY=V1,V2, cheap to exact"
                if method == "halving"
                else f"--level is for --method halving, not {method}"
            )
        sizes = [len(values) for values in self.axes.values()] + [len(self.policies)]
        n_levels = 1 if self.levels is None else len(self.levels[1])
        search = METHODS[method](sizes, n_levels, budget, self.seed)
        cost: float | None = None
        for _ in range(budget):
            try:
                ask = search.send(cost) if self.tuning.trials else next(search)
            except StopIteration:
                return
            settings = [
                f"{key}={values[k]}" for (key, values), k in zip(self.axes.items(), ask.at, strict=False)
            ]
            level = None
            if self.levels is not None:
                key, values = self.levels
                settings.append(f"{key}={values[ask.level]}")
                level = ask.level if ask.level < n_levels - 1 else None
            case = self._case(settings, self.policies[ask.at[-1]])
            cost, _ = self._run(case, "settings", settings, level=level)

    def _case(self, settings: Sequence[str], policy: str | None) -> Case:
        document = self.document.with_settings(settings, "--vary")
        return scenario_of(document, self.allow_code).case(policy)

    # -- schedules ----------------------------------------------------------------------------

    def schedules(self, budget: int) -> None:
        """Search over orders, placements and streams: from the best so far, or from what the scenario says.

        Raises
        ------
        InputError
            A scenario whose ops have no one order: control flow, folded ranks.
        RunError
            Nothing to start from could run.
        """
        started: list[tuple[float, Case, list[str], Result]] = []
        for case, settings in self._starts():
            if len(self.tuning.trials) < budget:
                cost, result = self._run(case, "start", settings)
                if cost is not None and result is not None:
                    started.append((cost, case, settings, result))
        if not started:
            raise RunError(f"nothing to start from is an answer: {self._why_not()}")
        _, case, settings, result = min(started, key=lambda start: start[0])
        self._walk(case, settings, result, budget)

    def _why_not(self) -> str:
        trial = self.tuning.trials[-1]
        limits = ", ".join(map(str, self.goal.limits))
        return trial.row["error"] or f"{trial.policy} does not keep to {limits}"

    def _starts(self) -> list[tuple[Case, list[str]]]:
        if self.tuning.best is not None:
            best = self.tuning.trials[self.tuning.best]
            label = best.policy if any(policy is not None for policy in self.policies) else None
            return [(self._case(best.settings, label), list(best.settings))]
        scenario = scenario_of(self.document, self.allow_code)
        if self.policies != [None]:
            return [(scenario.case(policy), []) for policy in self.policies]
        return [(case, []) for case in (scenario.case(), *scenario.cases())]

    def _walk(self, case: Case, settings: list[str], result: Result, budget: int) -> None:
        """Change the schedule of a run, again and again, until the budget is used up."""
        trace = result.trace
        if trace.job.machine.folding is not None:
            raise InputError("ranks are folded, and all ranks of a kind have one schedule: set fold: false")
        if has_control_flow(trace.job.graph):
            raise InputError("ops of conditions and loops have no one order that could be searched")
        given = Given(trace.job.device_of.tolist())
        synchronisation = case.decisions.policy.synchronisation
        policy = OutOfOrder(synchronisation=synchronisation)

        def attempt(what: str, **decisions: Any) -> tuple[float, Result | None]:
            changed = case.decisions._replace(policy=policy, **decisions)
            cost, found = self._run(replace(case, decisions=changed), what, settings, synchronisation)
            return math.inf if cost is None else cost, found

        own = Schedule.of(trace)
        now, cost = own, math.inf
        for linearize, streams in [(Order(own.order), own), *itertools.product(_ORDERS, (own, PerBranch()))]:
            if len(self.tuning.trials) < budget:
                there, found = attempt("list", linearize=linearize, streams=streams, placement=given)
                if found is not None and there < cost:
                    now, cost = Schedule.of(found.trace), there
        space = Space(trace.job, given.problem)
        rng = random.Random(self.seed)
        seen = {now}
        neighbours = space.neighbours(now, rng)
        for _ in range(20 * budget):
            if len(self.tuning.trials) >= budget:
                return
            what, near = next(neighbours, ("", now))
            if not what:
                return
            if near in seen:
                continue
            seen.add(near)
            there, _ = attempt(what, linearize=Order(near.order), streams=near, placement=near.placement)
            left = 1 - len(self.tuning.trials) / budget
            if there < math.inf and (cost == math.inf or there <= cost + abs(cost) * _WORSE * left):
                now, cost = near, there
                neighbours = space.neighbours(now, rng)

    # -- both ---------------------------------------------------------------------------------

    def _run(
        self,
        case: Case,
        what: str,
        settings: Sequence[str],
        follows: str | None = None,
        level: int | None = None,
    ) -> tuple[float | None, Result | None]:
        """Run a case and put the trial down; what cannot run is one that says why."""
        row: dict[str, Any] = {"error": None}
        result: Result | None = None
        try:
            result = run_case(case, fits=False)
            row |= {column_of_result(name): self._result(name, result) for name in self.results}
            case.work.fits(result.trace, False)
            row["error"] = failure_text(result.trace) or None
        except SimError as error:
            if isinstance(error, InputError) and what in ("settings", "start"):
                raise  # the scenario is wrong, not only what was changed of its schedule
            row["error"] = str(error).partition("\n")[0]
        changed = case.label != case.base.case().label or case.scenario.document is not case.base.document
        if what == "start" and changed:
            follows = case.decisions.policy.synchronisation
        trial = Trial(what, tuple(settings), case.label, row, case.scenario.document, level, follows)
        cost = self.tuning.add(trial, result)
        self.tell(self.tuning)
        return cost, result

    def _result(self, name: str, result: Result) -> Value:
        if name == "makespan":  # without all the numbers of a summary
            return result.trace.makespan_ns
        return result_of_run(name, result.summary, result.trace)
