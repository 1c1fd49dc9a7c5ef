"""``python -m validation``: `sim validate` for machines without typer, rich and pydantic.

On a machine with torch and numpy alone it calibrates, draws and measures; predicting and reporting happen
where the simulator is, with ``--report-only``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from devices.cost.calibration import load_calibration
from sim.words.errors import SimError
from validation import steps

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the steps of a validation; return 0 when no goal was missed."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m validation")
    parser.add_argument("--backend", required=True, choices=("timer", "threads", "cuda"))
    parser.add_argument("--out", type=Path, help="default: validation/data/DEVICE-DATE")
    parser.add_argument("--experiments", help="letters or names, with commas; default: all")
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="begin no case after so long")
    parser.add_argument("--again", action="store_true", help="measure also what has been measured")
    parser.add_argument("--dry-run", action="store_true", help="list the steps and take none")
    parser.add_argument("--report-only", action="store_true")
    given = parser.parse_args(arguments)
    try:
        chosen = steps.choose(given.experiments)
        if given.dry_run:
            out = given.out or Path("validation/data/DEVICE-DATE")
            print(steps.dry_run(given.backend, out, chosen, calibrated=given.calibration is not None))
            return 0
        out = given.out or steps.default_folder(given.backend)
        if given.report_only:
            calibration = load_calibration(given.calibration or out / "calibration.json")
            result = steps.write_report(out, given.backend, calibration, chosen, recompute=True)
        else:
            result = steps.run(
                given.backend, out, chosen, calibration_file=given.calibration, runs=given.runs,
                limit_s=given.limit, again=given.again, say=lambda text: print(text, file=sys.stderr),
            )  # fmt: skip
    except SimError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    print((out / "report.md").read_text().partition("\n## ")[0])
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
