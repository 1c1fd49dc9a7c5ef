"""Traces as tables: one row per task, in words and plain units; transfers likewise, on request.

Columns of whole numbers stay whole: a value not given (a stage, a micro-batch) is missing, not -1.
Rows are in start order, and the same trace gives the same bytes in a file.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sim.base.arrays import UNSET, Codes, IntArray, group_pairs
from sim.base.errors import InputError, extra
from sim.base.files import atomic_path, write_bytes
from sim.base.units import NS_PER_MS, format_bytes, format_count, format_duration, format_energy
from sim.explain.failed_ops import attempt_lines, failure_text, late_lines
from sim.explain.idle import final_waits
from sim.explain.time_use import WORD_OF_REASON
from sim.graph.failures import DONE, STATUSES
from sim.objectives import OBJECTIVES
from sim.record.record import WAITS, Record

if TYPE_CHECKING:
    import pandas as pd


_MOST_DEVICES: Final = 20
"""Number of devices that all have a row; of more, equal ones share one."""
TABLE_ENDINGS: Final = (".csv", ".csv.gz", ".json", ".json.gz", ".parquet")


def task_table(trace: Record, *, transfers: bool = False) -> pd.DataFrame:
    """Return one row per task that ran.

    Parameters
    ----------
    trace : Trace
    transfers : bool
        Whether transfers have rows too: ``op`` is the tensor moved, ``kind`` is ``transfer``, and
        two more columns, ``source`` and ``destination``, name the devices; ``device``, ``stream`` and
        ``issuer`` are missing. A run without transfers has no such columns.

    Returns
    -------
    DataFrame
        ``op, kind, device, stream, issuer, iteration, micro_batch, stage, phase`` (missing if not
        given); ``ready_ns, issue_ns, start_ns, end_ns``; ``nbytes`` (of the outputs), ``flops``; and
        ``wait``, why it did not start when it was ready (`sim.record.record.WAITS`). With control flow also
        ``frame``, the loops and iterations it ran in (``outer:2/inner:0``), and ``dead``, whether it was
        skipped. If ops may fail also ``status``: ``done``, ``failed`` or ``aborted``.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("chain")
    >>> for name, inputs in {"a": [], "b": ["a"]}.items():
    ...     _ = b.op(name, inputs=inputs, duration_ns=10)
    >>> table = task_table(simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue()))
    >>> table[["op", "stream", "start_ns", "end_ns"]].to_csv(index=False).split()
    ['op,stream,start_ns,end_ns', 'a,gpu0/0,0,10', 'b,gpu0/0,10,20']
    """
    import pandas as pd

    def words(code: IntArray, vocabulary: Iterable[str]) -> pd.Categorical:
        """Return codes as words, with -1 as missing; a million rows take a megabyte, not strings."""
        result: pd.Categorical = pd.Categorical.from_codes(code, list(vocabulary))  # type: ignore[call-overload]
        return result

    def whole(values: IntArray) -> pd.arrays.IntegerArray:
        """Return whole numbers, with -1 as missing."""
        return pd.arrays.IntegerArray(values.astype(np.int64), values == UNSET)

    graph, machine, tasks, moved = trace.job.graph, trace.job.machine, trace.tasks, trace.transfers
    n, n_moved = len(trace), len(moved["id"]) if transfers else 0
    rows = np.arange(n + n_moved)
    if n_moved:  # a transfer comes before a task that starts at its instant
        rows = np.lexsort((rows < n, trace.of_rows("start_ns")))

    def column(of_tasks: IntArray, of_transfers: IntArray | int = UNSET) -> IntArray:
        """Return a column of all rows."""
        return np.concatenate((of_tasks, np.broadcast_to(of_transfers, len(moved["id"]))))[rows]

    op = tasks["op"]
    tensors = (graph.tensor_name(t) for t in moved["tensor"][:n_moved])
    names = np.array([*graph.op_names, *tensors], dtype=object)
    lanes, lane = trace.lanes
    issuers = [issuer.name for issuer in machine.issuers()]
    devices = [device.name for device in machine.devices]
    kinds, transfer = ([*graph.kinds, "transfer"], len(graph.kinds)) if n_moved else (graph.kinds, UNSET)
    columns: dict[str, object] = {
        "op": names[column(op, len(graph) + np.arange(len(moved["id"])))],
        "kind": words(column(graph.kind_code[op], transfer), kinds),
        "device": words(column(trace.device), devices),
        "stream": words(column(lane), lanes),
        "issuer": words(column(tasks["issuer"]), issuers),
        "iteration": column(tasks["iteration"], moved["iteration"]),
        "micro_batch": whole(column(graph.micro_batch[op])),
        "stage": whole(column(graph.stage[op])),
        "phase": words(column(graph.phase_code[op]), graph.phases),
        "ready_ns": column(tasks["ready_ns"], moved["ready_ns"]),
        "issue_ns": column(tasks["issue_ns"], moved["ready_ns"]),  # the engine issues it
        "start_ns": column(tasks["start_ns"], moved["start_ns"]),
        "end_ns": column(tasks["end_ns"], moved["end_ns"]),
        "nbytes": column(graph.outputs.sums(graph.tensor_nbytes)[op], moved["nbytes"]),
        "flops": column(graph.flops[op], 0),
        "wait": words(column(final_waits(trace), 0), WAITS),
    }
    for key in ("operator", "module"):  # of a recording
        if labels := graph.attribute(key):
            vocabulary, code = Codes[str](), np.full(len(graph), UNSET)
            code[[*labels]] = vocabulary.of(map(str, labels.values()))
            columns[key] = words(column(code[op]), vocabulary)
    if "frame" in tasks:
        columns["frame"] = words(column(tasks["frame"]), trace.frames)
        columns["dead"] = column(tasks["dead"], 0) != 0
    if "status" in trace.tasks:
        columns["status"] = words(column(trace.status, DONE), STATUSES)
    if n_moved:
        nowhere = np.full(n, UNSET)
        columns["source"] = words(column(nowhere, moved["source"]), devices)
        columns["destination"] = words(column(nowhere, moved["destination"]), devices)
    return pd.DataFrame(columns)


_FORMULA: Final = re.compile(r"'*[=+\-@\t\r]")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def csv_text(text: object) -> object:
    r"""Return a text in the form for a CSV file, which neither a spreadsheet nor a terminal will execute.

    Text that a spreadsheet would take for a formula gets a leading apostrophe, and control characters are
    escaped. `text_of_csv` is the inverse.

    Examples
    --------
    >>> csv_text("=cmd|x"), csv_text("a\x1b[2J"), csv_text("conv-1")
    ("'=cmd|x", 'a\\u001b[2J', 'conv-1')
    """
    if not isinstance(text, str):
        return text
    escaped = _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return f"'{escaped}" if _FORMULA.match(escaped) else escaped


def text_of_csv(text: str) -> str:
    """Return the original of a text written by `csv_text`."""
    original = text[1:] if text.startswith("'") and _FORMULA.match(text) else text
    return re.sub(r"\\u(00[0189][0-9a-f]|007f)", lambda match: chr(int(match[1], 16)), original)


def json_rows(rows: Iterable[Mapping[Any, Any]]) -> bytes:
    """Return rows as a list in JSON, one a line, in which numbers are exact."""
    return ("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n").encode()


def write_table(table: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write a table in the format given by the name's ending, whole or not at all.

    Parameters
    ----------
    table : DataFrame
    path : path
        ``.csv``, ``.json`` (a list of rows), either gzipped with ``.gz`` appended, or ``.parquet``.

    Raises
    ------
    InputError
        The path has another ending, or its directory does not exist.
    MissingExtraError
        Parquet without pyarrow.
    """
    name = Path(path).name.lower()
    if name.endswith((".csv", ".csv.gz")):
        text = io.StringIO()
        words = table.select_dtypes(exclude=["number", "bool"]).columns
        harmless = table.assign(**{name: table[name].map(csv_text) for name in words})
        harmless.to_csv(text, index=False, lineterminator="\n")
        write_bytes(path, text.getvalue().encode())
    elif name.endswith((".json", ".json.gz")):
        finite = table.replace([np.inf, -np.inf], np.nan).notna()  # JSON has no other numbers
        write_bytes(path, json_rows(table.astype(object).where(finite, None).to_dict("records")))
    elif name.endswith(".parquet"):
        with extra("parquet", "writing Parquet files"):
            import pyarrow  # noqa: F401
        with atomic_path(path) as temporary:
            table.to_parquet(temporary, engine="pyarrow", index=False)
    else:
        raise InputError(f"{path}: a table's name ends in {', '.join(TABLE_ENDINGS)}")


