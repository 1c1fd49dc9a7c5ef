"""Traces as tables: one row a task, in words and plain units; transfers likewise, on request.

Columns of whole numbers stay whole: what was not given (a stage, a micro-batch) is missing, not -1.
Rows are in start order, and the same trace gives the same bytes in a file.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from sim.explain.waits import final_waits
from sim.files.atomic_files import atomic_path, write_bytes
from sim.graph.failures import DONE, STATUSES
from sim.record.record import WAITS, Record
from sim.words.arrays import UNSET, IntArray
from sim.words.errors import InputError, extra

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TABLE_ENDINGS", "csv_text", "task_table", "text_of_csv", "write_table"]

TABLE_ENDINGS: Final = (".csv", ".csv.gz", ".json", ".json.gz", ".parquet")


def task_table(trace: Record, *, transfers: bool = False) -> pd.DataFrame:
    """Return one row per task that ran.

    Parameters
    ----------
    trace : Trace
    transfers : bool
        Whether transfers have rows, too: ``op`` is the tensor that is moved, ``kind`` is ``transfer``, and
        two more columns, ``source`` and ``destination``, name the devices; ``device``, ``stream`` and
        ``issuer`` are missing. A run without transfers has no such columns.

    Returns
    -------
    DataFrame
        ``op, kind, device, stream, issuer, iteration, micro_batch, stage, phase`` (missing where not
        given); ``ready_ns, issue_ns, start_ns, end_ns``; ``nbytes`` (of the outputs), ``flops``; and
        ``wait``, why it did not start when it was ready (`sim.record.record.WAITS`). With control flow also
        ``frame``, the loops and iterations it ran in (``outer:2/inner:0``), and ``dead``, whether it was
        skipped. Where ops may fail also ``status``: ``done``, ``failed`` or ``aborted``.

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

    def words(code: IntArray, known: Iterable[str]) -> pd.Categorical:
        """Return codes as words, of which -1 is missing; a million rows take a megabyte, not strings."""
        found: pd.Categorical = pd.Categorical.from_codes(code, list(known))  # type: ignore[call-overload]
        return found

    def whole(values: IntArray) -> pd.arrays.IntegerArray:
        """Return whole numbers of which -1 is missing."""
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
    names = np.array(
        [*graph.op_names, *(graph.tensor_name(t) for t in moved["tensor"][:n_moved])], dtype=object
    )
    lanes = [machine.stream_name(s) for s in range(machine.first_stream[-1])]
    lane = tasks["stream"]
    if trace.alone.any():
        lane = np.where(trace.alone, len(lanes) + trace.device, lane)
        lanes += [f"{device.name}/async" for device in machine.devices]
    issuers = [issuer.name for issuer in machine.issuers()]
    devices = [device.name for device in machine.devices]
    transfer = len(graph.kinds) if n_moved else UNSET
    columns: dict[str, object] = {
        "op": names[column(op, len(graph) + np.arange(len(moved["id"])))],
        "kind": words(column(graph.kind_code[op], transfer), [*graph.kinds, *(["transfer"] * bool(n_moved))]),
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
    r"""Return a text as it stands in a CSV file: a spreadsheet must not run it, nor a terminal.

    What a spreadsheet would take for a formula has an apostrophe before it, and control characters are
    written out. `text_of_csv` is the way back.

    Examples
    --------
    >>> csv_text("=cmd|x"), csv_text("a\x1b[2J"), csv_text("conv-1")
    ("'=cmd|x", 'a\\u001b[2J', 'conv-1')
    """
    if not isinstance(text, str):
        return text
    shown = _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return f"'{shown}" if _FORMULA.match(shown) else shown


def text_of_csv(text: str) -> str:
    """Return the text that `csv_text` wrote."""
    meant = text[1:] if text.startswith("'") and _FORMULA.match(text) else text
    return re.sub(r"\\u(00[0189][0-9a-f]|007f)", lambda found: chr(int(found[1], 16)), meant)


def write_table(table: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write a table in the format that the name's ending says, whole or not at all.

    Parameters
    ----------
    table : DataFrame
    path : path
        ``.csv``, ``.json`` (a list of rows), either gzipped with ``.gz`` behind it, or ``.parquet``.

    Raises
    ------
    InputError
        Another ending, or a directory that does not exist.
    MissingExtraError
        Parquet without pyarrow.
    """
    name = Path(path).name.lower()
    if name.endswith((".csv", ".csv.gz")):
        text = io.StringIO()
        words = table.select_dtypes(exclude=["number", "bool"]).columns
        table.assign(**{name: table[name].map(csv_text) for name in words}).to_csv(
            text, index=False, lineterminator="\n"
        )
        write_bytes(path, text.getvalue().encode())
    elif name.endswith((".json", ".json.gz")):
        rows: str = table.to_json(orient="records", lines=True)
        write_bytes(path, ("[\n" + ",\n".join(rows.splitlines()) + "\n]\n").encode())
    elif name.endswith(".parquet"):
        with extra("parquet", "writing Parquet files"):
            import pyarrow  # noqa: F401
        with atomic_path(path) as beside:
            table.to_parquet(beside, engine="pyarrow", index=False)
    else:
        raise InputError(f"{path}: a table's name ends in {', '.join(TABLE_ENDINGS)}")
