"""One run of a search: here, or in another process, which gets told what to run and tells what came out.

::

    Attempt   settings, policy, schedule ──► run as `sim run` does ──► row: results and error
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any, NamedTuple

from policies.issue.out_of_order import OutOfOrder
from scenarios.fields.results import Value, column_of_result, result_of_run
from scenarios.file.document import Document
from scenarios.run.execute import Result, run_case
from scenarios.run.load import Scenarios
from scenarios.run.scenario import Case
from scenarios.variants.schedules import ListedOrder, SearchSchedule
from scenarios.variants.sweep import without_interrupts
from sim.base.errors import InputError, RunError, SimError
from sim.explain.failed_ops import failure_text

Row = dict[str, Any]


class TrialRun(NamedTuple):
    """What is run.

    Attributes
    ----------
    settings : tuple of str
        ``KEY=VALUE`` of what is varied.
    policy : str or None
        See `scenarios.run.scenario.Scenario.case`.
    schedule : Schedule, optional
        What runs in place of the policy's own.
    """

    settings: tuple[str, ...]
    policy: str | None
    schedule: SearchSchedule | None = None


class Runner:
    """Runs attempts of one scenario.

    Parameters
    ----------
    document : Document
    results : sequence of str
        What rows tell, by the names of ``expect:``.
    executor : Executor, optional
        Where attempts of `rows` run: processes that began with `begin_there`. By default here, one after
        another.
    jobs : int
        How many run there at once: what runs ahead may turn out not to be wanted.
    """

    def __init__(
        self,
        document: Document,
        results: Sequence[str],
        executor: Executor | None = None,
        jobs: int = 1,
    ) -> None:
        self.scenarios = Scenarios(document)
        self.results = tuple(results)
        self.executor, self.jobs = executor, jobs
        self._last: tuple[TrialRun, Case] | None = None

    def case(self, attempt: TrialRun) -> Case:
        """Return the run that is meant.

        Raises
        ------
        InputError
            Settings that make no scenario.
        """
        schedule, of = attempt.schedule, attempt._replace(schedule=None)
        if self._last is None or self._last[0] != of:
            self._last = of, self.scenarios.at(attempt.settings).case(attempt.policy)
        case = self._last[1]
        if schedule is None:
            return case
        return case.deciding(
            policy=OutOfOrder(synchronisation=case.decisions.policy.synchronisation),
            linearize=ListedOrder(schedule.order),
            streams=schedule,
            placement=schedule.placement,
        )

    def run(self, case: Case, *, changed: bool = False) -> tuple[Row, Result | None]:
        """Run a case; return its results, and why it could not run.

        Raises
        ------
        InputError
            The scenario is wrong: not only what was `changed` of its schedule.
        """
        row: Row = {"error": None}
        result: Result | None = None
        try:
            result = run_case(case, fits=False)
            row |= {column_of_result(name): _result(name, result) for name in self.results}
            case.work.fits(result.trace, False)
            row["error"] = failure_text(result.trace) or None
        except SimError as error:
            if isinstance(error, InputError) and not changed:
                raise
            row["error"] = str(error).partition("\n")[0]
        return row, result

    def rows(self, attempts: Sequence[TrialRun]) -> Generator[Row, None, None]:
        """Yield the row of each attempt, as it is taken; where there are processes, they run ahead.

        Raises
        ------
        InputError
            As for `run`.
        RunError
            A process ended by itself.
        """
        if self.executor is None:
            for attempt in attempts:
                yield self.run(self.case(attempt), changed=attempt.schedule is not None)[0]
            return
        ahead: deque[Future[Row]] = deque()
        left = iter(attempts)
        try:
            while True:
                with without_interrupts():
                    for attempt in itertools.islice(left, self.jobs - len(ahead)):
                        ahead.append(self.executor.submit(_run_there, attempt))
                if not ahead:
                    return
                yield ahead.popleft().result()
        except BrokenExecutor:
            raise RunError(
                "a process of the search ended by itself; the machine may have run out of memory"
            ) from None
        finally:
            for future in ahead:
                future.cancel()


def _result(name: str, result: Result) -> Value:
    if name == "makespan":  # without all the numbers of a summary
        return result.trace.makespan_ns
    return result_of_run(name, result.summary, result.trace)


_THERE: list[Runner] = []
"""Of a process that runs attempts: what it runs them with."""


def begin_there(begin: Callable[[], None], document: Document, results: Sequence[str]) -> None:
    """Prepare a process for attempts, after what it does first besides."""
    begin()
    _THERE[:] = [Runner(document, results)]


def _run_there(attempt: TrialRun) -> Row:
    [runner] = _THERE
    return runner.run(runner.case(attempt), changed=attempt.schedule is not None)[0]
