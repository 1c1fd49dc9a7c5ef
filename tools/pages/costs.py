"""The tables of ``docs/costs.md``, made from the file of fitted values so that the two cannot disagree.

::

    python -m tools.pages costs

rewrites what stands between the lines ``<!-- begin NAME -->`` and ``<!-- end NAME -->``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from devices.cost.fitted import load_fit
from sim.base.errors import InputError
from studies.h200.fit import error_table, found_errors

__all__ = ["fold_table", "parameter_table", "renewed", "text", "worst_table"]


def fold_table(record: Mapping[str, Any]) -> str:
    """Return the mean absolute error (and the maximum) of every fold as a Markdown table."""
    count = record["protocol"]["folds"]
    lines = [
        "| op | split by | predictor | " + " | ".join(f"fold {number}" for number in range(count)) + " |",
        "|---|---|---|" + "---:|" * count,
    ]
    for op, split, name, found in found_errors(record):
        cells = " | ".join(f"{fold['mean']:.1%} ({fold['max']:.0%})" for fold in found["folds"])
        lines.append(f"| {op} | {split} | {name} | {cells} |")
    return "\n".join(lines)


def worst_table(record: Mapping[str, Any]) -> str:
    """Return the worst shapes of each predictor, split by shape, as a Markdown table."""
    lines = ["| op | predictor | shape | measured | predicted | factor |", "|---|---|---|---:|---:|---:|"]
    points = [
        (o, n, p) for o, split, n, found in found_errors(record) if split == "shape" for p in found["worst"]
    ]
    for op, name, point in points:
        measured, predicted = point["measured_ns"], point["predicted_ns"]
        shape = ", ".join(f"{axis} {size}" for axis, size in point["shape"].items())
        lines.append(
            f"| {op} | {name} | {shape} | {measured / 1000:.1f} µs | {predicted / 1000:.1f} µs "
            f"| {predicted / measured:.2g} |"
        )
    return "\n".join(lines)


def parameter_table(record: Mapping[str, Any]) -> str:
    """Return the fitted parameters with their units and meanings as a Markdown table."""
    lines = ["| model | parameter | value | unit | meaning |", "|---|---|---:|---|---|"]
    for model, parameters in record["parameters"].items():
        for name, about in parameters.items():
            unit = "" if about["unit"] == "1" else about["unit"]
            lines.append(f"| {model} | `{name}` | {about['value']:.3g} | {unit} | {about['meaning']} |")
    return "\n".join(lines)


_TABLES = {"errors": error_table, "folds": fold_table, "worst": worst_table, "parameters": parameter_table}


def renewed(text: str, record: Mapping[str, Any]) -> str:
    """Return a page with its marked tables made anew from a record of fitted values.

    Raises
    ------
    InputError
        A table is not marked in the page.
    """
    for name, table in _TABLES.items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
        marked = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        if not marked.search(text):
            raise InputError(f"the page has no lines '<!-- begin {name} -->' and '<!-- end {name} -->'")
        whole = f"{begin}\n{table(record)}\n\n{end}"
        text = marked.sub(lambda _, whole=whole: whole, text)  # type: ignore[misc]
    return text


def text() -> str:
    """Return ``docs/costs.md`` with the tables of the fitted values that ship."""
    return renewed(Path("docs/costs.md").read_text(encoding="utf-8"), load_fit("h200").record)
