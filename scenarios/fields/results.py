"""Results of a run that a scenario may name, in the units that people write, with their summary keys.

::

    makespan              of the run            `RESULTS` lists all
    peak_memory.gpu0      of a device           also of links, and of the recoveries of a training run
    start.conv            of an op; conv[2] in the third iteration
    order, order.gpu0     of the run, or of one device
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import numpy as np
from pydantic import Field

from devices.describe.quantities import Whole
from sim.base import units
from sim.base.arrays import IntArray
from sim.base.errors import (
    InfeasibleError,
    InputError,
    OutOfMemoryError,
    SimError,
    StuckError,
    error_path,
    hint,
)
from sim.base.options import check_value
from sim.graph.attributes import flag
from sim.job.job import Job
from sim.objectives import OBJECTIVES
from sim.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axis import XAxis, YAxis

Summary = Mapping[str, Any]
Value = Any
"""A result: int, float, str or list of str."""


class Unit(NamedTuple):
    """A unit: how values are read from a scenario, and shown exactly or rounded (`brief`)."""

    read: Callable[[Any], Value]
    show: Callable[[Any], str]
    brief: Callable[[Any], str] | None = None


def _names(value: Any) -> list[str]:
    if not isinstance(value, list) or not value:
        raise InputError(f"{value!r} is not a list of ops, as in [a, b, c]")
    return [str(item) for item in value]


_number: Final = partial(check_value, float)


def _part(value: Any) -> float:
    """Return a number that may be written as a percentage, even above 100."""
    if isinstance(value, str) and value.endswith("%"):
        with suppress(ValueError):
            return float(value[:-1]) / 100
    if isinstance(value, str):
        raise InputError(f"{value!r} is neither a number nor a percentage, as in 25%")
    return float(_number(value))


def _percent(value: Any) -> str:
    return f"{100 * value:.1f}%"


DONE: Final = "done"
OUT_OF_MEMORY: Final = "out of memory"
OUTCOMES: Final = (DONE, OUT_OF_MEMORY, "stuck", "an op failed", "cannot be built")
"""How a run may end, or why it does not start."""


def outcome_of(error: SimError) -> str:
    """Return the member of `OUTCOMES` that an error belongs to.

    Examples
    --------
    >>> outcome_of(InfeasibleError("no order fits"))
    'cannot be built'
    """
    if isinstance(error, (InputError, InfeasibleError)):
        return "cannot be built"
    if isinstance(error, OutOfMemoryError):
        return OUT_OF_MEMORY
    return "stuck" if isinstance(error, StuckError) else "an op failed"


_exact_duration = partial(units.format_duration, digits=None)
_DURATION = Unit(partial(units.parse_duration, what=""), _exact_duration, units.format_duration)


def exact_bytes(nbytes: int) -> str:
    """Write all digits of an amount of data, with those prefixes, SI or IEC, that need fewer."""
    return min((units.format_bytes(nbytes, iec=iec, digits=None) for iec in (False, True)), key=len)


_BYTES = Unit(partial(units.parse_bytes, what=""), exact_bytes, partial(units.format_bytes, iec=True))
_ENERGY = Unit(
    partial(units.parse_energy, what=""), partial(units.format_energy, digits=None), units.format_energy
)
SHARE = Unit(partial(units.parse_fraction, what=""), "{:.10g}".format, _percent)
_GAP = Unit(_part, lambda value: f"{100 * value:.10g}%", _percent)
_COUNT = Unit(partial(check_value, Whole), str)
_NUMBER = Unit(_number, "{:.10g}".format, lambda value: f"{value:,.0f}" if value >= 1000 else f"{value:.4g}")
_MS = Unit(
    lambda value: units.parse_duration(value, what="") / units.NS_PER_MS,
    lambda value: _exact_duration(round(value * units.NS_PER_MS)),
    lambda value: units.format_duration(round(value * units.NS_PER_MS)),
)


def _goodput(value: Any) -> float:
    """Return a share (of a training run), or a rate (of served requests)."""
    if isinstance(value, str) and value.endswith("/s"):
        return units.parse_rate(value, what="")
    return units.parse_fraction(value, what="")


_GOODPUT = Unit(_goodput, "{:.10g}".format, "{:.4g}".format)
FLAG = Unit(flag, lambda value: str(value).lower())
WORD = Unit(str, str)
FILE = Unit(partial(check_value, Annotated[str, Field(min_length=1)]), str)
OUTCOME = Unit(partial(check_value, Literal[OUTCOMES]), str)
ORDER = Unit(_names, lambda value: f"[{', '.join(value)}]")


class _Result(NamedTuple):
    """A result that a scenario may have expectations of.

    Attributes
    ----------
    unit : Unit
    part : str
        What is named after the dot: ``"device"``, ``"link"``, ``"op"``, ``"recovery"``, or nothing.
    key : str
        Key in the summary, or in its part for the device, link or pipeline; for an op, the column.
    may_be_whole : bool
        Whether the name may be left out, which means the whole run.
    """

    unit: Unit
    part: str
    key: str
    may_be_whole: bool = False

    @property
    def is_amount(self) -> bool:
        """Whether values can be ordered as smaller and larger."""
        return self.unit not in (FILE, ORDER, WORD, OUTCOME, FLAG)

    def read_text(self, text: str) -> Value:
        """Return a value in base units from text.

        Raises
        ------
        InputError
            The text has no unit, or a wrong one.
        """
        plain = {"true": True, "false": False}.get(text) if self.unit is FLAG else _plain_number(text)
        return self.unit.read(text if plain is None else plain)

    def get(self, summary: Summary, trace: Trace, name: str) -> Value | None:
        """Return the value of a run, or None if the run has no such result."""
        if self.unit is ORDER:
            executed = trace.executed
            if name:
                executed = executed & (trace.device == trace.job.machine.device_index(name))
            return row_names(trace, np.flatnonzero(executed))
        if self.unit is OUTCOME:
            return "an op failed" if trace.failed else DONE
        if self.unit is FILE:
            return None
        if self.part == "op":
            row = row_of(trace, name)
            return None if row is None else int(trace.tasks[self.key][row])
        result: Any = summary
        if self.part == "recovery" and not name:
            return summary.get("serving", {}).get("request_goodput")
        if self.part == "recovery":
            result = summary["training_run"]["recovery"][name]
        elif self.part:
            result = summary[f"{self.part}s"][name]
        if self.key in OBJECTIVES:
            return OBJECTIVES[self.key][0](trace)
        if self.key == "exposed_ns":
            from sim.explain.communication import exposed_communication
            from sim.explain.derived import DerivedColumns

            return sum(exposed_communication(DerivedColumns(trace)).get(name, {}).values())
        for part in self.key.split("."):
            result = (result or {}).get(part)
        return result


RESULTS: Final[Mapping[str, _Result]] = {
    "outcome": _Result(OUTCOME, "", ""),
    "makespan": _Result(_DURATION, "", "makespan_ns"),
    "lower_bound": _Result(_DURATION, "", "lower_bound_ns"),
    "gap": _Result(_GAP, "", "gap"),
    "weighted_tardiness": _Result(_DURATION, "", "weighted_tardiness_ns"),
    "mean_flow_time": _Result(_DURATION, "", "mean_flow_time_ns"),
    "energy": _Result(_ENERGY, "", "energy_pj"),
    "critical_path": _Result(_DURATION, "", "critical_path_ns"),
    "tasks": _Result(_COUNT, "", "tasks"),
    "micro_batches_per_s": _Result(_NUMBER, "", "micro_batches_per_s"),
    "samples_per_s": _Result(_NUMBER, "", "samples_per_s"),
    "latency": _Result(_DURATION, "", "pipeline.latency_ns.max"),
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
    "exposed_communication": _Result(_DURATION, "device", "exposed_ns"),
    "utilisation": _Result(SHARE, "device", "utilisation"),
    "bubble": _Result(SHARE, "device", "bubble"),
    "peak_memory": _Result(_BYTES, "device", "peak_memory_bytes"),
    "peak_reserved": _Result(_BYTES, "device", "peak_reserved_bytes"),
    "sent": _Result(_BYTES, "link", "bytes"),
    "link_busy": _Result(_DURATION, "link", "busy_ns"),
    "pipeline_bubble": _Result(SHARE, "", "pipeline.bubble"),
    "makespan_bubble": _Result(SHARE, "", "pipeline.makespan_bubble"),
    "span_bubble": _Result(SHARE, "", "pipeline.span_bubble"),
    "bottleneck": _Result(WORD, "", "pipeline.bottleneck"),
    "step_time": _Result(_DURATION, "", "train.step_ns"),
    "tokens_per_s": _Result(_NUMBER, "", "train.tokens_per_s"),
    "mfu": _Result(SHARE, "", "train.mfu"),
    "step_memory": _Result(_BYTES, "", "train.peak_bytes"),
    "step_bubble": _Result(SHARE, "", "train.bubble"),
    "exposed": _Result(_DURATION, "", "train.exposed_ns"),
    "fits": _Result(FLAG, "", "train.fits"),
    "imbalance": _Result(_NUMBER, "", "experts.imbalance"),
    "fullest": _Result(WORD, "", "experts.fullest"),
    "dropped": _Result(_COUNT, "", "experts.dropped"),
    "mean_staleness": _Result(_NUMBER, "", "staleness.mean"),
    "max_staleness": _Result(_COUNT, "", "staleness.max"),
    "goodput": _Result(_GOODPUT, "recovery", "goodput", may_be_whole=True),
    **{
        f"{metric}_{stat}": _Result(_MS, "", f"serving.{stat}_{metric}_ms")
        for metric in ("ttft", "tpot", "itl", "e2el")
        for stat in ("mean", "median", "p99")
    },
    "request_throughput": _Result(_NUMBER, "", "serving.request_throughput"),
    "output_throughput": _Result(_NUMBER, "", "serving.output_throughput"),
    "hit_share": _Result(SHARE, "", "serving.hit_share"),
    "preemptions": _Result(_COUNT, "", "serving.preemptions"),
    "replicas": _Result(_COUNT, "", "serving.replicas"),
    "gpus": _Result(_COUNT, "", "serving.gpus"),
    "interruptions": _Result(_COUNT, "recovery", "interruptions"),
    "run_end": _Result(_DURATION, "recovery", "end_ns"),
    "run_steps": _Result(_COUNT, "recovery", "steps"),
    "ready": _Result(_DURATION, "op", "ready_ns"),
    "issue": _Result(_DURATION, "op", "issue_ns"),
    "start": _Result(_DURATION, "op", "start_ns"),
    "end": _Result(_DURATION, "op", "end_ns"),
    "order": _Result(ORDER, "device", "op", may_be_whole=True),
    "schedule": _Result(FILE, "", ""),
}
"""All results: of the run, of ``.DEVICE``, ``.LINK``, ``.OP``, or of a training run's ``.RECOVERY``."""


