"""Arguments and options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer


def completes(*groups: str) -> Callable[[str], list[str]]:
    """Return what completes the name of a plugin in the shell; without groups, that of any decision."""

    def names(incomplete: str) -> list[str]:
        from scenarios.reference import DECISIONS
        from sim.base import plugins

        known = {
            name for group in groups or [one.group for one in DECISIONS] for name in plugins.names(group)
        }
        return sorted(name for name in known if name.startswith(incomplete))

    return names


ScenarioPath = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="A scenario file (YAML), or a recording.")
]

Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="NAME",
        autocompletion=completes("sim.policies", "sim.runtimes", "sim.pipelines"),
        help="A policy, a runtime, or an entry of the scenario's `compare:`; may be given several "
        "times. A policy keeps the scenario's placement, streams and other decisions; a "
        "runtime replaces them all. A name of both means the policy.",
    ),
]


def settings(help: str, option: str = "--set") -> Any:
    """Return the option ``--set KEY=VALUE``, or another one of its form."""
    return typer.Option(option, metavar="KEY=VALUE", help=help)


Maximise = Annotated[
    str | None,
    typer.Option("--maximise", metavar="RESULT", help="Seek the most of a result: mfu, tokens_per_s, ..."),
]

Minimise = Annotated[
    str | None,
    typer.Option(
        "--minimise",
        metavar="RESULT",
        help="Seek the least of a result that `expect:` knows: makespan, step_time, ...",
    ),
]

SubjectTo = Annotated[
    list[str] | None,
    typer.Option(
        "--subject-to",
        metavar="LIMIT",
        help="A limit that the answer keeps: 'peak_memory.gpu0<=80GB', or fits; may be given several times.",
    ),
]

Sets = Annotated[
    list[str] | None,
    settings("Change the scenario: a dotted path and a YAML value, as in workload.batch=32."),
]

AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Allow module:Class names in the scenario; this runs their code.")
]

AllowOutside = Annotated[
    bool, typer.Option("--allow-outside", help="Allow the scenario to name files outside its own folder.")
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

Gantt = Annotated[
    list[str] | None,
    typer.Option(
        "--gantt",
        metavar="FILE",
        help="Draw a Gantt chart (.png, .svg, .pdf, or .html to zoom into); with an allocator, also memory "
        "over time.",
    ),
]

Html = Annotated[
    list[str] | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Write a page (.html) with the Gantt chart to zoom into, memory, links, critical path, a table "
        "of ops, and why it took so long.",
    ),
]

Open = Annotated[
    bool, typer.Option("--open", help="Open that page in a browser; without --html it is a temporary file.")
]

Arrows = Annotated[
    bool, typer.Option("--arrows", help="Draw arrows from producers to consumers into the Gantt chart.")
]

CriticalPath = Annotated[
    bool, typer.Option("--critical-path", help="Show the executed critical path in the Gantt chart.")
]

TraceFile = Annotated[
    list[str] | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Write a trace for Perfetto (.json, .json.gz, .pftrace, .perfetto-trace); FOLDER/ "
        "takes a file for each GPU.",
    ),
]

Ops = Annotated[
    list[str] | None,
    typer.Option(
        "--ops", metavar="FILE", help="Write one row per task and transfer (.csv, .parquet, .json)."
    ),
]

MemoryFile = Annotated[
    list[str] | None,
    typer.Option(
        "--memory", metavar="FILE", help="Draw memory over time for each device (.png, .svg, .pdf)."
    ),
]

Links = Annotated[
    list[str] | None,
    typer.Option(
        "--links", metavar="FILE", help="Draw how much of each link is used over time (.png, .svg, .pdf)."
    ),
]

Roofline = Annotated[
    list[str] | None,
    typer.Option(
        "--roofline", metavar="FILE", help="Draw the ops under the roofs of their devices (.png, .svg, .pdf)."
    ),
]

Plan = Annotated[
    list[str] | None,
    typer.Option(
        "--plan",
        metavar="FILE",
        help="Write what the run decided (.json); `policy: {name: replay, file: FILE}` replays it.",
    ),
]

Tuning = Annotated[
    list[str] | None,
    typer.Option(
        "--tuning",
        metavar="FILE",
        help="Write the placements that `placement: auto-tune` tried, one row each (.csv, .parquet, .json).",
    ),
]

Timeline = Annotated[
    list[str] | None,
    typer.Option(
        "--timeline",
        metavar="FILE",
        help="Draw what a `training_run` and its workers do over time (.png, .svg, .pdf).",
    ),
]

MemoryTrace = Annotated[
    str | None,
    typer.Option(
        "--memory-trace",
        metavar="FILE",
        help="Write what was allocated and freed, for `sim memory` (.jsonl, .jsonl.gz); if several devices "
        "have memory, a file for each.",
    ),
]

Repeat = Annotated[
    int | None,
    typer.Option(
        "--repeat", metavar="N", min=1, help="Run with N seeds and print the distribution of the makespan."
    ),
]

ShowGraph = Annotated[
    tuple[str, str] | None,
    typer.Option(
        "--show-graph",
        metavar="BEFORE AFTER",
        help="Write the graph before and after the `compile` steps (.json, .json.gz).",
    ),
]
