"""``sim schedule NAME --ranks P --micro-batches M``: a pipeline schedule by itself, drawn or as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import typer

from sim.base.errors import InputError
from sim.base.units import parse_bytes

if TYPE_CHECKING:
    from policies.pipeline.pipeline_schedule import Schedule

ScheduleFormat = Literal["text", "torch-csv", "clock"]
"""Output formats of a schedule."""


def schedule(
    name: str,
    ranks: int | None = None,
    micro_batches: int | None = None,
    chunks: int | None = None,
    sets: list[str] | None = None,
    format: ScheduleFormat = "text",
) -> None:
    """Print a schedule.

    In the picture F = I = W = R = 1 tick and B = 2; change this with --set forward, backward, input_grad,
    weight_grad, recompute or transfer. For GPipe the clock cycles are printed too.

    Parameters
    ----------
    name : NAME
        A pipeline schedule; `sim policies` lists them.
    ranks : --ranks P
        Number of ranks (devices).
    micro_batches : --micro-batches M
        Number of micro-batches.
    chunks : --chunks V
        Stages per rank; default: the schedule's own.
    sets : --set KEY=VALUE
        An option of the schedule, such as order=fifo, or a time in the picture: forward=2.
    format : --format
        A picture (rank × time), CSV for torch (one row per rank), or GPipe's clock cycles.
    """
    from policies.pipeline.custom import need_readable, picture, to_csv
    from policies.pipeline.evaluate import StageTimes, evaluate
    from policies.pipeline.registry import generate
    from policies.pipeline.straight_schedules import clock_table

    times, given = _times_and_options(name, sets or ())
    if name != "custom":
        for option, value in (("--ranks", ranks), ("--micro-batches", micro_batches)):
            if value is None:
                raise InputError(f"{name} needs {option}")
    if format == "text":
        need_readable(max(ranks or 0, micro_batches or 0))
    found = generate(name, ranks=ranks, micro_batches=micro_batches, chunks=chunks, **given)
    _refuse_without_effect(name, {key: times[key] for key in times if key not in given}, found, format)
    if format == "torch-csv":
        typer.echo(to_csv(found), nl=False)
        return
    if format == "clock":
        if name != "gpipe":
            raise InputError(f"{name} does not go by clock cycles; gpipe does")
        typer.echo(clock_table(found.micro_batches, found.stages))
        return
    transfer = times.pop("transfer", 0)
    stage = StageTimes(**{"forward": 1, "input_grad": 1, "weight_grad": 1, **times})
    drawn = picture(found, evaluate(found, stage, transfer=transfer))
    if name == "gpipe":
        typer.echo(f"{clock_table(found.micro_batches, found.stages)}\n")
    typer.echo(drawn)


def _times_and_options(name: str, sets: Any) -> tuple[dict[str, int], dict[str, Any]]:
    """Split --set options into times of the picture and options of the schedule."""
    from policies.pipeline.registry import options
    from scenarios.file.document import plain_settings

    known = options(name)
    times: dict[str, int] = {}
    given: dict[str, Any] = {}
    for key, read in plain_settings(sets, "order=fifo").items():
        if key in _TIMES:
            if isinstance(read, bool) or not isinstance(read, int) or read < 0:
                raise InputError(f"--set {key}={read}: should be a whole number of ticks")
            times[key] = read
        if key in known or key not in _TIMES:
            given[key] = read
    if name == "zb-auto" and isinstance(given.get("limit"), str):  # a size, as in a scenario
        if not isinstance(given.get("kept"), str):
            raise InputError("--set limit: for a size say what a micro-batch holds, too: --set kept=500MB")
        given |= {key: parse_bytes(given[key], what=f"--set {key}") for key in ("limit", "kept")}
    return times, given


_TIMES = {
    "forward": "F", "backward": "B", "input_grad": "IB", "weight_grad": "WB", "recompute": "R",
    "overlapped": "+", "transfer": "F",
}  # fmt: skip
"""Time → what has this duration in a schedule: phases, or ``+``, a forward and a backward at once."""


def _refuse_without_effect(
    name: str, times: Mapping[str, int], found: Schedule, format: ScheduleFormat
) -> None:
    """Raise if a time has no effect: there is no picture, or nothing in the schedule takes this time."""
    if times and format != "text":
        raise InputError(f"--set {next(iter(times))}: a time of the picture, which --format {format} is not")
    there: set[str] = set()
    for slot in (slot for program in found.programs for slot in program if times):
        there |= {action.phase for action in slot.parts} | ({"+"} if len(slot.parts) > 1 else set())
    for key in times:
        if not there & set(_TIMES[key]):
            raise InputError(f"--set {key}={times[key]}: nothing in a schedule {name} takes this time")
