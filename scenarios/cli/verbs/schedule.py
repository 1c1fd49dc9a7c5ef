"""``sim schedule NAME --ranks P --micro-batches M``: a pipeline schedule by itself, drawn or as a table."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from scenarios.cli.shared_options import argument, completes, option, settings
from sim.base.errors import InputError

ScheduleFormat = Literal["text", "torch-csv", "clock"]
"""How a schedule is printed."""


def schedule(
    name: Annotated[
        str,
        argument(
            "NAME",
            "A pipeline schedule; `sim policies` lists them.",
            autocompletion=completes("sim.pipelines"),
        ),
    ],
    ranks: Annotated[int | None, option("--ranks P", "Number of ranks (devices).")] = None,
    micro_batches: Annotated[int | None, option("--micro-batches M", "Number of micro-batches.")] = None,
    chunks: Annotated[
        int | None, option("--chunks V", "Stages per rank; default: the schedule's own.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        settings("An option of the schedule, such as order=fifo, or a time in the picture: forward=2."),
    ] = None,
    format: Annotated[
        ScheduleFormat,
        option(
            "--format", "A picture (rank × time), CSV for torch (one row per rank), or GPipe's clock cycles."
        ),
    ] = "text",
) -> None:
    """Print a schedule.

    In the picture F = I = W = R = 1 tick and B = 2; change this with --set forward, backward, input_grad,
    weight_grad, recompute or transfer. For GPipe the clock cycles are printed too.
    """
    from policies.pipeline.custom import picture, to_csv
    from policies.pipeline.evaluate import StageTimes, evaluate
    from policies.pipeline.registry import generate
    from policies.pipeline.straight_schedules import clock_table

    times, given = _times_and_options(name, sets or ())
    if name != "custom":
        for option, value in (("--ranks", ranks), ("--micro-batches", micro_batches)):
            if value is None:
                raise InputError(f"{name} needs {option}")
    found = generate(name, ranks=ranks, micro_batches=micro_batches, chunks=chunks, **given)
    if format == "torch-csv":
        typer.echo(to_csv(found), nl=False)
        return
    clock = clock_table(found.micro_batches, found.stages) if name == "gpipe" else None
    if format == "clock":
        if clock is None:
            raise InputError(f"{name} does not go by clock cycles; gpipe does")
        typer.echo(clock)
        return
    if clock is not None:
        typer.echo(f"{clock}\n")
    transfer = times.pop("transfer", 0)
    stage = StageTimes(**{"forward": 1, "input_grad": 1, "weight_grad": 1, **times})
    typer.echo(picture(found, evaluate(found, stage, transfer=transfer)))


def _times_and_options(name: str, sets: Any) -> tuple[dict[str, int], dict[str, Any]]:
    """Split what --set says into times of the picture and options of the schedule."""
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
    return times, given


_TIMES = ("forward", "backward", "input_grad", "weight_grad", "recompute", "overlapped", "transfer")
