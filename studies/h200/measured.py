"""Read the measured H200 tables of ai-dynamo/aiconfigurator into cost tables.

The files (CSV, compressed) are other people's and stay where they are; what this project ships are
parameters fitted to them (:mod:`studies.h200.fit`). They have a header and one row a shape. Kernels have
their latency in microseconds with three decimals, so that whole nanoseconds lose nothing; collectives have it
in milliseconds.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from devices.cost.attention import attention_axes
from devices.cost.collective_fit import COLLECTIVES
from devices.cost.cost_table import Axis, CostTable
from sim.base.errors import InputError

__all__ = [
    "ATTENTION_FILE",
    "COLLECTIVE_FILE",
    "GEMM_FILE",
    "H200",
    "attention_table",
    "collective_table",
    "gemm_table",
    "read_columns",
]

IntArray = npt.NDArray[np.int64]

H200: Final[Mapping[str, Any]] = tomllib.loads(
    Path(__file__).with_name("h200.toml").read_text(encoding="utf-8")
)
"""What the fit is told."""

_TABLES: Final = H200["tables"]
GEMM_FILE, ATTENTION_FILE, COLLECTIVE_FILE = (
    _TABLES[op]["file"] for op in ("gemm", "attention", "collective")
)


def read_columns(path: str | Path, columns: Sequence[str]) -> tuple[IntArray, IntArray]:
    """Return shapes, one column per name in `columns`, and latencies in ns.

    Raises
    ------
    InputError
        The file cannot be read, or its header or a row is not as expected.
    """
    rows = _read_rows(path, [*columns, "latency_us"])
    try:
        numbers = np.array(rows, dtype=float)
    except ValueError as error:
        raise InputError(f"{path}: a row is not all numbers: {error}") from error
    return numbers[:, :-1].astype(np.int64), np.floor(numbers[:, -1] * 1000 + 0.5).astype(np.int64)


def _read_rows(path: str | Path, columns: Sequence[str]) -> list[list[str]]:
    try:
        with gzip.open(path, "rt", newline="", encoding="utf-8") as text:
            header, *rows = csv.reader(text)
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as a table of latencies: {error}") from error
    if header != columns:
        raise InputError(f"{path}: the columns are {header}; expected {columns}")
    return rows


def _table(op: str, path: str | Path, rows: IntArray | Sequence[Sequence[int]]) -> CostTable:
    """Return a table with axes and provenance as described, and the hash that identifies the file."""
    about = _TABLES[op]
    provenance = {
        "source": H200["source"],
        "file": Path(path).name,
        "sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest(),
        "measured": about["measured"],
    }
    axes = [Axis(**axis) for axis in about["axes"]]
    return CostTable.from_rows(H200["device"], about["kind"], axes, rows, provenance, **about["options"])


def gemm_table(path: str | Path) -> CostTable:
    """Return the table of matrix products, with axes m, n and k."""
    shapes, latency_ns = read_columns(path, _TABLES["gemm"]["columns"])
    return _table("gemm", path, np.column_stack([shapes, latency_ns]))


def attention_table(path: str | Path) -> CostTable:
    """Return the table of prefill attention, with the axes of :func:`attention_axes`."""
    shapes, latency_ns = read_columns(path, _TABLES["attention"]["columns"])
    return _table("attention", path, np.column_stack([*attention_axes(*shapes.T).values(), latency_ns]))


def collective_table(path: str | Path) -> CostTable:
    """Return the table of collectives among 2, 4 and 8 GPUs, with axes collective, ranks and nbytes.

    Only the rows in fp16 are taken: those in int8 are the same transfers without reductions in the switch.
    The column ``message_size`` counts elements: what fp16 takes at a size, int8 takes at twice the size.
    """
    rows = _read_rows(path, [*_TABLES["collective"]["columns"], "latency"])
    try:
        taken = [
            (COLLECTIVES.index(row[3]), int(row[6]), 2 * int(row[7]), int(float(row[8]) * 1e6 + 0.5))
            for row in rows
            if row[5] == "half"
        ]
    except (ValueError, IndexError) as error:
        raise InputError(f"{path}: a row is no collective with ranks, size and latency: {error}") from error
    return _table("collective", path, taken)