WORDS: Final = {"equals": "", "tolerance": "give or take ", "at_most": "at most ", "at_least": "at least "}
"""Key of a condition -> the words before its value."""


def result_named(name: str) -> _Result:
    """Return the result of a name such as ``peak_memory.gpu0``."""
    return RESULTS[name.partition(".")[0]]


def check_named(full_name: str) -> None:
    """Raise if the result is unknown, or if a name after its dot is missing or superfluous.

    Raises
    ------
    InputError
    """
    kind, _, name = full_name.partition(".")
    if kind not in RESULTS:
        raise InputError(f"unknown result {kind!r}{hint(kind, RESULTS)}")
    result = RESULTS[kind]
    if result.part and not name and not result.may_be_whole:
        article = "an" if result.part == "op" else "a"
        raise InputError(f"is of {article} {result.part}: write {kind}.NAME")
    if name and not result.part:
        raise InputError(f"is of the whole run: write {kind}")


def holds(actual: Any, condition: Mapping[str, Any]) -> bool:
    """Whether a value meets a condition in base units."""
    if "tolerance" in condition:
        equal = abs(actual - condition["equals"]) <= condition["tolerance"]
    else:
        equal = actual == condition.get("equals", actual)
    return bool(equal and condition.get("at_least", actual) <= actual <= condition.get("at_most", actual))


