"""What a calibration says: a quantity, or how long an op takes; and its file.

A table may be ``"along": "repeat"``: between rows that differ in that axis alone it is a straight line,
because a kernel that runs again adds what it takes. The power laws of `devices.cost.cost_table`, which
is what anything else gets, know nothing of that; they were 10 % off where a dozen sizes and repeats lay on
one grid.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from devices.cost.calibration import SCHEMA, Calibration
from sim.base.errors import InputError
from sim.base.files import write_text


def quantity(calibration: Calibration, name: str, default: int | None = None) -> int:
    """Return the median of a quantity.

    Raises
    ------
    InputError
        It was not measured, and no default is given.
    """
    if name in calibration.quantities:
        return int(calibration.quantities[name]["median"])
    if default is None:
        known = ", ".join(sorted(calibration.quantities))
        raise InputError(f"the calibration of {calibration.device} has no {name}; it has {known}")
    return default


def lookup(calibration: Calibration, kind: str, *, context: str = "warm", **sizes: int) -> int:
    """Return how long one op of a kind takes in a context.

    Raises
    ------
    InputError
        No such kind was measured.
    """
    for table in calibration.tables:
        if (table["kind"], table["context"]) == (kind, context) and "along" in table:
            ns = _along(table, sizes)
            if ns is not None:
                return ns
    tables = calibration.by_context.get(context, {})
    if kind not in tables:
        known = ", ".join(f"{kind} ({c})" for c, kinds in calibration.by_context.items() for kind in kinds)
        raise InputError(
            f"the calibration of {calibration.device} knows no {kind!r} ({context}); it has {known}"
        )
    return int(tables[kind].lookup(**sizes))


def _along(table: Mapping[str, Any], sizes: Mapping[str, int]) -> int | None:
    """Return what a straight line between two rows says; None where no two rows are on either side."""
    axes, along = list(table["axes"]), table["along"]
    column = axes.index(along)
    line = sorted(
        (row[column], row[-1])
        for row in table["rows"]
        if all(row[k] == sizes[axis] for k, axis in enumerate(axes) if axis != along)
    )
    at = sizes.get(along, 1)
    if not line or not line[0][0] <= at <= line[-1][0]:
        return None
    return int(np.floor(np.interp(at, [x for x, _ in line], [ns for _, ns in line]) + 0.5))


def save_calibration(calibration: Calibration, path: str | Path) -> None:
    """Write a calibration as JSON, whole or not at all.

    Raises
    ------
    InputError
        There is no such folder.
    """
    content = {
        "schema": SCHEMA,
        **{each.name: getattr(calibration, each.name) for each in fields(calibration)},
    }
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
