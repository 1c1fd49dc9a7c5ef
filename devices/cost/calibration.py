"""What was measured, as files: calibrations, cost tables, and a few kernels of one's own.

A calibration has the measured costs of a real machine (schema ``sim.calibration/1``)::

    {"schema": "sim.calibration/1", "backend": "timer", "device": "...", "provenance": {...},
     "quantities": {"issue_ns": {"median": 4100, "mad": 200, ..., "n": 390}, ...},
     "tables": [{"kind": "matmul", "axes": ["size", "repeat"], "context": "warm",
                 "rows": [[256, 1, 480000], ...], "statistics": [{...}, ...]}, ...],
     "sentinels": [{"block": ..., "before": ..., "after": ..., "accepted": true}, ...]}

Quantities become the numbers of a `sim.Device`; tables become cost tables, in a scenario by
``cost: {table: calibration.json}``. A context is kept with its table, because a duration without
the company it was measured in is biased; `warm` is what a scenario gets, or ``warm, fp32`` where an op
has that data type.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any, Final

import numpy as np

from devices.cost.cost_table import Axis, CostTable, Measured
from devices.cost.kernel_model import ELEMENT_BYTES
from devices.describe.field_types import dtype_name
from sim.base.arrays import LATEST_NS
from sim.base.errors import InputError, hint
from sim.base.files import loads_once, read_bytes, read_table
from sim.base.units import parse_bytes
from sim.graph.builder import GraphBuilder
from sim.graph.graph import Graph

SCHEMA: Final = "sim.calibration/1"
_KEYS: Final = ("schema", "backend", "device", "provenance", "quantities", "tables", "sentinels")


@dataclass(frozen=True)
class Calibration:
    """What was measured.

    Attributes
    ----------
    backend, device : str
    provenance : mapping
        Device, driver, library versions, clocks, protocol, date.
    quantities : mapping of str to mapping
        Summaries (`validation.real.statistics.Summary`) by name; medians are used.
    tables : sequence of mapping
        As in the file.
    sentinels : sequence of mapping
        Every block that was measured, with the ones that were thrown away.
    """

    backend: str
    device: str
    provenance: Mapping[str, Any]
    quantities: Mapping[str, Mapping[str, Any]]
    tables: Sequence[Mapping[str, Any]]
    sentinels: Sequence[Mapping[str, Any]] = field(default_factory=tuple)

    def what_was_measured(self, context: str) -> Measured:
        """Return what the durations of a context contain, and in which data types they were measured.

        On a GPU a duration is that of a chain over its length, so the gap is in it, and plans compute in bf16
        (`validation.calibrate.gpu_costs`). Host backends time each op by itself.
        """
        _, _, dtype = context.partition(", ")
        if self.backend != "cuda":
            return Measured((dtype,) if dtype else ())
        return Measured((dtype or "bf16",), ("gap",))

    @cached_property
    def by_context(self) -> dict[str, dict[str, CostTable]]:
        """The tables of each context, by kind of op."""
        found: dict[str, dict[str, CostTable]] = {}
        for table in self.tables:
            axes, measured = [Axis(name) for name in table["axes"]], self.what_was_measured(table["context"])
            cost_table = CostTable.from_rows(
                self.device, table["kind"], axes, table["rows"], self.provenance, measured=measured
            )
            found.setdefault(table["context"], {})[cost_table.kind] = cost_table
        return found


def load_tables(path: str | Path) -> list[CostTable]:
    """Return the tables of a file: one of a cost table, the warm ones of a calibration, of each data type.

    Raises
    ------
    InputError
        The file is neither.
    """
    content = read_record(path, "a cost table", TABLE_SCHEMA, SCHEMA)
    if content["schema"] == SCHEMA:
        kept = _calibration(content, path).by_context.items()
        return [t for context, kinds in kept if context.partition(", ")[0] == "warm" for t in kinds.values()]
    return [table_of(content, path)]


def load_calibration(path: str | Path) -> Calibration:
    """Read a calibration.

    Raises
    ------
    InputError
        The file is none; the message names it and what is wrong.
    """
    return _calibration(read_record(path, "a calibration", SCHEMA), path)


def _calibration(content: Mapping[str, Any], path: str | Path) -> Calibration:
    """Return the calibration that a file holds; the file may have been edited, and say what none says."""
    with well_formed(path):
        if set(content) != set(_KEYS):
            found = ", ".join(content)
            raise InputError(f"a calibration has the keys {', '.join(_KEYS)}; found {found}")
        calibration = Calibration(**{key: content[key] for key in _KEYS[1:]})
        kinds = {"backend": str, "device": str, "provenance": dict, "quantities": dict, "sentinels": list}
        for key, kind in kinds.items():
            if not isinstance(found := getattr(calibration, key), kind):
                raise InputError(f"{key!r} is {found!r:.60}")
        for name, summary in calibration.quantities.items():
            median = summary["median"]
            if not isinstance(median, (int, float)) or not 0 <= median <= LATEST_NS:
                raise InputError(f"the median of {name!r} is {median!r:.60}, should be a number, 0 or more")
        for block in calibration.sentinels:
            if not (isinstance(block["block"], str) and isinstance(block["accepted"], bool)):
                raise InputError(f"a block of 'sentinels' is {block!r:.60}")
        for table in calibration.tables:
            if not all(isinstance(axis, str) for axis in table["axes"]):
                raise InputError(f"the axes of a table are {table['axes']!r:.60}")
        _ = calibration.by_context  # refuses tables that are none
        return calibration


# ----------------------------------------------------------------------------------------------------------
# Cost tables as files: JSON with provenance, schema ``sim.cost_table/1``.
#
#     {"schema": "sim.cost_table/1", "device": "NVIDIA H200", "unit": "ns", "kind": "matmul",
#      "axes": [{"name": "m", "scale": "log"}, ...],
#      "measured": {"dtypes": ["bf16"], "contains": ["gap"]},
#      "provenance": {"source": ..., "licence": ..., "protocol": ...},
#      "rows": [[m, n, k, latency_ns], ...]}
#
# ``scale`` and ``measured`` (`Measured`) may be left out. One row a line, to compare files.

TABLE_SCHEMA: Final = "sim.cost_table/1"
_TABLE_KEYS: Final = ("schema", "device", "unit", "kind", "axes", "measured", "provenance", "rows")


def save_table(table: CostTable, path: str | Path) -> None:
    """Write `table` as JSON, compressed when the name ends in ``.gz``; the same table, the same bytes."""
    head = {
        "schema": TABLE_SCHEMA,
        "device": table.device,
        "unit": "ns",
        "kind": table.kind,
        "axes": [dataclasses.asdict(axis) for axis in table.axes],
        "measured": table.measured.to_json(),
        "provenance": dict(table.provenance),
    }
    rows = np.column_stack([table.shapes, table.latency_ns]).tolist()
    opened = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
    body = ",\n".join("  " + json.dumps(row) for row in rows)
    text = f'{opened},\n "rows": [\n{body}\n ]\n}}\n'.encode()
    target = Path(path)
    target.write_bytes(gzip.compress(text, mtime=0) if target.suffix == ".gz" else text)


def load_table(path: str | Path) -> CostTable:
    """Read a table.

    Raises
    ------
    InputError
        The file is no such table; the message names the file and what is wrong with it.

    Examples
    --------
    >>> import tempfile
    >>> table = CostTable.from_rows("toy", "copy", [Axis("nbytes")], [(1024, 900)], {"source": "made up"})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_table(table, f"{folder}/copy.json.gz")
    ...     load_table(f"{folder}/copy.json.gz").lookup(nbytes=1024)
    900
    """
    return table_of(read_record(path, "a cost table", TABLE_SCHEMA), path)


def table_of(data: Mapping[str, Any], path: str | Path) -> CostTable:
    """Return the table that a file holds; `path` names it in messages."""
    with well_formed(path):
        axes = (("an axis: ", axis, ("name", "scale")) for axis in data["axes"])
        for where, given, known in (("", data, _TABLE_KEYS), *axes):
            if unknown := sorted(set(given) - set(known)):
                raise InputError(f"{where}unknown keys {', '.join(unknown)}; known: {', '.join(known)}")
        if data.get("unit") != "ns":
            raise InputError(f"'unit' must be 'ns', found {data.get('unit')!r}")
        return CostTable.from_rows(
            data["device"],
            data["kind"],
            [Axis(**axis) for axis in data["axes"]],
            data["rows"],
            data["provenance"],
            measured=Measured.read(data.get("measured", {})),
        )


# ----------------------------------------------------------------------------------------------------------
# Reading a file with a schema: JSON, maybe gzipped, and every failure in one line that names the file.


def read_record(path: str | Path, what: str, *schemas: str) -> dict[str, Any]:
    """Return the mapping in a file whose key ``schema`` is one of some.

    Parameters
    ----------
    path : path
    what : str
        What the file should be, for messages: ``"a cost table"``.
    *schemas : str

    Raises
    ------
    InputError
        No such file, no JSON, or another schema.
    """
    try:
        data = loads_once(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as JSON: {error}") from error
    found = data.get("schema") if isinstance(data, dict) else None
    if found not in schemas:
        accepted = " or ".join(map(repr, schemas))
        ours = f", found {found!r}" if isinstance(found, str) and found.startswith("sim.") else ""
        raise InputError(f"{path}: not {what}: 'schema' must be {accepted}{ours}")
    return data  # type: ignore[no-any-return]


@contextmanager
def well_formed(path: str | Path) -> Iterator[None]:
    """Turn what goes wrong while the content of a file is taken apart into an error that names the file."""
    try:
        yield
    except KeyError as error:
        raise InputError(f"{path}: the key {error} is missing") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: malformed: {error}") from error


# ----------------------------------------------------------------------------------------------------------
# A few kernels that somebody measured on a GPU of their own, towards which the fitted model moves.
#
#     kind,dtype,m,n,k,bytes_read,bytes_written,us
#     matmul,bf16,4096,4096,4096,,,1721.0              ──►  MeasuredKernel("products", "bf16", {m, n, k}, ns)
#     add,bf16,,,,64MB,32MB,362.0                      ──►  MeasuredKernel("elementwise", ...)
#
#     cost: [{fitted: kernels.csv}, roofline]            the fits of the device's preset, moved
#     cost: [{fitted: calibration.json}, roofline]       ... by what `sim calibrate` measured
#
# A column is the kind of op, its data type, its bytes, its flop, or an attribute by the name that it has in a
# graph (``kernel_shape`` as ``3x3``); an empty cell is not given. ``us`` is the time of one run of many back
# to back, the gap between two included, as `sim calibrate` takes it.

_NEEDED: Final = {"kind", "dtype", "us"}
_COLUMNS: Final = """
    kind dtype us flops bytes_read bytes_written m n k batch transposed rows columns seq_len kv_len heads
    kv_heads head_dim window causal in_channels out_channels input_shape kernel_shape strides pads dilations
    group tokens hidden intermediate topk experts tp ep channels sms nodes
