"""``docs/zero_bubble.md``: measured zero-bubble throughputs, from `studies.zero_bubble.zero_bubble_model`."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

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

_TEXT = """
# Zero-bubble schedules on A100s: 48 measured throughputs

Written by `python -m tools.pages zero-bubble`; do not edit.

How far can a simulated schedule be trusted? Qi et al. (Zero Bubble Pipeline Parallelism, arXiv 2401.10241,
tables 4 and 9) measured the samples per GPU and second of four schedules in twelve configurations, and
profiled the times of F, I, W and of a transfer. This page compares simulated throughputs with theirs. The
orders of ZB-1p and ZB-2p are searched for these times (`zb-auto`); 1F1B-I has a chunk for each layer.

Every prediction uses two parameters that were fitted on some of the 48 rows, so read the errors of the rows
left out.

Without them (*bare* in the last table), the schedule is off by {bare} on average, always too fast. With them,
fitted on the third of the rows with the middle number of micro-batches, predictions are off by **{mean}** on
average on the other {rest} rows, and by at most {largest} ({where}). With one model left out of the fit, its
error averages up to {models}; with one schedule, up to {schedules}.

**A formula comes close.** The textbook's formulas for the bubble, with transfers that take no time and the
same two parameters fitted on the same third, are off by {closed_mean} on the same {rest} rows; the
simulation is off by {mean_exactly}.

## What is fitted

**Dispatch of a slot: {dispatch:.2f} ms.** Every F, B, I or W takes this much longer.

**Slow-down against the profile: {slow_down:.3f}.** Every slot takes this many times its profiled time.

The rows cannot separate the two. Fitted on one model, one schedule or one third alone, the cost of a slot is
{least_dispatch:.2f} to {most_dispatch:.2f} ms and the slow-down {least_slow:.3f} to {most_slow:.3f}: one
makes up for the other. So the two do not explain the missing time; they only correct this table.

## What is not fitted

The optimizer step: {optimizer_bytes} bytes per parameter over {bandwidth:.2f} TB/s, {least:.0f} to
{most:.0f} ms per step.

Synchronisation: 1F1B and 1F1B-I wait for all devices before the optimizer, so a step takes the makespan. The
zero-bubble schedules check afterwards, so a step takes the longest span of a device.
"""

_GROUPS = ("fewest", "middle", "most")


def report_text(rows: Sequence[Measured]) -> str:
    """Return the report in Markdown; the same rows give the same text."""
    by = fit([row for row in rows if row.group == FITTED])
    thirds, models, schedules = (
        _parts(rows, lambda row: f"{_GROUPS[row.group]} micro-batches"),
        _parts(rows, lambda row: row.model),
        _parts(rows, lambda row: row.schedule),
    )
    alone = {name: fit(part) for name, part in (thirds | models | schedules).items()}
    out = {name: _held_out(rows, part) for name, part in (models | schedules).items()}
    closed = {name: _held_out(rows, part, closed_form_ns)[1] for name, part in (models | schedules).items()}
    rest = [row for row in rows if row.group != FITTED]
    worst = max(rest, key=lambda row: abs(error(row, by)))
    steps = [row.optimizer_ns / 1e6 for row in rows]
    by_formula = fit([row for row in rows if row.group == FITTED], closed_form_ns)
    text = _TEXT.format(
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
    )
    paragraphs = (" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))
    parts = [each if each.startswith("#") else textwrap.fill(each, 110) for each in paragraphs]
    parts += [
        "## Errors on what was left out",
        "Both parameters are fitted on all other rows; the errors are means over the rows left out.",
        _table(
            "left out | slow-down | slot, ms | simulated | closed form",
            [[name, *_shown(of), _percent(off), _percent(closed[name])] for name, (of, off) in out.items()],
        ),
        "## Fitted on one part alone",
        _table("fitted on | slow-down | slot, ms", [[name, *_shown(of)] for name, of in alone.items()]),
        "## Every row",
        "Samples per GPU and second; errors are shares of the measured value.",
        _table(
            "model | GPUs | micro-batches | schedule | measured | bare | error | predicted | error |",
            [_cells(row, by) for row in rows],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _parts(rows: Sequence[Measured], name_of: Callable[[Measured], str]) -> dict[str, list[Measured]]:
    """Return parts of the rows by name."""
    parts: dict[str, list[Measured]] = {}
    for row in rows:
        parts.setdefault(name_of(row), []).append(row)
    return parts


def _held_out(rows: Sequence[Measured], out: Sequence[Measured], step: Step = step_ns) -> tuple[Fit, float]:
    """Return the fit on the other rows, and its mean error on the rows left out."""
    by = fit([row for row in rows if not any(row is one for one in out)], step)
    return by, mean_error(out, by, step)


def _table(head: str, rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {head} |", "|---" * (head.count("|") + 1) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


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
