"""A condition on a result of a run, and what became of it.

::

    expect:
      makespan: 45us                                  a plain value: equals
      utilisation.gpu0: {at_least: 80%}               of a device
      start.conv: {equals: 10us, tolerance: 1us}      of an op; conv[2] in the third iteration
      order: [a, b, c]                                these ops start in this order
      order.gpu0: [a, c]                              ... on this device
      schedule: golden.csv                            as in a table that `sim run --ops` wrote
      1f1b: {makespan: {at_most: 1.0 x gpipe}}        of an entry of compare, beside another one

`scenarios.fields.results.RESULTS` lists what may be expected. Values have the units of the result, a
tolerance in per cent is a share of what it should equal, and nothing is compared with a hidden epsilon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from scenarios.expect.relative import Given, Relative, resolved
from scenarios.fields.results import FILE, ORDER, RESULTS, Summary, Value, holds
from scenarios.file.document import Document, Loc
from scenarios.file.yaml_read import Place
from sim.files.reading import read_bytes
from sim.trace import Trace
from sim.words.errors import InputError, ScenarioError, hint

__all__ = ["Expectation", "Outcome", "Run"]


class Run(Protocol):
    """What came out of a run; `scenarios.run.execute.Result` is one."""

    @property
    def summary(self) -> Summary:
        """The numbers."""

    @property
    def trace(self) -> Trace:
        """Every task."""

    @property
    def policy(self) -> str:
        """What it is called."""


class Outcome(NamedTuple):
    """One expectation, and what came out.

    Attributes
    ----------
    expectation : Expectation
    condition : dict
        ``equals``, ``at_most``, ``at_least``, ``tolerance`` in base units (ns, bytes, shares).
    actual : int, float, str or list of str
    passed : bool
    told : str
        What was expected and what came out: a sentence, and lines below it that say more.
    references : dict of str to int or float
        What the runs have that the condition names.
    """

    expectation: Expectation
    condition: Mapping[str, Value]
    actual: Value
    passed: bool
    told: str
    references: Mapping[str, int | float] = MappingProxyType({})

    @property
    def what(self) -> str:
        """The result that it is about."""
        return self.expectation.what

    @property
    def message(self) -> str:
        """Where the scenario says so, and what is told."""
        return f"{self.expectation.place}: {self.told}"

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"what": self.what, **self.condition, "actual": self.actual, "passed": self.passed}


class Expectation(NamedTuple):
    """A condition on a result.

    Attributes
    ----------
    what : str
        ``"makespan"``, ``"utilisation.gpu0"``.
    condition : dict
        Values in base units, or relative to other runs.
    document, loc
        Where the scenario says so.
    """

    what: str
    condition: Mapping[str, Given]
    document: Document
    loc: Loc

    @property
    def place(self) -> Place:
        """Where the scenario says so."""
        return self.document.place(self.loc)

    @property
    def in_file(self) -> bool:
        """Whether the file says so, not a setting on the command line."""
        return self.place.line > 0

    @property
    def table(self) -> Path | None:
        """The table of ops that a schedule is held to."""
        if RESULTS[self._split()[0]].unit is not FILE:
            return None
        with self.document.placing(*self.loc):
            return self.document.file(str(self.condition["equals"]))

    def check_name(self, known: Mapping[str, Sequence[str]], *, with_table: bool = True) -> None:
        """Refuse names that the run will not have, before it runs.

        Parameters
        ----------
        known : mapping of str to sequence of str
            Names of ``device``, ``link``, ``op`` and ``recovery``.
        with_table : bool
            Whether the table of a schedule has to be there.

        Raises
        ------
        ScenarioError
            Naming the nearest known one.
        """
        kind, name = self._split()
        of = RESULTS[kind].of
        if of and name and name not in known[of]:
            raise self._unknown(self.loc, of, name, known[of])
        if RESULTS[kind].unit is ORDER:
            listed = self.condition["equals"]
            assert isinstance(listed, list)
            for i, op in enumerate(listed):
                if op not in known["op"]:
                    raise self._unknown((*self.loc, i), "op", op, known["op"])
                if op in listed[:i]:
                    raise self.document.error((*self.loc, i), f"names the op {op!r} twice")
        if with_table and (table := self.table) is not None:
            with self.document.placing(*self.loc):
                if not table.exists():
                    write = "write it with `sim check --update` (pytest: --sim-update)"
                    raise InputError(f"{self.condition['equals']}: no such file; {write}")
                read_bytes(table, head=1)

    def on(self, seen_as: Callable[[str], str]) -> Expectation:
        """Return the same with the names devices and ops have in a folded run (`sim.machine.folding`)."""
        kind, name = self._split()
        condition = self.condition
        if RESULTS[kind].unit is ORDER:
            condition = {key: [*map(seen_as, ops)] for key, ops in condition.items() if isinstance(ops, list)}
        what = f"{kind}.{seen_as(name)}" if name else kind
        return self._replace(what=what, condition=condition)

    def _unknown(self, loc: Loc, of: str, name: str, known: Sequence[str]) -> ScenarioError:
        return self.document.error(loc, f"unknown {of} {name!r}{hint(name, known)}", key=True)

    def hold(
        self, run: Run, other: Callable[[str], Run], *, new_tables: bool = False, unrecorded: str = ""
    ) -> Outcome:
        """Compare with what came out.

        Parameters
        ----------
        run : Run
        other : callable
            Returns the run of a label, for what is expected beside it.
        new_tables : bool
            Whether a table of ops need not have the run yet, or not be there: then it does not hold.
        unrecorded : str
            Of a run whose schedule is held to no table: how commands name it, for how to find what moved.

        Raises
        ------
        ScenarioError
            The run has no such result (a pipeline's bubble, without a pipeline; the end of what never ran).
        """
        result = RESULTS[self._split()[0]]
        if result.unit is FILE:
            return self._hold_schedule(run, new_tables=new_tables)
        actual = self._result_of(run)
        references = {
            given.run: self._result_of(other(given.run), f"the run {given.run!r}")
            for given in self.condition.values()
            if isinstance(given, Relative) and given.run
        }
        condition = resolved(self.condition, references)
        if isinstance(actual, list):
            listed = condition["equals"]
            assert isinstance(listed, list)
            actual = [op for op in actual if op in set(listed)]
        words = {"equals": "", "tolerance": "give or take ", "at_most": "at most ", "at_least": "at least "}
        beside = {
            key: f" ({given})"
            for key, given in self.condition.items()
            if isinstance(given, Relative) and given.run
        }
        wanted = ", ".join(
            words[key] + result.unit.show(value) + beside.get(key, "") for key, value in condition.items()
        )
        passed = holds(actual, condition)
        told = f"{self.what} is {result.unit.show(actual)}, expected {wanted}"
        if not passed:
            told += self._why(actual, condition, run)
            if self.what == "makespan" and unrecorded and not references:
                record = f"`sim run {unrecorded} --ops golden.csv` where this still holds"
                told += f"\n  what moved is unknown, as no schedule is recorded: {record}, then "
                told += f"`sim diff golden.csv {unrecorded}`"
        return Outcome(self, condition, actual, passed, told, references)

    def _why(self, actual: Any, condition: Mapping[str, Any], run: Run) -> str:
        """Say what held up an op, or was in memory, on further lines."""
        from scenarios.expect.why_not import held_at_the_peak, why_not_at

        kind, name = self._split()
        if kind == "peak_memory":
            return held_at_the_peak(run.trace, name, actual)
        if kind == "start":
            meant = min(condition.get("equals", actual), condition.get("at_most", actual))
            return why_not_at(run.trace, run.policy, name, meant) if meant < actual else ""
        if not isinstance(actual, list):
            return ""
        missing = [op for op in condition["equals"] if op not in actual]
        if missing:
            return f"\n  {missing[0]!r} does not run{f' on {name}' if name else ''}"
        early, late = next((a, b) for a, b in zip(actual, condition["equals"], strict=True) if a != b)
        start = RESULTS["start"]
        at, then = (int(start.get(run.summary, run.trace, op) or 0) for op in (early, late))  # type: ignore
        if at == then:
            return f"\n  {early!r} comes before {late!r}, and both start at {start.unit.show(at)}"
        told = f"{early!r} starts at {start.unit.show(at)}, before {late!r}, which starts at"
        return f"\n  {told} {start.unit.show(then)}" + why_not_at(run.trace, run.policy, late, at)

    def _result_of(self, run: Run, whose: str = "this run") -> Any:
        kind, name = self._split()
        if (folding := run.trace.job.machine.folding) is not None:  # of the other run
            name = folding.seen_as(name)
        try:
            actual = RESULTS[kind].get(run.summary, run.trace, name)
        except KeyError:  # a device or link that the other run has not
            actual = None
        if actual is None:
            raise self.document.error(self.loc, f"{whose} has no such result", key=True)
        return actual

    def _hold_schedule(self, run: Run, *, new_tables: bool) -> Outcome:
        from sim.diff.golden import against_table
        from sim.diff.ops_table import has_run

        assert self.table is not None
        golden = str(self.condition["equals"])
        with self.document.placing(*self.loc):
            if new_tables and not has_run(self.table, run.policy):
                return Outcome(self, {"equals": golden}, "", False, f"{self.what} is not in {golden} yet")
            differs = against_table(run.trace, self.table, run.policy)
        told = "\n  ".join([f"{self.what} is not that of {golden}", *differs])
        actual = "; ".join(line.strip() for line in differs) or golden
        return Outcome(self, {"equals": golden}, actual, not differs, told)

    def _split(self) -> tuple[str, str]:
        kind, _, name = self.what.partition(".")
        return kind, name
