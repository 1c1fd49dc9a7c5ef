"""Cost tables as files: JSON with provenance, schema ``sim.cost_table/1``.

::

    {"schema": "sim.cost_table/1", "device": "NVIDIA H200", "unit": "ns", "kind": "matmul",
     "axes": [{"name": "m", "scale": "log", "weight": 1.0, "granule": 1}, ...],
     "neighbours": 32, "noise": 0.0,
     "provenance": {"source": ..., "licence": ..., "protocol": ...},
     "rows": [[m, n, k, latency_ns], ...]}

``scale``, ``weight``, ``granule``, ``neighbours`` and ``noise`` may be left out. One row a line, so that
versions can be compared.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path

import numpy as np

from devices.cost.tables.cost_table import Axis, CostTable
from sim.words.errors import InputError

__all__ = ["SCHEMA", "load_table", "save_table"]

SCHEMA = "sim.cost_table/1"
_KEYS = ("schema", "device", "unit", "kind", "axes", "neighbours", "noise", "provenance", "rows")


def save_table(table: CostTable, path: str | Path) -> None:
    """Write `table` as JSON, compressed when the name ends in ``.gz``; the same table, the same bytes."""
    head = {
        "schema": SCHEMA,
        "device": table.device,
        "unit": "ns",
        "kind": table.kind,
        "axes": [dataclasses.asdict(axis) for axis in table.axes],
        "neighbours": table.neighbours,
        "noise": table.noise,
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
    source = Path(path)
    try:
        raw = source.read_bytes()
        data = json.loads(gzip.decompress(raw) if source.suffix == ".gz" else raw)
    except FileNotFoundError:
        raise InputError(f"{source}: no such file") from None
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{source}: cannot be read as JSON: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise InputError(f"{source}: not a cost table: 'schema' must be {SCHEMA!r}, found {found!r}")
    if unknown := sorted(set(data) - set(_KEYS)):
        raise InputError(f"{source}: unknown keys {', '.join(unknown)}; known: {', '.join(_KEYS)}")
    if data.get("unit") != "ns":
        raise InputError(f"{source}: 'unit' must be 'ns', found {data.get('unit')!r}")
    try:
        return CostTable.from_rows(
            data["device"],
            data["kind"],
            [Axis(**axis) for axis in data["axes"]],
            data["rows"],
            data["provenance"],
            neighbours=data.get("neighbours", 32),
            noise=data.get("noise", 0.0),
        )
    except KeyError as error:
        raise InputError(f"{source}: the key {error} is missing") from error
    except (TypeError, AttributeError) as error:
        raise InputError(f"{source}: malformed: {error}") from error
    except InputError as error:
        raise InputError(f"{source}: {error}") from error
