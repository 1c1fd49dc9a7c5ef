"""``studies/zero_bubble/results.md``: measured zero-bubble throughputs, compared with simulated ones."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

from sim.base.arrays import group_pairs
from studies.program import markdown_table
from studies.zero_bubble.zero_bubble_model import (
    BANDWIDTH_BYTES_PER_S,
    BARE,
    OPTIMIZER_BYTES,
    Fit,
    Measured,
    Step,
    closed_form_ns,
    error,
    fit,
    mean_error,
    measured,
    predict,
    schedule_ns,
    step_ns,
)

FITTED = 1
"""The third of the rows used for fitting: those with the middle number of micro-batches."""

_GROUPS = ("fewest", "middle", "most")
_OF_ROW = ("model", "GPUs", "micro-batches", "schedule")


def report_text(rows: Sequence[Measured]) -> str:
    """Return the report in Markdown; the same rows give the same text."""
    by = fit([row for row in rows if row.group == FITTED])
    thirds, models, schedules = (
        group_pairs((f"{_GROUPS[row.group]} micro-batches", row) for row in rows),
        group_pairs((row.model, row) for row in rows),
        group_pairs((row.schedule, row) for row in rows),
    )
    alone = {name: fit(part) for name, part in (thirds | models | schedules).items()}
    out = {name: _held_out(rows, part) for name, part in (models | schedules).items()}
    closed = {name: _held_out(rows, part, closed_form_ns)[1] for name, part in (models | schedules).items()}
    rest = [row for row in rows if row.group != FITTED]
    worst = max(rest, key=lambda row: abs(error(row, by)))
    steps = [row.optimizer_ns / 1e6 for row in rows]
    by_formula = fit([row for row in rows if row.group == FITTED], closed_form_ns)
    text = Path(__file__).with_name("zero_bubble.md").read_text(encoding="utf-8")
    filled = text.format(
        bare=_percent(mean_error(rows, BARE, schedule_ns)),
        mean=_percent(mean_error(rest, by)),
        mean_exactly=_percent(mean_error(rest, by), 2),
        closed_mean=_percent(mean_error(rest, by_formula, closed_form_ns), 2),
        models=_percent(max(out[name][1] for name in models)),
        schedules=_percent(max(out[name][1] for name in schedules)),
        rest=len(rest),
        largest=_percent(abs(error(worst, by))),
        where=f"{worst.schedule}, {worst.model}, {worst.micro_batches} micro-batches",
        dispatch=by.dispatch_ns / 1e6,
        slow_down=by.slow_down,
        least_dispatch=min(one.dispatch_ns for one in alone.values()) / 1e6,
        most_dispatch=max(one.dispatch_ns for one in alone.values()) / 1e6,
        least_slow=min(one.slow_down for one in alone.values()),
        most_slow=max(one.slow_down for one in alone.values()),
        optimizer_bytes=OPTIMIZER_BYTES,
        bandwidth=BANDWIDTH_BYTES_PER_S / 1e12,
        least=min(steps),
        most=max(steps),
        left_out=markdown_table(
            ("left out", "slow-down", "slot, ms", "simulated", "closed form"),
            [[name, *_shown(of), _percent(off), _percent(closed[name])] for name, (of, off) in out.items()],
        ),
        alone=markdown_table(
            ("fitted on", "slow-down", "slot, ms"), [[name, *_shown(of)] for name, of in alone.items()]
        ),
        rows=markdown_table(
            [*_OF_ROW, "measured", "bare", "error", "predicted", "error", ""],
            [_cells(row, by) for row in rows],
        ),
    )
    paragraphs = re.split(r"\n\n+", filled.strip())
    return "\n\n".join(each if each[0] in "#|" else textwrap.fill(each, 110) for each in paragraphs) + "\n"


def _held_out(rows: Sequence[Measured], out: Sequence[Measured], step: Step = step_ns) -> tuple[Fit, float]:
    """Return the fit on the other rows, and its mean error on the rows left out."""
    by = fit([row for row in rows if not any(row is one for one in out)], step)
    return by, mean_error(out, by, step)


def _shown(by: Fit) -> list[str]:
    return [f"{by.slow_down:.3f}", f"{by.dispatch_ns / 1e6:.2f}"]


def _cells(row: Measured, by: Fit) -> list[str]:
    return [
        row.model,
        str(row.devices),
        f"{row.micro_batches} × {row.micro_batch}",
        row.schedule,
        f"{row.throughput:g}",
        f"{predict(row, BARE, schedule_ns):.2f}",
        f"{100 * error(row, BARE, schedule_ns):+.1f} %",
        f"{predict(row, by):.2f}",
        f"{100 * error(row, by):+.1f} %",
        "fitted" if row.group == FITTED else "",
    ]


def _percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def text() -> str:
    """Return the page for the rows that ship."""
    return report_text(measured())