"""
_TRAFFIC: Final = {"elementwise": 2, "copy": 1}
"""Kinds of a calibration that move square matrices, and how many they read; they write one."""


def read_kernels(path: str | Path) -> tuple[Graph, list[float]]:
    """Return measured kernels as ops, named by where they stand, and the ns of each.

    Raises
    ------
    InputError
        No such file, a column that is missing, or a row that is no measurement.
    """
    builder, ns = GraphBuilder(str(path)), []
    for place, took_ns, op in _read_calibration(path) if str(path).endswith(".json") else _read_table(path):
        builder.op(place, **op)
        ns.append(took_ns)
    if not ns:
        raise InputError(f"{path}: has no kernel that was measured alone")
    return builder.build(), ns


_Row = tuple[str, float, dict[str, Any]]
"""Where a kernel stands, its ns, and what `GraphBuilder.op` takes."""


def _read_table(path: str | Path) -> Iterator[_Row]:
    header, rows = read_table(path)
    for name in header:
        if name not in _COLUMNS.split():
            raise InputError(f"{path}:1: a kernel has no {name!r}{hint(name, _COLUMNS.split(), shown=40)}")
    if missing := _NEEDED - set(header):
        raise InputError(f"{path}:1: the column {min(missing)} is missing")
    for place, row in rows:
        yield _read_line(place, {name: cell for name, cell in row.items() if cell})


def _read_line(place: str, row: dict[str, str]) -> _Row:
    if missing := _NEEDED - set(row):
        raise InputError(f"{place}: {min(missing)} is not given")
    us = row.pop("us")
    try:
        ns, kind, dtype = 1000 * float(us), row.pop("kind"), dtype_name(row.pop("dtype"))
        op: dict[str, Any] = {
            name: parse_bytes(row.pop(name, "0")) for name in ("bytes_read", "bytes_written")
        }
        op["flops"] = int(float(row.pop("flops", "0")))
    except (ValueError, InputError) as error:
        raise InputError(f"{place}: {error}") from None
    if not (isfinite(ns) and ns > 0):
        raise InputError(f"{place}: {us} us is no time")
    attributes = {name: _value(cell) for name, cell in row.items()}
    return place, ns, {**op, "kind": kind, "dtype": dtype, "attributes": attributes}


def _value(cell: str) -> Any:
    """Return a number, a truth value, numbers (``3x3``), or else the text."""
    if cell.lower() in ("true", "false"):
        return cell.lower() == "true"
    try:
        numbers = [int(part) for part in cell.split("x")]
    except ValueError:
        return cell
    return numbers[0] if len(numbers) == 1 else numbers


def _read_calibration(path: str | Path) -> Iterator[_Row]:
    """Return the products, copies and elementwise kernels of a calibration that ran once in an op."""
    calibration = load_calibration(path)
    if calibration.backend != "cuda":
        raise InputError(f"{path}: is a calibration of {calibration.device}, and no GPU's")
    for table in calibration.tables:
        kind, context = table["kind"], table["context"]
        square = kind in ("matmul", *_TRAFFIC) and [*table["axes"]] == ["size", "repeat"]
        if not square or context.partition(", ")[0] != "warm":
            continue
        dtype = dtype_name(calibration.what_was_measured(context).dtypes[0])
        for size, repeat, ns in table["rows"]:
            nbytes = int(size * size * ELEMENT_BYTES[dtype])
            if kind == "matmul":
                asks: dict[str, Any] = {"attributes": dict.fromkeys("mnk", size)}
            else:
                asks = {"bytes_read": _TRAFFIC[kind] * nbytes, "bytes_written": nbytes}
            if repeat == 1:
                yield f"{path}: {kind} {size} in {dtype}", ns, {"kind": kind, "dtype": dtype, **asks}
