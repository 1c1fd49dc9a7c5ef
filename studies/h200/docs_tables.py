"""The tables of ``docs/costs.md``, made from the file of fitted values so that the two cannot disagree.

::

    python -m studies.h200.docs_tables docs/costs.md

rewrites what stands between the lines ``<!-- begin NAME -->`` and ``<!-- end NAME -->``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from devices.cost.fitted import load_fit
from sim.words.errors import InputError

__all__ = ["error_table", "fold_table", "parameter_table", "renewed", "worst_table"]


def error_table(record: Mapping[str, Any]) -> str:
    """Return the errors of every kind of op, split and predictor as a Markdown table."""
    lines = [
        "| op | split by | predictor | mean | median | max | bias | off by > 2x | no warning "
        "| false warning | means of the folds |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for op, split, name, found in _found(record):
        whole = found["all"]
        means = [fold["mean"] for fold in found["folds"]]
        lines.append(
            f"| {op} | {split} | {name} | {whole['mean']:.1%} | {whole['median']:.1%} "
            f"| {whole['max']:.0%} | {whole['bias']:+.1%} | {whole['beyond_2x']} of {whole['count']} "
            f"| {found['unannounced_beyond_2x']} "
            f"| {found['announced_within_2x'] / whole['count']:.1%} "
            f"| {min(means):.1%} to {max(means):.1%} |"
        )
    return "\n".join(lines)


def _found(record: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    """Yield (kind of op, split, predictor, what was found) of a record."""
    for op, splits in record["errors"].items():
        for split, predictors in splits.items():
            for name, found in predictors.items():
                yield op, split, name, found


def fold_table(record: Mapping[str, Any]) -> str:
    """Return the mean absolute error (and the maximum) of every fold as a Markdown table."""
    count = record["protocol"]["folds"]
    lines = [
        "| op | split by | predictor | " + " | ".join(f"fold {number}" for number in range(count)) + " |",
        "|---|---|---|" + "---:|" * count,
    ]
    for op, split, name, found in _found(record):
        cells = " | ".join(f"{fold['mean']:.1%} ({fold['max']:.0%})" for fold in found["folds"])
        lines.append(f"| {op} | {split} | {name} | {cells} |")
    return "\n".join(lines)


def worst_table(record: Mapping[str, Any]) -> str:
    """Return the worst shapes of each predictor, split by shape, as a Markdown table."""
    lines = ["| op | predictor | shape | measured | predicted | factor |", "|---|---|---|---:|---:|---:|"]
    points = [(o, n, p) for o, split, n, found in _found(record) if split == "shape" for p in found["worst"]]
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


def main(arguments: Sequence[str]) -> int:
    """Rewrite the tables of the page that is named; return the exit status."""
    if len(arguments) != 1:
        print("usage: python -m studies.h200.docs_tables PAGE", file=sys.stderr)
        return 2
    page = Path(arguments[0])
    page.write_text(renewed(page.read_text(encoding="utf-8"), load_fit("h200").record), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
