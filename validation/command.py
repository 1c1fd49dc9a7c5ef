"""``python -m validation``: `sim validate` for machines without typer, rich and pydantic.

On a machine with only torch and numpy it calibrates, draws and measures; predicting and reporting happen
on a machine with the simulator, with ``--report DIR``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sim.base.errors import SimError
from validation.cases.tables import BUDGET_S
from validation.steps import validate


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps of a validation; return 0 if no goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m validation")
    parser.add_argument("--backend", choices=tuple(BUDGET_S))
    parser.add_argument("--out", type=Path, help="default: validation/data/DEVICE-DATE")
    parser.add_argument("--experiments", help="letters or names, with commas; default: all")
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--limit", type=float, dest="limit_s", metavar="SECONDS", help="begin no case after so long"
    )
    parser.add_argument("--again", action="store_true", help="measure also what has been measured")
    parser.add_argument("--dry-run", action="store_true", help="list the steps and take none")
    parser.add_argument(
        "--report", type=Path, metavar="DIR", help="predict again and report on what a folder holds"
    )
    given = vars(parser.parse_args(arguments))
    try:
        result, text = validate(**given, say=lambda text: print(text, file=sys.stderr))
    except SimError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    print(text)
    return 1 if result is not None and result["failed"] else 0
