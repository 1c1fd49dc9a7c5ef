"""What the pytest fixture ``simulate`` gives: a run, which says what of it one asserts and does not hold.

::

    run["makespan"] == 33_000_000
    run.order("rank0")[:2] == ["0F0", "0F1"]
    run.expect({"makespan": {"at_most": "1.0 x base"}}, base=base)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Any, TypeVar

from pydantic import ValidationError

from devices.describe.quantities import Strict
from scenarios.expect.reading import read_expectations
from scenarios.fields.policy_fields import Expect
from scenarios.fields.results import Value, result_of_run
from scenarios.file.document import Document
from scenarios.file.faults import scenario_error
from scenarios.file.yaml_read import read_yaml_text
from scenarios.regression.golden import write_golden
from scenarios.run.execute import names_of
from sim.trace import Trace
from sim.words.errors import SimError

__all__ = ["Simulated", "in_short"]

_Called = TypeVar("_Called", bound=Callable[..., Any])


def in_short(call: _Called) -> _Called:
    """Let a mistake of the caller's be shown where it was made: without our own lines above the message."""

    @wraps(call)
    def short(*arguments: Any, **named: Any) -> Any:
        __tracebackhide__ = True
        try:
            return call(*arguments, **named)
        except (SimError, AssertionError) as error:
            raise error.with_traceback(None) from None

    return short  # type: ignore[return-value]


class _Conditions(Strict):
    """What `Simulated.expect` takes."""

    expect: Expect


@dataclass(frozen=True, eq=False)
class Simulated:
    """A run, and what one asserts of it.

    Attributes
    ----------
    trace : Trace
        Every task; `Trace.to_pandas` makes a table of it.
    summary : dict
        What ``sim run --json`` prints.
    policy : str
        What the run is called.
    document : Document
        What its expectations are told by: a test, or the scenario that it ran.
    new_tables : list of str, optional
        Which tables of ops were written anew. None: none is, whatever came out.
    """

    trace: Trace
    summary: Mapping[str, Any]
    policy: str
    document: Document
    new_tables: list[str] | None = None

    @property
    def makespan_ns(self) -> int:
        """The end of the last task."""
        return self.trace.makespan_ns

    @cached_property
    def idle_ns(self) -> dict[str, int]:
        """How long each device executes nothing."""
        return {name: use["idle_ns"] for name, use in self.summary["devices"].items()}

    def order(self, device: str | None = None) -> list[str]:
        """Return the tasks in the order in which they start, of all devices or one."""
        found = self["order" if device is None else f"order.{device}"]
        assert isinstance(found, list)
        return found

    def __getitem__(self, what: str) -> Value:
        """Return a result by its name in ``expect:``, in base units.

        Raises
        ------
        InputError
            The run has no such result.
        """
        return result_of_run(what, self.summary, self.trace)

    @in_short
    def expect(self, conditions: Mapping[str, Any], **others: Simulated) -> None:
        """Assert what ``expect:`` of a scenario would say.

        Parameters
        ----------
        conditions : mapping
            ``{"makespan": {"at_most": "45us"}, "order": ["a", "b"], "schedule": "golden.csv"}``.
        **others : Simulated
            Runs that conditions name: ``{"makespan": {"at_most": "1.0 x base"}}`` with ``base=run``.

        Raises
        ------
        AssertionError
            What does not hold, a line each, and of a schedule what moved first.
        InputError
            A condition is wrong.
        """
        text = json.dumps({"expect": conditions})
        document = replace(self.document, root=read_yaml_text(text, self.document.path.name, places=False))
        try:
            read = _Conditions.model_validate(document.root.plain())
        except ValidationError as error:
            raise scenario_error(error, _Conditions, document) from None
        known = names_of(self.trace.job)
        failed = []
        for expectation in read_expectations(read.expect, document, ("expect",), list(others)):
            expectation.check_name(known, with_table=self.new_tables is None)
            new_tables = self.new_tables is not None
            outcome = expectation.hold(self, others.__getitem__, new_tables=new_tables)
            if outcome.passed:
                continue
            if expectation.table is not None and self.new_tables is not None:
                write_golden(expectation.table, self)
                self.new_tables.append(f"{expectation.table}: the schedule of {self.policy}")
            else:
                failed.append(outcome.told)
        if failed:
            raise AssertionError("\n".join([f"under {self.policy}, not as expected:", *failed]))

    def __repr__(self) -> str:
        """Return what a failing test shows of it."""
        return f"<{self.policy}: {self.trace.makespan_ns:,} ns, {len(self.trace):,} tasks>"