# ----------------------------------------------------------------------------------------------------------
# A summary for people: its first lines, and a row for each device; in terminals and notebooks.


def percent(share: float) -> str:
    """Return a share as a percentage with one decimal."""
    return f"{100 * share:.1f}%"


def size(nbytes: int) -> str:
    """Return an amount of memory."""
    return format_bytes(nbytes, iec=True)


def number_text(key: str, value: Any) -> str:
    """Return a number as text: its key gives the unit; without a unit it is a share or a count.

    Examples
    --------
    >>> [number_text(*each) for each in (("ns", 7), ("bytes", 2048), ("gap", 0.1), ("frees", 9000))]
    ['7 ns', '2 KiB', '10.0%', '9,000']
    """
    if value is None or isinstance(value, str):
        return value or ""
    if key.rpartition("_")[2] == "ns":
        return format_duration(value)
    if key.endswith("_pj"):
        return format_energy(value)
    if key.endswith("bytes"):
        return size(value)
    if key.endswith("_ms"):
        return format_duration(round(value * NS_PER_MS))
    if key.endswith(("_per_s", "_throughput", "request_goodput")):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else percent(value)


def text_table(rows: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> list[dict[str, str]]:
    """Return rows of numbers as a table of text, with empty cells for missing values.

    Parameters
    ----------
    rows : iterable of mapping
    columns : iterable of str
        A key of the rows, whose words form the title; or a different title and a key: ``"step: at"``.

    Examples
    --------
    >>> text_table([{"device": "gpu0", "busy_ns": 60_000, "at": 3}], ["device", "busy_ns", "step: at"])
    [{'device': 'gpu0', 'busy': '60 us', 'step': '3'}]
    """
    keys: dict[str, str] = {}
    for column in columns:
        title, _, key = column.rpartition(": ")
        keys[title or re.sub("_(ns|bytes)$", "", key).replace("_", " ")] = key
    return [{title: number_text(key, row.get(key)) for title, key in keys.items()} for row in rows]


def largest(parts: Mapping[str, int], show: Callable[[int], str] = format_duration, most: int = 2) -> str:
    """Return the largest parts in words, the largest first."""
    ranked = sorted((item for item in parts.items() if item[1]), key=lambda item: -item[1])
    return ", ".join(f"{part} {show(amount)}" for part, amount in ranked[:most])


def summary_lines(trace: Record, summary: Mapping[str, Any]) -> list[str]:
    """Return lines on a run's makespan, its failures, and its distance from the lower bound."""
    ran = f"{format_count(summary['tasks'], 'task')} ran"
    makespan = f"makespan {format_duration(summary['makespan_ns'])}{_interval(summary)}"
    lines: list[str]
    if aborted := attempt_lines(trace):
        failures = summary["failures"]
        done, lost = (format_count(failures[steps], "step") for steps in ("steps", "steps_lost"))
        lines = [*aborted, f"{makespan}; {done} done, {lost} lost; {ran}"]
    elif failed := failure_text(trace):
        lines = [failed, f"{makespan}, until all that ran had ended; {ran}"]
    else:
        critical = format_duration(summary["critical_path_ns"])
        lines = [f"{makespan}, {_above_bound(summary)}", f"critical path {critical}; {ran}"]
    texts = {
        key.rpartition("_")[0].replace("_", " "): number_text(key, summary.get(key)) for key in OBJECTIVES
    }
    objectives = [f"{label} {value}" for label, value in texts.items() if value]
    lines += [", ".join(objectives)] if objectives else []
    if (residue := summary.get("unexplained")) is not None:
        share = f"{percent(residue['share'])} of the makespan"
        lines.append(f"unexplained {format_duration(residue['ns'])}, {share}")
    return lines + late_lines(trace)


def _interval(summary: Mapping[str, Any]) -> str:
    """Return the 80 % interval of the makespan, and the kinds of op that contribute most to it."""
    if (interval := summary.get("makespan_interval")) is None:
        return ""
    low, high = format_duration(interval["low_ns"]), format_duration(interval["high_ns"])
    if low == high:
        return ""
    return f" (80 % interval {low} to {high}, mostly from {', '.join(list(interval['by_kind'])[:2])})"


def _above_bound(summary: Mapping[str, Any]) -> str:
    bound = summary["lower_bound_ns"]
    if summary["loops_counted_once"]:
        return f"lower bound {format_duration(bound)} (chains through loops counted once)"
    if summary["gap"] is None:
        return f"no lower bound: {summary['no_gap']}"
    share = summary["gap"]
    return f"{percent(share) + ' above' if share else 'at'} the lower bound of {format_duration(bound)}"


def peak_text(summary: Mapping[str, Any], nbytes: int | None) -> str:
    """Return a peak of memory in a run: recordings have no sizes of tensors."""
    nothing = {0: "not recorded" if summary.get("unexplained") is not None else size(0), None: "not known"}
    return nothing.get(nbytes) or size(nbytes or 0)


def device_rows(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return rows on how each device that ran or held something spent the makespan."""
    cores = any(use["cores"] and use["time_ns"]["compute"] for use in summary["devices"].values())
    rows = []
    for name, use in summary["devices"].items():
        peak, idle = use["peak_memory_bytes"], use["idle_reasons"]
        if "unused" in idle and not peak:
            continue
        row = {"device": name, **{word: format_duration(ns) for word, ns in use["time_ns"].items()}}
        if cores:
            row["cores used"] = f"{percent(use['utilisation'])} of {use['cores']}" if use["cores"] else ""
        row |= {"span": format_duration(use["span_ns"]), "bubble": percent(use["bubble"])}
        waits = {reason: ns for reason, ns in idle.items() if reason not in WORD_OF_REASON}
        row |= {"peak memory": peak_text(summary, peak), "waits for": largest(waits, most=3)}
        rows.append(row)
    if len(rows) <= _MOST_DEVICES:
        return rows
    groups = group_pairs((tuple(row.values())[1:], row) for row in rows)
    return [
        first | ({"device": f"{first['device']} and {len(others):,} more"} if others else {})
        for first, *others in groups.values()
    ]
