"""Searches for the best run of a scenario: over settings, then over orders, placements and streams.

::

    --vary KEY=V1,V2 ...     settings ──► run each ──► best        a method asks for settings
    --schedules              run as the scenario says ──► best ──► change its schedule ──► run
                                                                    ▲                       │
                             better or hardly worse: go on from there, else go back ◄───────┘

The second search accepts worse schedules within a threshold that shrinks to zero (Dueck and Scheuer 1990,
"Threshold accepting", J. Comput. Phys. 90), as placement `auto-tune` does. Each trial runs as `sim run` would
run it, with memory, links, communicators and limits of the answer.

If the seed changes the result, a trial consists of runs with several seeds, the same for all trials, and its
result is their mean: with a single seed, the best of many trials would be the one that this seed favours. A
trial that is far behind the best with each of its first seeds is dropped, which saves its other runs. The
best trial is finally measured on seeds that no trial has seen (`Fresh`).
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property
from statistics import stdev
from typing import Any, Final, NamedTuple

from policies.linearize import CriticalPathFirst, MemoryAware
from policies.placement.problem import Problem
from policies.placement.simple import Given
from policies.streams import PerBranch
from scenarios.fields.goals import Goal, front
from scenarios.fields.results import column_of_result
from scenarios.run.execute import Result, run_case
from scenarios.run.prepare_job import Jobs
from scenarios.run.scenario import Case
from scenarios.variants.repeat import mean_with_interval
from scenarios.variants.schedules import ListedOrder, SearchSchedule, Space, refuse_decided
from scenarios.variants.search_methods import AHEAD, METHODS, Ask
from scenarios.variants.sweep import KeptRows, program, stamps
from scenarios.variants.variant import Row, Variant, Variants, attempt, refuse_all_invalid, value_of
from sim.base.errors import InputError, RunError, UnknownNameError
from sim.base.units import round_half_up
from sim.graph.frames import has_control_flow
from sim.trace import Trace

_TOLERANCE: Final = 0.005
"""Relative amount by which a schedule may be worse, at first, and still be the next starting point."""

_TRIAL_SEEDS: Final = 5
"""Number of seeds of a trial, if seeds matter."""

_MOST_PROBED: Final = 50
"""Number of points to try for a result that shows whether seeds matter."""

_FIRST_SEEDS: Final = 2
"""After this many seeds a trial is dropped if it is behind the best with each, by more than the spread."""

_FRESH_SEEDS: Final = 20
"""Number of further seeds with which the best and its baseline run after the search."""

_ORDERS: Final = (CriticalPathFirst(), MemoryAware())
"""Orders to begin with, on the run's own streams and on one stream per branch."""


class Trial(NamedTuple):
    """One run of a search.

    Attributes
    ----------
    origin : str
        Origin of the trial: ``"settings"``; ``"start"``; its schedule as a ``"list"``; or what was changed of
        that: ``"order"``, ``"stream"``, ``"device"``.
    variant : Variant
    row : dict
        Settings, the results that are optimized or limited, and ``error``: None, or why it is no answer.
    level : int
        Fidelity of the run; see `scenarios.variants.search_methods`. None: it is a candidate for the best.
    rows : sequence of dict
        Rows with each seed, the scenario's own first; `row` has their means.
    """

    origin: str
    variant: Variant
    row: Row
    level: int | None = None
    rows: Sequence[Row] = ()


class Fresh(NamedTuple):
    """The result of the best trial on seeds that no trial has seen, compared with the start of the search.

    Attributes
    ----------
    runs : int
        Number of seeds.
    against : str
        The baseline: the policy with which the search for a schedule began.
    best, before : float
        Mean result of the best trial, and of the baseline.
    gain : float
        Relative improvement over `before`, as the mean over pairs of runs with the same seed.
    interval : tuple of float
        95% confidence interval of the gain.
    """

    runs: int
    against: str
    best: float
    before: float
    gain: float
    interval: tuple[float, float]


