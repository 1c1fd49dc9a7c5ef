"""What has to come out of a run: ``expect:`` in a scenario, read into conditions and held against a result.

::

    expect:
      makespan: 45us                                  a plain value: equals
      utilisation.gpu0: {at_least: 80%}               of a device
      start.conv: {equals: 10us, tolerance: 1us}      of an op; conv[2] in the third iteration
      order: [a, b, c]                                these ops start in this order

`RESULTS` lists what may be expected. Values have the units of the result, a tolerance in per cent is a
share of what it should equal, and nothing is compared with a hidden epsilon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple

from scenarios.fields.policy_fields import Condition
from scenarios.file.document import Document, Loc
from sim.job.job import Job
from sim.trace import Trace
from sim.words.errors import InputError, ScenarioError, hint
from sim.words.units import format_bytes, format_duration, parse_bytes, parse_duration, parse_fraction

__all__ = ["RESULTS", "Expectation", "Outcome", "read_expectations", "task_names"]

Summary = Mapping[str, Any]
Value = int | float | str | list[str]


class _Unit(NamedTuple):
    """How values of a sort are read from a scenario and shown to a reader."""

    read: Callable[[Any], Value]
    show: Callable[[Any], str]


def _whole(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(f"{value!r} is not a whole number")
    return value


def _names(value: Any) -> list[str]:
    if not isinstance(value, list) or not value:
        raise InputError(f"{value!r} is not a list of ops, as in [a, b, c]")
    return [str(item) for item in value]


_DURATION = _Unit(
    lambda value: parse_duration(value, what=""), lambda value: format_duration(value, digits=None)
)
_BYTES = _Unit(lambda value: parse_bytes(value, what=""), lambda value: format_bytes(value, digits=None))
_SHARE = _Unit(lambda value: parse_fraction(value, what=""), lambda value: f"{value:.10g}")
_COUNT = _Unit(_whole, str)
_WORD = _Unit(str, str)
_ORDER = _Unit(_names, lambda value: f"[{', '.join(value)}]")


class _Result(NamedTuple):
    """One thing that may be expected.

    Attributes
    ----------
    unit : _Unit
    of : str
        What must be named behind the dot: ``"device"``, ``"link"``, ``"op"``, ``"recovery"``, or nothing.
    key : str
        Where it is in the summary, or in that of the device, link or pipeline; of an op: the column.
    """

    unit: _Unit
    of: str
    key: str

    def get(self, summary: Summary, trace: Trace, name: str) -> Value | None:
        """Return what came out; None: the run has no such result."""
        if self.unit is _ORDER:
            return _row_names(trace)
        if self.of == "op":
            names = _row_names(trace)
            return int(trace.tasks[self.key][names.index(name)]) if name in names else None
        found: Any = summary
        if self.of == "recovery":
            found = summary["training_run"]["recovery"][name]
        elif self.of:
            found = summary[f"{self.of}s"][name]
        part, dot, key = self.key.rpartition(".")
        return (found.get(part) or {}).get(key) if dot else found[key]


RESULTS: Final[Mapping[str, _Result]] = {
    "makespan": _Result(_DURATION, "", "makespan_ns"),
    "lower_bound": _Result(_DURATION, "", "lower_bound_ns"),
    "critical_path": _Result(_DURATION, "", "critical_path_ns"),
    "tasks": _Result(_COUNT, "", "tasks"),
    "failed": _Result(_COUNT, "", "failures.failed"),
    "aborted": _Result(_COUNT, "", "failures.aborted"),
    "never_ran": _Result(_COUNT, "", "failures.never_ran"),
    "steps": _Result(_COUNT, "", "failures.steps"),
    "steps_lost": _Result(_COUNT, "", "failures.steps_lost"),
    "busy": _Result(_DURATION, "device", "busy_ns"),
    "span": _Result(_DURATION, "device", "span_ns"),
    "idle": _Result(_DURATION, "device", "idle_ns"),
    "compute": _Result(_DURATION, "device", "time_ns.compute"),
    "communicate": _Result(_DURATION, "device", "time_ns.communicate"),
    "wait": _Result(_DURATION, "device", "time_ns.wait"),
    "utilisation": _Result(_SHARE, "device", "utilisation"),
    "bubble": _Result(_SHARE, "device", "bubble"),
    "peak_memory": _Result(_BYTES, "device", "peak_memory_bytes"),
    "peak_reserved": _Result(_BYTES, "device", "peak_reserved_bytes"),
    "sent": _Result(_BYTES, "link", "bytes"),
    "link_busy": _Result(_DURATION, "link", "busy_ns"),
    "pipeline_bubble": _Result(_SHARE, "", "pipeline.bubble"),
    "makespan_bubble": _Result(_SHARE, "", "pipeline.makespan_bubble"),
    "span_bubble": _Result(_SHARE, "", "pipeline.span_bubble"),
    "bottleneck": _Result(_WORD, "", "pipeline.bottleneck"),
    "goodput": _Result(_SHARE, "recovery", "goodput"),
    "interruptions": _Result(_COUNT, "recovery", "interruptions"),
    "run_end": _Result(_DURATION, "recovery", "end_ns"),
    "run_steps": _Result(_COUNT, "recovery", "steps"),
    "ready": _Result(_DURATION, "op", "ready_ns"),
    "issue": _Result(_DURATION, "op", "issue_ns"),
    "start": _Result(_DURATION, "op", "start_ns"),
    "end": _Result(_DURATION, "op", "end_ns"),
    "order": _Result(_ORDER, "", "op"),
}
"""What may be expected: of the run, of ``.DEVICE``, ``.LINK``, ``.OP``, or of training ``.RECOVERY``."""


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
        if RESULTS[kind].unit is _ORDER:
            listed = self.condition["equals"]
            assert isinstance(listed, list)
            for i, op in enumerate(listed):
                if op not in known["op"]:
                    raise self._unknown((*self.loc, i), "op", op, known["op"])
                if op in listed[:i]:
                    raise self.document.error((*self.loc, i), f"names the op {op!r} twice")

    @property
    def in_file(self) -> bool:
        """Whether the file says so, not a setting on the command line."""
        return self.document.place(self.loc).line > 0

    def _unknown(self, loc: Loc, of: str, name: str, known: Sequence[str]) -> ScenarioError:
        return self.document.error(loc, f"unknown {of} {name!r}{hint(name, known)}", key=True)

    def hold(self, summary: Summary, trace: Trace) -> Outcome:
        """Compare with what came out.

        Parameters
        ----------
        summary : mapping
            As `sim.metrics.summary` returns it.
        trace : Trace

        Raises
        ------
        ScenarioError
            The run has no such result (a pipeline's bubble, without a pipeline; the end of what never ran).
        """
        kind, name = self._split()
        result = RESULTS[kind]
        actual = result.get(summary, trace, name)
        if actual is None:
            raise self.document.error(self.loc, "this run has no such result", key=True)
        if isinstance(actual, list):
            listed = self.condition["equals"]
            assert isinstance(listed, list)
            actual = [op for op in actual if op in set(listed)]
        passed = _holds(actual, self.condition)
        words = {"equals": "", "tolerance": "give or take ", "at_most": "at most ", "at_least": "at least "}
        wanted = ", ".join(words[key] + result.unit.show(value) for key, value in self.condition.items())
        place = self.document.place(self.loc)
        message = f"{place}: {self.what} is {result.unit.show(actual)}, expected {wanted}"
        return Outcome(self.what, self.condition, actual, passed, message)

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
            unit = _SHARE if key == "tolerance" and _is_share(given) else result.unit
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


def _check_consistent(values: Mapping[str, Any], unit: _Unit) -> None:
    if not values:
        raise InputError("says nothing; give equals, at_most or at_least")
    if "tolerance" in values and "equals" not in values:
        raise InputError("needs equals", path=("tolerance",))
    if unit is _ORDER and set(values) != {"equals"}:
        raise InputError("is a list of ops and nothing else")
    if unit is _WORD and set(values) != {"equals"}:
        raise InputError("is a name; it equals one or does not")
    if values.get("at_least", 0) > values.get("at_most", float("inf")):
        raise InputError("can never hold: at_least is more than at_most")


def _holds(actual: Any, condition: Mapping[str, Any]) -> bool:
    if "tolerance" in condition:
        equal = abs(actual - condition["equals"]) <= condition["tolerance"]
    else:
        equal = actual == condition.get("equals", actual)
    return bool(equal and condition.get("at_least", actual) <= actual <= condition.get("at_most", actual))


def _row_names(trace: Trace) -> list[str]:
    """Return what each row of the trace is called, in start order."""
    names = task_names(trace.job)
    tasks = trace.tasks["iteration"] * len(trace.job.graph) + trace.tasks["op"]
    return [names[task] for task in tasks.tolist()]


def task_names(job: Job) -> list[str]:
    """Return what each task is called: the op, with the iteration if there are more than one."""
    ops = job.graph.op_names
    if job.iterations == 1:
        return list(ops)
    return [f"{op}[{i}]" for i in range(job.iterations) for op in ops]