def _plain_number(text: str) -> int | float | None:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return None


def column_of_result(full_name: str) -> str:
    """Return the column of a result in a table of runs: ``makespan_ns``, ``gpu0.peak_memory_bytes``."""
    kind, _, name = full_name.partition(".")
    return f"{name}.{RESULTS[kind].key}" if name else RESULTS[kind].key


def result_of_run(full_name: str, summary: Summary, trace: Trace) -> Value:
    """Return a result of a run by its name.

    Raises
    ------
    InputError
        The run has no such result.
    """
    with error_path(full_name):
        check_named(full_name)
    kind, _, name = full_name.partition(".")
    result = None
    with suppress(KeyError):  # this run has no such device or link
        result = RESULTS[kind].get(summary, trace, name)
    if result is None:
        raise InputError(f"{full_name}: {no_such_result(full_name)}")
    return result


def no_such_result(full_name: str, owner: str = "this run") -> str:
    """Return a message that a run lacks a result, and what to write if it is a result of a part."""
    kind, _, name = full_name.partition(".")
    result = RESULTS[kind]
    reason = OBJECTIVES.get(result.key, ("", ""))[1]
    if result.part and not name:
        reason = f"{full_name}.NAME is that of one {result.part}"
    return f"{owner} has no such result" + (f"; {reason}" if reason else "")