@dataclass
class Tuning:
    """The findings of a search so far.

    Attributes
    ----------
    goal : Goal
    trials : list of Trial
        Trials, in the order in which they were run.
    best : int or None
        Index of the best trial: the first of equal ones.
    case, start : Case or None
        Case of the best trial, and of the best start of the search for a schedule.
    seeds : int
        Number of seeds of a trial.
    fresh : Fresh or None
        Result of the best on other seeds; None: the seed does not matter, or there is no baseline.
    """

    goal: Goal
    trials: list[Trial] = field(default_factory=list)
    best: int | None = None
    case: Case | None = None
    start: Case | None = None
    seeds: int = 1
    fresh: Fresh | None = None

    @cached_property
    def trace(self) -> Trace:
        """Trace of the best trial, which is run again because it may have run in another process."""
        assert self.case is not None
        return run_case(self.case, fits=False).trace

    def add(self, trial: Trial, case: Callable[[], Case]) -> float | None:
        """Record a trial and its case; return its cost (smaller is better), or None if it is no answer."""
        self.trials.append(trial)
        if not self.goal.allows(trial.row):
            return None
        cost = self.cost(trial)
        if trial.level is None and (self.best is None or cost < self.cost(self.trials[self.best])):
            self.best, self.case = len(self.trials) - 1, case()
            vars(self).pop("trace", None)
        return cost

    @property
    def answers(self) -> list[int]:
        """Indices of the trials that are exact and within the limits."""
        allows = self.goal.allows
        return [k for k, trial in enumerate(self.trials) if trial.level is None and allows(trial.row)]

    def cost(self, trial: Trial) -> float:
        """Return the number that the search minimizes."""
        value: float = trial.row[self.goal.column]
        return self.goal.sign * value

    def front(self, against: str) -> list[int]:
        """Return the Pareto-optimal trials: none is better in both the goal and the other result."""
        column = column_of_result(against)
        answers = [k for k in self.answers if self.trials[k].row.get(column) is not None]
        points = [(self.cost(self.trials[k]), self.trials[k].row[column]) for k in answers]
        return [answers[i] for i in front(points)]


