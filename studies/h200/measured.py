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
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from devices.cost.formulas.attention import attention_axes
from devices.cost.formulas.nccl import COLLECTIVES
from devices.cost.tables.cost_table import Axis, CostTable
from sim.words.errors import InputError

__all__ = [
    "ATTENTION_FILE",
    "COLLECTIVE_FILE",
    "GEMM_FILE",
    "attention_table",
    "collective_table",
    "gemm_table",
    "read_columns",
]

IntArray = npt.NDArray[np.int64]

GEMM_FILE = "gemm_bf16.csv.gz"
ATTENTION_FILE = "context_attention_bf16.csv.gz"
COLLECTIVE_FILE = "nccl_2.29.2.csv.gz"
_GEMM_COLUMNS = ("m", "n", "k")
_ATTENTION_COLUMNS = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "window_size")
_COLLECTIVE_COLUMNS = (
    *("framework", "version", "device", "op_name", "kernel_source", "nccl_dtype"),
    *("num_gpus", "message_size", "latency"),
)
_SOURCE = "github.com/ai-dynamo/aiconfigurator (Apache-2.0), systems data for h200_sxm"


def read_columns(path: str | Path, columns: tuple[str, ...]) -> tuple[IntArray, IntArray]:
    """Return shapes, one column per name in `columns`, and latencies in ns.

    Raises
    ------
    InputError
        The file cannot be read, or its header or a row is not as expected.
    """
    rows = _read_rows(path, (*columns, "latency_us"))
    try:
        numbers = np.array(rows, dtype=float)
    except ValueError as error:
        raise InputError(f"{path}: a row is not all numbers: {error}") from error
    return numbers[:, :-1].astype(np.int64), np.floor(numbers[:, -1] * 1000 + 0.5).astype(np.int64)


def _read_rows(path: str | Path, columns: tuple[str, ...]) -> list[list[str]]:
    try:
        with gzip.open(path, "rt", newline="", encoding="utf-8") as text:
            header, *rows = csv.reader(text)
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as a table of latencies: {error}") from error
    if tuple(header) != columns:
        raise InputError(f"{path}: the columns are {header}; expected {list(columns)}")
    return rows


def provenance(path: str | Path, measured: str) -> dict[str, Any]:
    """Return where a file's numbers come from, with the hash that identifies it."""
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return {"source": _SOURCE, "file": Path(path).name, "sha256": digest, "measured": measured}


def gemm_table(path: str | Path) -> CostTable:
    """Return the table of matrix products, with axes m, n and k.

    Rows are compared after padding to 16 (a tile's least height), and a fifth of a factor of e is taken as
    noise: neighbouring shapes run different kernels of the library. Both were chosen on one split.
    """
    shapes, latency_ns = read_columns(path, _GEMM_COLUMNS)
    return CostTable.from_rows(
        "NVIDIA H200",
        "matmul",
        [Axis("m", granule=16), Axis("n"), Axis("k")],
        np.column_stack([shapes, latency_ns]),
        provenance(path, "torch linear in bf16, m x k by k x n"),
        noise=0.2,
    )


def attention_table(path: str | Path) -> CostTable:
    """Return the table of prefill attention, with the axes of :func:`attention_axes`.

    Independent pieces of work (sequences x heads) come first, as the time is nearly a function of them and of
    the sequence length; the weights of the axes were chosen on one split.
    """
    shapes, latency_ns = read_columns(path, _ATTENTION_COLUMNS)
    sizes = attention_axes(*shapes.T)
    return CostTable.from_rows(
        "NVIDIA H200",
        "attention",
        [
            Axis("batch_heads"),
            Axis("seq_len", weight=0.7),
            Axis("group", weight=0.5),
            Axis("kv_heads", weight=0.5),
            Axis("head_dim", "exact"),
            Axis("window", "exact"),
        ],
        np.column_stack([*sizes.values(), latency_ns]),
        provenance(path, "prefill attention in bf16, causal, appending to the cache"),
        neighbours=40,
    )


def collective_table(path: str | Path) -> CostTable:
    """Return the table of collectives among 2, 4 and 8 GPUs, with axes collective, ranks and nbytes.

    Only the rows in fp16 are taken: those in int8 are the same transfers without reductions in the switch.
    The column ``message_size`` counts elements: what fp16 takes at a size, int8 takes at twice the size.
    """
    rows = _read_rows(path, _COLLECTIVE_COLUMNS)
    try:
        taken = [
            (COLLECTIVES.index(row[3]), int(row[6]), 2 * int(row[7]), int(float(row[8]) * 1e6 + 0.5))
            for row in rows
            if row[5] == "half"
        ]
    except (ValueError, IndexError) as error:
        raise InputError(f"{path}: a row is no collective with ranks, size and latency: {error}") from error
    return CostTable.from_rows(
        "NVIDIA H200",
        "collective",
        [Axis("collective", "exact"), Axis("ranks"), Axis("nbytes")],
        taken,
        provenance(path, "NCCL 2.29.2 in fp16 among GPUs of one node"),
    )
