"""Arguments and options that several verbs share."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = [
    "AllowCode",
    "Gantt",
    "Json",
    "MemoryFile",
    "Ops",
    "Policies",
    "Repeat",
    "ScenarioPath",
    "Sets",
    "ShowGraph",
    "TraceFile",
]

ScenarioPath = Annotated[str, typer.Argument(metavar="SCENARIO", help="A scenario file (YAML).")]

Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="NAME",
        help="An entry of the scenario's `compare`, a policy or a runtime; may be given several times. "
        "A policy keeps the scenario's placement, streams and other decisions; a runtime replaces them all. "
        "Where both have the name, the policy is meant.",
    ),
]

Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change the scenario: a dotted path and a YAML value, as in workload.batch=32.",
    ),
]

AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Let the scenario name module:Class, which runs its code.")
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

Gantt = Annotated[
    str | None,
    typer.Option(
        "--gantt",
        metavar="FILE",
        help="Draw a Gantt chart (.png, .svg, .pdf; .html to zoom into), and below it memory over time, if "
        "there is an allocator.",
    ),
]

TraceFile = Annotated[
    str | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Write a trace for Perfetto (.json, .json.gz, .pftrace, .perfetto-trace).",
    ),
]

Ops = Annotated[
    str | None,
    typer.Option("--ops", metavar="FILE", help="Write one row a task (.csv, .parquet, .json)."),
]

MemoryFile = Annotated[
    str | None,
    typer.Option(
        "--memory", metavar="FILE", help="Draw memory over time, device by device (.png, .svg, .pdf)."
    ),
]

Repeat = Annotated[
    int | None,
    typer.Option(
        "--repeat", metavar="N", min=1, help="Run with N seeds, and tell how the makespan is distributed."
    ),
]

ShowGraph = Annotated[
    tuple[str, str] | None,
    typer.Option(
        "--show-graph",
        metavar="BEFORE AFTER",
        help="Write the graph before and after the steps of `compile` (.json, .json.gz).",
    ),
]