@dataclass(eq=False)
class Tuner:
    """A search over one scenario.

    Attributes
    ----------
    variants : Variants
        Variants of the scenario; their rows hold what the goal asks for.
    goal : Goal
    axes : mapping of str to list of str
        Varied keys → their values.
    policies : sequence of str or None
        Policies to try, as in ``sim run --policy``; None: the scenario's own.
    levels : (str, list of str), optional
        A key and its values, the cheapest first, for ``halving``; only the last value is an answer.
    seed : int
    tell : callable
        Called after each trial.
    jobs : int
        Number of trials that run at once, if `executor` is set. The findings do not depend on it.
    runs : int
        Number of runs so far.
    kept : KeptRows, optional
        Rows of an earlier search.
    """

    variants: Variants
    goal: Goal
    axes: Mapping[str, list[str]] = field(default_factory=dict)
    policies: Sequence[str | None] = (None,)
    levels: tuple[str, list[str]] | None = None
    seed: int = 0
    tell: Callable[[Tuning], None] = lambda tuning: None
    jobs: int = 1
    executor: Executor | None = None
    runs: int = 0
    kept: KeptRows | None = None

    @cached_property
    def tuning(self) -> Tuning:
        """The findings so far."""
        return Tuning(self.goal)

    def stamp(self) -> str:
        """Return a hash of everything that rows of runs depend on: the scenario, its files, this program."""
        values = [((key, value),) for key, values in self.axes.items() for value in values]
        points = [Variant(value) for value in values] + [Variant(policy=policy) for policy in self.policies]
        return f"{stamps(self.variants.document, points)[0]} {program()} {self.variants.results}"

    # -- seeds --------------------------------------------------------------------------------

    @cached_property
    def seeds(self) -> range:
        """The seeds of a trial: the scenario's own, and those after it if the seed changes the result."""
        sizes = (*map(len, self.axes.values()), len(self.policies))
        for point in itertools.islice(itertools.product(*map(range, sizes)), _MOST_PROBED):
            first = self._variant(Ask(point))
            try:
                seed = self.variants.scenario(first.texts).content.seed
            except InputError:  # its row will show the error
                continue
            seeds = range(seed, seed + _TRIAL_SEEDS)
            if "seed" in dict(first.settings):
                return seeds[:1]
            one = self.variants.row(_with_seed(first, seed))
            if self.goal.column in one:
                break
        else:
            return range(1)
        if one[self.goal.column] == self.variants.row(_with_seed(first, seed + 1)).get(self.goal.column):
            return seeds[:1]
        self.tuning.seeds = len(seeds)
        return seeds

    def _join_rows(self, rows: Sequence[Row]) -> Row:
        """Return the mean row of a variant, or the row of a failed run."""
        if len(rows) == 1:
            return rows[0]
        rows = [{key: value for key, value in row.items() if key != "seed"} for row in rows]
        if (wrong := next((row for row in rows if not self.goal.allows(row)), None)) is not None:
            return wrong
        columns = [column_of_result(name) for name in self.variants.results]
        means = {
            column: sum(row[column] for row in rows) / len(rows)
            for column in columns
            if all(type(row.get(column)) in (int, float) for row in rows)
        }
        rounded = {
            column: round_half_up(mean) for column, mean in means.items() if type(rows[0][column]) is int
        }
        return rows[0] | means | rounded

    def compare_on_fresh_seeds(self) -> None:
        """Run the best trial and its baseline on seeds that no trial has seen, if seeds matter."""
        tuning = self.tuning
        if len(self.seeds) == 1 or tuning.case is None:
            return
        try:
            before = tuning.start or self.variants.case(Variant(policy=self.policies[0]))
        except InputError:  # it is a valid scenario only with settings
            return
        against = "the scenario as it is" if tuning.start is None else before.label
        first = self.seeds[-1] + 1
        samples: list[list[float]] = []
        for case in (tuning.case, before):
            job_with = Jobs(case)
            results = (run_case(case, job=job_with(seed)) for seed in range(first, first + _FRESH_SEEDS))
            samples.append([float(value_of(self.goal.result, result)) for result in results])
        gains = [self.goal.sign * (1 - one / other) for one, other in zip(*samples, strict=True) if other]
        if len(gains) == _FRESH_SEEDS:
            mean, off = mean_with_interval(gains)
            best, base = (sum(values) / _FRESH_SEEDS for values in samples)
            tuning.fresh = Fresh(_FRESH_SEEDS, against, best, base, mean, (mean - off, mean + off))

    # -- settings -----------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of points in the space of settings and policies."""
        return math.prod(map(len, self.axes.values())) * len(self.policies)

    def settings(self, method: str | None, budget: int) -> None:
        """Search over settings and policies, with at most `budget` runs.

        Parameters
        ----------
        method : str, optional
            One of `METHODS`; by default ``halving`` if there are levels, else all points if the budget
            allows, else ``local``.
        budget : int

        Raises
        ------
        UnknownNameError
            The method is unknown.
        InputError
            Levels without ``halving`` or the other way round; no settings make a valid scenario.
        """
        trials = max(1, budget // len(self.seeds))
        method = method or ("halving" if self.levels else "grid" if self.size <= trials else "local")
        if method not in METHODS:
            raise UnknownNameError("method", method, METHODS)
        if (method == "halving") != (self.levels is not None):
            raise InputError("--method halving and --level KEY=V1,V2 (cheap to exact) go together")
        if method == "grid" and self.size > budget:
            raise InputError(f"grid tries all {self.size:,} points, and --budget allows {budget:,} runs")
        sizes = [len(values) for values in self.axes.values()] + [len(self.policies)]
        points = trials if len(self.seeds) == 1 else max(1, budget // _FIRST_SEEDS)  # if all are dropped
        search = METHODS[method](sizes, 1 if self.levels is None else len(self.levels[1]), points, self.seed)
        with suppress(StopIteration):
            asks, before = next(search), -1
            while len(self.tuning.trials) > before:  # otherwise the budget is used up
                before = len(self.tuning.trials)
                asks = search.send(self._costs(asks, budget))
        refuse_all_invalid([trial.row for trial in self.tuning.trials])

    def _costs(self, asks: Sequence[Ask], budget: int) -> Iterator[float | None]:
        """Yield the cost of each point until the budget is used up."""
        asks = asks[: budget - self.runs]
        with closing(self._rows([self._variant(ask) for ask in asks], budget)) as rows:
            for ask, (variant, row, seed_rows) in zip(asks, rows, strict=False):
                exact = self.levels is None or ask.level == len(self.levels[1]) - 1
                yield self._record(Trial("settings", variant, row, None if exact else ask.level, seed_rows))

    def _variant(self, ask: Ask) -> Variant:
        settings = [(key, values[k]) for (key, values), k in zip(self.axes.items(), ask.point, strict=False)]
        if self.levels is not None:
            key, values = self.levels
            settings.append((key, values[ask.level]))
        return Variant(tuple(settings), self.policies[ask.point[-1]])

    # -- schedules ----------------------------------------------------------------------------

    def schedules(self, budget: int) -> None:
        """Search over orders, placements and streams, from the best trial so far or from the scenario.

        Raises
        ------
        InputError
            The ops of the scenario have no single order: control flow, folded ranks.
        RunError
            No starting point could run.
        """
        started: list[tuple[float, Variant, Result]] = []
        for start in self._starts():
            if not started or self.runs + len(self.seeds) <= budget:
                cost, result = self._begin("start", start)
                if cost is not None and result is not None:
                    started.append((cost, start, result))
        if not started:
            row, limits = self.tuning.trials[-1].row, ", ".join(map(str, self.goal.limits))
            why_not = row["error"] or f"{row['policy']} does not keep to {limits}"
            raise RunError(f"nothing to start from is an answer: {why_not}")
        _, start, result = min(started, key=lambda entry: entry[0])
        self.tuning.start = self.variants.case(start)
        self._walk(start, result, budget)

    def _starts(self) -> list[Variant]:
        if self.tuning.best is not None:
            return [self.tuning.trials[self.tuning.best].variant]
        policies = [*self.policies]
        if policies == [None]:
            policies = [None, *self.variants.scenario().variants]
        return [Variant(policy=policy) for policy in policies]

    def _walk(self, start: Variant, result: Result, budget: int) -> None:
        """Change the schedule of a run step by step until the budget is used up."""
        trace = result.trace
        if trace.job.machine.folding is not None:
            raise InputError("ranks are folded, and all ranks of a kind have one schedule: set fold: false")
        refuse_decided(result)
        if has_control_flow(trace.job.graph):
            raise InputError("ops of conditions and loops have no one order that could be searched")
        placement = Given(trace.job.device_of.tolist())
        schedule = SearchSchedule.of(trace)
        now, cost = schedule, math.inf
        for linearize, streams in [
            (ListedOrder(schedule.order), schedule),
            *itertools.product(_ORDERS, (schedule, PerBranch())),
        ]:
            if self.runs + len(self.seeds) <= budget:
                listed = {"placement": placement, "linearize": linearize, "streams": streams}
                new_cost, new_result = self._begin("list", start._replace(schedule=schedule), **listed)
                if new_result is not None and new_cost is not None and new_cost < cost:
                    now, cost = SearchSchedule.of(new_result.trace), new_cost
        space = Space(trace.job, Problem.of_job(trace.job))
        rng = random.Random(self.seed)
        tried = {now}
        neighbours = space.neighbours(now, rng)
        for _ in range(20 * budget):
            ahead = self._ahead(neighbours, tried, (budget - self.runs) // len(self.seeds))
            if not ahead:
                return
            with closing(self._rows([start._replace(schedule=near) for _, near in ahead], budget)) as rows:
                for (change, near), (variant, row, seed_rows) in zip(ahead, rows, strict=False):
                    tried.add(near)
                    new_cost = self._record(Trial(change, variant, row, None, seed_rows))
                    share = 1 - self.runs / budget
                    if new_cost is not None and new_cost <= cost + abs(cost) * _TOLERANCE * share:
                        now, cost = near, new_cost
                        neighbours = space.neighbours(now, rng)
                        break

    @staticmethod
    def _ahead(
        neighbours: Iterator[tuple[str, SearchSchedule]], tried: Collection[SearchSchedule], count: int
    ) -> list[tuple[str, SearchSchedule]]:
        """Return the next changed schedules that are new, and what was changed in each."""
        changes: dict[SearchSchedule, str] = {}
        for change, near in itertools.islice(neighbours, 20 * AHEAD):
            if near not in tried:
                changes.setdefault(near, change)
            if len(changes) >= AHEAD:
                break
        return [(change, near) for near, change in changes.items()][: max(0, count)]

    # -- both ---------------------------------------------------------------------------------

    def _rows(
        self, variants: Sequence[Variant], budget: int
    ) -> Generator[tuple[Variant, Row, Sequence[Row]], None, None]:
        """Yield variants with their mean rows, and their rows with each seed.

        Ends when the budget of runs is used up; what is dropped does not depend on what runs at once.
        """
        seeds, together = self.seeds, len(variants) if len(self.seeds) == 1 else AHEAD
        for start in range(0, len(variants), max(1, together)):
            some, best = variants[start : start + together], self.tuning.best
            first = [_with_seed(variant, seed) for variant in some for seed in seeds[:_FIRST_SEEDS]]
            with closing(self._run(first if len(seeds) > 1 else some)) as begun:
                for variant in some:
                    if self.runs + len(seeds) > budget:
                        return
                    rows = [*itertools.islice(begun, min(_FIRST_SEEDS, len(seeds)))]
                    if len(seeds) > 1 and self._is_behind(rows, best):
                        error = f"dropped: far behind the best with each of {_FIRST_SEEDS} seeds"
                        yield variant, {**self._join_rows(rows), "error": error}, rows
                        continue
                    rows += self._run([_with_seed(variant, seed) for seed in seeds[_FIRST_SEEDS:]])
                    yield variant, self._join_rows(rows), rows

    def _run(self, variants: Sequence[Variant]) -> Generator[Row, None, None]:
        """Yield the rows of variants, and count the runs; kept rows need not run again."""
        earlier = self.kept
        kept_rows = [None if earlier is None else earlier.rows.get(variant.key) for variant in variants]
        remaining = [variant for variant, row in zip(variants, kept_rows, strict=True) if row is None]
        with closing(self.variants.rows(remaining, self.executor, self.jobs)) as rows:
            for row in kept_rows:
                if row is None:
                    variant, row = next(rows)
                    if earlier is not None:
                        earlier.put(variant.key, row)
                self.runs += 1
                yield row

    def _is_behind(self, rows: Sequence[Row], best: int | None) -> bool:
        """Whether a trial is behind the best with each seed so far, by more than the spread over seeds."""
        if best is None or not all(self.goal.allows(row) for row in rows):
            return False
        column = self.goal.column
        values = [row[column] for row in self.tuning.trials[best].rows]
        spread, pairs = stdev(values), zip(rows, values, strict=False)
        return all(self.goal.sign * (row[column] - value) > spread for row, value in pairs)

    def _begin(self, origin: str, variant: Variant, **decisions: Any) -> tuple[float | None, Result | None]:
        """Run a variant in this process, with some decisions of its own, because its result is needed."""
        seeded = [_with_seed(variant, seed) for seed in self.seeds] if len(self.seeds) > 1 else [variant]
        runs = [attempt(self.variants.case(one).deciding(**decisions)) for one in seeded]
        self.runs += len(runs)
        if origin == "start" and isinstance(runs[0].error, InputError):
            raise runs[0].error
        rows = [*map(self.variants.row_of, seeded, runs)]
        case = self.variants.case(variant).deciding(**decisions)
        trial = Trial(origin, variant, self._join_rows(rows), None, rows)
        return self._record(trial, case), runs[0].result

    def _record(self, trial: Trial, case: Case | None = None) -> float | None:
        """Record a trial and return its cost, or None if it is no answer."""
        cost = self.tuning.add(trial, lambda: case or self.variants.case(trial.variant))
        self.tell(self.tuning)
        return cost


def _with_seed(variant: Variant, seed: int) -> Variant:
    """Return a variant with a seed."""
    return variant._replace(settings=(*variant.settings, ("seed", str(seed))))
