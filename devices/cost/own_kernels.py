"""A few kernels that somebody measured on a GPU of their own, towards which the fitted model moves.

::

    kind,dtype,m,n,k,bytes_read,bytes_written,us
    matmul,bf16,4096,4096,4096,,,1721.0                ──►  MeasuredKernel("products", "bf16", {m, n, k}, ns)
    add,bf16,,,,64MB,32MB,362.0                        ──►  MeasuredKernel("elementwise", ...)

    cost: [{fitted: kernels.csv}, roofline]            the fits of the device's preset, moved
    cost: [{fitted: calibration.json}, roofline]       ... by what `sim calibrate` measured

A column is the kind of op, its data type, its bytes, its flop, or an attribute by the name that it has in a
graph (``kernel_shape`` as ``3x3``); an empty cell is not given. ``us`` is the time of one run of many back to
back, the gap between two included, as `sim calibrate` takes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any, Final

from devices.cost.calibration import load_calibration
from devices.cost.kernel_model import ELEMENT_BYTES
from devices.describe.field_types import dtype_name
from sim.base.errors import InputError, hint
from sim.base.files import read_table
from sim.base.units import parse_bytes
from sim.graph.builder import GraphBuilder
from sim.graph.graph import Graph

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
