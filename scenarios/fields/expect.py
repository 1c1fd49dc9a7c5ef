"""What has to come out of a run: ``expect:`` in a scenario, read into conditions and held against a result.

::

    expect:
      makespan: 45us                                  a plain value: equals
      utilisation.gpu0: {at_least: 80%}               of a device
      start.conv: {equals: 10us, tolerance: 1us}      of an op; conv[2] in the third iteration
      order: [a, b, c]                                these ops start in this order
      schedule: golden.csv                            as in a table that `sim run --ops` wrote

`scenarios.fields.results.RESULTS` lists what may be expected. Values have the units of the result, a
tolerance in per cent is a share of what it should equal, and nothing is compared with a hidden epsilon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from scenarios.fields.policy_fields import Condition
from scenarios.fields.results import FILE, FLAG, ORDER, RESULTS, SHARE, WORD, Summary, Unit, Value
from scenarios.file.document import Document, Loc
from sim.files.reading import read_bytes
from sim.trace import Trace
from sim.words.errors import InputError, ScenarioError, hint

__all__ = ["Expectation", "Outcome", "holds", "read_expectations"]


class Outcome(NamedTuple):
    """One expectation, and what came out.

    Attributes
    ----------
    what : str
        ``"makespan"``, ``"utilisation.gpu0"``.
    condition : dict
        ``equals``, ``at_most``, ``at_least``, ``tolerance`` in base units (ns, bytes, shares).
    actual : int, float or list of str
    passed : bool
    message : str
        A sentence: what was expected, what came out, and where the scenario says so.
    """

    what: str
    condition: Mapping[str, Value]
    actual: Value
    passed: bool
    message: str

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"what": self.what, **self.condition, "actual": self.actual, "passed": self.passed}


class Expectation(NamedTuple):
    """A condition on a result.

    Attributes
    ----------
    what : str
    condition : dict
        Values in base units.
    document, loc
        Where the scenario says so.
    """

    what: str
    condition: Mapping[str, Value]
    document: Document
    loc: Loc

    def check_name(self, known: Mapping[str, Sequence[str]]) -> None:
        """Refuse names that the run will not have, before it runs.

        Parameters
        ----------
        known : mapping of str to sequence of str
            Names of ``device``, ``link``, ``op`` and ``recovery``.

        Raises
        ------
        ScenarioError
            Naming the nearest known one.
        """
        kind, name = self._split()
        of = RESULTS[kind].of
        if of and name not in known[of]:
            raise self._unknown(self.loc, of, name, known[of])
        if RESULTS[kind].unit is ORDER:
            listed = self.condition["equals"]
            assert isinstance(listed, list)
            for i, op in enumerate(listed):
                if op not in known["op"]:
                    raise self._unknown((*self.loc, i), "op", op, known["op"])
                if op in listed[:i]:
                    raise self.document.error((*self.loc, i), f"names the op {op!r} twice")
        if RESULTS[kind].unit is FILE:
            with self.document.placing(*self.loc):
                read_bytes(self._table, head=1)

    def on(self, seen_as: Callable[[str], str]) -> Expectation:
        """Return the same with the names devices and ops have in a folded run (`sim.machine.folding`)."""
        kind, name = self._split()
        condition = self.condition
        if RESULTS[kind].unit is ORDER:
            condition = {key: [*map(seen_as, ops)] for key, ops in condition.items() if isinstance(ops, list)}
        what = f"{kind}.{seen_as(name)}" if name else kind
        return self._replace(what=what, condition=condition)

    @property
    def in_file(self) -> bool:
        """Whether the file says so, not a setting on the command line."""
        return self.document.place(self.loc).line > 0

    def _unknown(self, loc: Loc, of: str, name: str, known: Sequence[str]) -> ScenarioError:
        return self.document.error(loc, f"unknown {of} {name!r}{hint(name, known)}", key=True)

    @property
    def _table(self) -> Path:
        """The table of ops that it names."""
        return self.document.file(str(self.condition["equals"]))

    def hold(self, summary: Summary, trace: Trace, policy: str | None = None) -> Outcome:
        """Compare with what came out.

        Parameters
        ----------
        summary : mapping
            As `sim.metrics.summary` returns it.
        trace : Trace
        policy : str, optional
            What the run is called; default: the class of its policy.

        Raises
        ------
        ScenarioError
            The run has no such result (a pipeline's bubble, without a pipeline; the end of what never ran).
        """
        kind, name = self._split()
        result = RESULTS[kind]
        if result.unit is FILE:
            return self._hold_schedule(trace, policy)
        actual = result.get(summary, trace, name)
        if actual is None:
            raise self.document.error(self.loc, "this run has no such result", key=True)
        if isinstance(actual, list):
            listed = self.condition["equals"]
            assert isinstance(listed, list)
            actual = [op for op in actual if op in set(listed)]
        passed = holds(actual, self.condition)
        words = {"equals": "", "tolerance": "give or take ", "at_most": "at most ", "at_least": "at least "}
        wanted = ", ".join(words[key] + result.unit.show(value) for key, value in self.condition.items())
        place = self.document.place(self.loc)
        message = f"{place}: {self.what} is {result.unit.show(actual)}, expected {wanted}"
        return Outcome(self.what, self.condition, actual, passed, message)

    def _hold_schedule(self, trace: Trace, policy: str | None) -> Outcome:
        from sim.diff.golden import against_table

        with self.document.placing(*self.loc):
            differs = against_table(trace, self._table, policy)
        golden, place = self.condition["equals"], self.document.place(self.loc)
        message = f"{place}: {self.what} is not that of {golden}: {differs}"
        return Outcome(self.what, self.condition, differs or golden, not differs, message)

    def _split(self) -> tuple[str, str]:
        kind, _, name = self.what.partition(".")
        return kind, name


def read_expectations(
    expect: Mapping[str, Condition], document: Document, loc: Loc
) -> tuple[Expectation, ...]:
    """Read the values of ``expect:`` into base units.

    Raises
    ------
    ScenarioError
        An unknown result, a value without its unit, no condition, or two that contradict each other.
    """
    return tuple(
        Expectation(what, _read(what, condition, document, (*loc, what)), document, (*loc, what))
        for what, condition in expect.items()
    )


def _read(what: str, condition: Condition, document: Document, loc: Loc) -> dict[str, Value]:
    """Return the values in a fixed order and in base units, a relative tolerance made absolute."""
    kind, _, name = what.partition(".")
    if kind not in RESULTS:
        raise document.error(loc, f"unknown result {kind!r}{hint(kind, RESULTS)}", key=True)
    result = RESULTS[kind]
    if result.of and not name:
        article = "an" if result.of == "op" else "a"
        raise document.error(loc, f"is of {article} {result.of}: write {kind}.NAME", key=True)
    if name and not result.of:
        raise document.error(loc, f"is of the whole run: write {kind}", key=True)
    values: dict[str, Value] = {}
    for key in (key for key in Condition.model_fields if key in condition.model_fields_set):
        with document.placing(*loc, key):
            given = getattr(condition, key)
            unit = SHARE if key == "tolerance" and _is_share(given) else result.unit
            values[key] = unit.read(given)
    with document.placing(*loc):
        _check_consistent(values, result.unit)
    if _is_share(condition.tolerance):
        equals = values["equals"]
        assert isinstance(equals, int | float)
        share = Fraction(str(values["tolerance"])) * Fraction(str(equals))
        values["tolerance"] = float(share) if isinstance(equals, float) else int(share)
    return {key: values[key] for key in ("equals", "tolerance", "at_most", "at_least") if key in values}


def _is_share(given: Any) -> bool:
    return isinstance(given, str) and given.strip().endswith("%")


def _check_consistent(values: Mapping[str, Any], unit: Unit) -> None:
    if not values:
        raise InputError("says nothing; give equals, at_most or at_least")
    if "tolerance" in values and "equals" not in values:
        raise InputError("needs equals", path=("tolerance",))
    if unit is ORDER and set(values) != {"equals"}:
        raise InputError("is a list of ops and nothing else")
    if unit is WORD and set(values) != {"equals"}:
        raise InputError("is a name; it equals one or does not")
    if unit is FILE and set(values) != {"equals"}:
        raise InputError("is a file, and equals it or does not")
    if unit is FLAG and set(values) != {"equals"}:
        raise InputError("is true or false, and equals one of them")
    if values.get("at_least", 0) > values.get("at_most", float("inf")):
        raise InputError("can never hold: at_least is more than at_most")


def holds(actual: Any, condition: Mapping[str, Any]) -> bool:
    """Whether a value is what a condition in base units says."""
    if "tolerance" in condition:
        equal = abs(actual - condition["equals"]) <= condition["tolerance"]
    else:
        equal = actual == condition.get("equals", actual)
    return bool(equal and condition.get("at_least", actual) <= actual <= condition.get("at_most", actual))