def shown_result(name: str, value: Value) -> str:
    """Return a result as text for people, rounded and with its unit."""
    # the goodput of a recovery is a share, that of a server a rate
    unit = SHARE if name.startswith("goodput.") else result_named(name).unit
    return (unit.brief or unit.show)(value)


def label_result(axis: XAxis | YAxis, name: str) -> None:
    """Label an axis with a result, with ticks at round values in its unit."""
    from matplotlib.ticker import MaxNLocator

    from sim.plot.memory import byte_unit

    unit = result_named(name).unit

    class Round(MaxNLocator):
        def tick_values(self, vmin: float, vmax: float) -> Any:
            one = byte_unit(int(vmax))[0] if unit is _BYTES else 1
            return one * np.asarray(super().tick_values(vmin / one, vmax / one))

    axis.set_label_text(name, parse_math=False)
    axis.set_major_locator(Round(nbins=5 if axis.axis_name == "x" else 8, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(lambda y, _: shown_result(name, round(y) if y > 100 else y) if y else "0")


def task_names(job: Job) -> set[str]:
    """Return the names of all tasks: of the op, with the iteration if there are several."""
    ops = job.graph.op_names
    if job.iterations == 1:
        return set(ops)
    return {f"{op}[{i}]" for i in range(job.iterations) for op in ops}


def row_names(trace: Trace, rows: IntArray) -> list[str]:
    """Return the name of the task at each of some rows of the trace."""
    names, tasks = trace.job.graph.op_names, trace.tasks
    ops = tasks["op"][rows].tolist()
    if trace.job.iterations == 1:
        return [names[op] for op in ops]
    return [f"{names[op]}[{i}]" for op, i in zip(ops, tasks["iteration"][rows].tolist(), strict=True)]


def row_of(trace: Trace, name: str) -> int | None:
    """Return the first row of a task that executed, or None."""
    op, _, iteration = name[:-1].rpartition("[") if trace.job.iterations > 1 else (name, "", "0")
    try:
        this = (trace.tasks["op"] == trace.job.graph.index(op)) & (trace.tasks["iteration"] == int(iteration))
    except (InputError, ValueError):  # another run has a task of this name
        return None
    rows = np.flatnonzero(this & trace.executed)
    return int(rows[0]) if rows.size else None


# ----------------------------------------------------------------------------------------------------------
# Throughput of a run: micro-batches of a pipeline, samples of a model with a batch size.

RATES: Final = ("micro_batches_per_s", "samples_per_s")


def throughput(summary: Mapping[str, Any], iterations: int, batch: int | None) -> dict[str, float]:
    """Return those of `RATES` that are known, over all iterations.

    Parameters
    ----------
    summary : mapping
        Summary of the run, with the keys ``pipeline`` and ``train`` if it has them.
    iterations : int
    batch : int or None
        Samples per iteration.

    Examples
    --------
    >>> throughput({"makespan_ns": 2_000_000_000}, iterations=3, batch=32)
    {'samples_per_s': 48.0}
    """
    if (train := summary.get("train")) is not None:
        return {rate: train[rate] for rate in RATES if rate in train}
    if not summary["makespan_ns"]:
        return {}
    seconds = summary["makespan_ns"] / units.NS_PER_S
    if (pipeline := summary.get("pipeline")) is not None:
        rates = {"micro_batches_per_s": iterations * pipeline["micro_batches"] / seconds}
        batch = pipeline.get("batch")
        return rates if batch is None else {"samples_per_s": iterations * batch / seconds, **rates}
    return {} if batch is None else {"samples_per_s": iterations * batch / seconds}
