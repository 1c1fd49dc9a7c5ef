"""``sim schedule`` and ``sim collectives``: a pipeline schedule, or a collective, without a scenario."""

from __future__ import annotations

from typing import Any, Literal

import typer

from scenarios.cli.output import print_json, print_table
from scenarios.cli.running import save_picture
from sim.base.errors import InputError, UnknownNameError
from sim.base.units import format_bytes, format_count, format_duration, parse_bytes, round_half_up

ScheduleFormat = Literal["text", "torch-csv"]
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

    In the picture F = I = W = R = 1 tick and B = 2. For GPipe the clock cycles are printed too.

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
        An option of the schedule, such as order=fifo.
    format : --format
        A picture (rank × time), or CSV for torch (one row per rank).
    """
    import numpy as np

    from policies.pipeline.custom import need_readable, picture, to_csv
    from policies.pipeline.evaluate import StageTimes, evaluate
    from policies.pipeline.registry import generate, options
    from policies.pipeline.straight_schedules import clock_table
    from scenarios.file.document import plain_settings

    values = plain_settings(sets or (), "order=fifo")
    options(name)  # reports an unknown name before missing options
    if name != "custom":
        for option, value in (("--ranks", ranks), ("--micro-batches", micro_batches)):
            if value is None:
                raise InputError(f"{name} needs {option}")
    if format == "text":
        need_readable(max(ranks or 0, micro_batches or 0))
    program = generate(name, ranks=ranks, micro_batches=micro_batches, chunks=chunks, **values)
    if format == "torch-csv":
        typer.echo(to_csv(program), nl=False)
        return
    keys = ("forward", "input_grad", "weight_grad")  # zb-auto has them as options, of all stages or of each
    columns = np.broadcast_arrays(*(values.get(key, 1) for key in keys), np.ones(program.stages, int))[:3]
    times = [StageTimes(f, input_grad=i, weight_grad=w) for f, i, w in np.transpose(columns).tolist()]
    drawn = picture(program, evaluate(program, times, transfer=values.get("transfer", 0)))
    if name == "gpipe":
        typer.echo(f"{clock_table(program.micro_batches, program.stages)}\n")
    typer.echo(drawn)


def collectives(
    op: str = "all-reduce",
    nbytes: str | None = None,
    machine: str = "dgx-h100",
    nodes: int = 1,
    ranks: int | None = None,
    table: str | None = None,
    plot: str | None = None,
    json: bool = False,
) -> None:
    """Print the algorithm, protocol and channels that NCCL 2.30 chooses for a collective, and its time.

    The time is NCCL's own estimate and, within a node, also that of rates fitted to measurements. A channel
    is a thread block on an SM of its own. Each GPU has a network card of its own. For a machine without
    NVSwitches, this prints the fastest algorithm, and its time by the latency and bandwidth of the links.

    Parameters
    ----------
    op : --op KIND
        all-reduce, all-gather, reduce-scatter, all-to-all, broadcast, reduce or send.
    nbytes : --bytes SIZE
        A size, such as 64MB, as nccl-tests counts it: of the reduced buffer, of all that is gathered or
        scattered, of what a rank exchanges.
    machine : --machine NAME
        A machine preset; `sim devices` lists them.
    nodes : --nodes N >= 1 <= 65536
        How many of these machines.
    ranks : --ranks N
        How many GPUs take part, equally many in each node; default: all.
    table : --table CSV
        Measured times to compare with (.csv, .csv.gz), with the columns op, gpus, bytes and time_us.
    plot : --plot FILE
        Draw bus bandwidth by size (.png, .svg, .pdf).
    """
    from devices.collectives.formulas import Formula
    from devices.collectives.measured import MeasuredTable
    from scenarios.report import collective_sizes

    if op not in collective_sizes.KINDS:
        raise UnknownNameError("collective", op, collective_sizes.KINDS)
    size = None if nbytes is None else parse_bytes(nbytes, what="--bytes")
    kind = op.replace("-", "_")
    if op == "send" and nodes > 2:
        raise InputError(f"--nodes {nodes}: a message goes from one rank to one other, on one node or two")
    who = collective_sizes.ranks_of_nodes(machine, nodes, 2 if op == "send" and ranks is None else ranks)
    n_ranks = sum(who.per_node)
    if op == "send" and n_ranks != 2:
        raise InputError(f"--ranks {n_ranks}: a message goes from one rank to one other")
    measured = None if table is None else MeasuredTable(table)
    if measured is not None:
        measured.time_us(kind, n_ranks, 0)  # raises if it has no such collectives
    sizes = [one for one, _ in measured.sizes(kind, n_ranks)] if measured else []
    links = Formula(group=who.group)
    rows = [
        collective_sizes.row_of(kind, who, one, measured, links)
        for one in collective_sizes.sizes_around(size, sizes)
    ]
    title = f"{op} on {n_ranks} {who.word}, {format_count(nodes, 'node')} of {machine}"
    if plot is not None:
        save_picture(collective_sizes.draw_sizes(rows, title), plot)
    if json:
        head = {"op": op, "machine": machine, "nodes": nodes, "ranks": n_ranks}
        requested = next((row.to_json() for row in rows if row.nbytes == size), None)
        known_sizes = [row.to_json() for row in rows]
        schema = collective_sizes.COLLECTIVES_SCHEMA
        print_json({"schema": schema, **head, "asked": requested, "sizes": known_sizes})
    else:
        typer.echo(title)
        if who.gpu is None:
            typer.echo(
                "by its links, the fastest algorithm; NCCL's choice is known for GPUs on NVSwitches only"
            )
        _print_choice([row for row in rows if row.nbytes == size])
        typer.echo()
        _print_sizes(rows, size)


def _print_choice(rows: list[Any]) -> None:
    for row in rows:
        way, choice = row.algorithm, row.choice
        if choice is not None:
            channels = format_count(choice.channels, "channel")
            way += f", protocol {choice.protocol}, {channels} of {choice.threads} threads"
        typer.echo(
            f"{format_bytes(row.nbytes)}: {way}: {format_duration(round_half_up(row.best_us * 1000))}, "
            f"bus bandwidth {row.bus_gb_per_s(row.best_us) or 0:.1f} GB/s"
        )


def _print_sizes(rows: list[Any], requested: int | None) -> None:
    from sim.export.tables import text_table
    from sim.notebook import filled_columns

    def rate(gb_per_s: float | None) -> str:
        return "" if gb_per_s is None else f"{gb_per_s:.1f}"

    lines = []
    for row in rows:
        off = "" if row.measured_us is None else f"{100 * (row.best_us / row.measured_us - 1):+.1f}%"
        size = format_bytes(row.nbytes, iec=row.nbytes % 1024 == 0) + " <" * (row.nbytes == requested)
        more = {"size": size, "bus": rate(row.bus_gb_per_s(row.best_us)), "off": off}
        lines.append(row.to_json() | more | {"measured": rate(row.bus_gb_per_s(row.measured_us))})
    columns = ["size", "algorithm", "protocol", "channels", "NCCL expects: tuner_ns", "time: links_ns"]
    columns += ["fitted_ns", "bus GB/s: bus", "measured_ns", "measured GB/s: measured", "off by: off"]
    print_table(filled_columns(text_table(lines, columns)), left=3 if rows[0].choice is not None else 2)
