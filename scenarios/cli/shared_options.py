"""Arguments and options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer


def completes(*groups: str) -> Callable[[str], list[str]]:
    """Return a function that completes names of plugins in the shell; without groups, of all decisions."""

    def names(incomplete: str) -> list[str]:
        from scenarios.reference import DECISIONS
        from sim.base import plugins

        known = {
            name for group in groups or [one.group for one in DECISIONS] for name in plugins.names(group)
        }
        return sorted(name for name in known if name.startswith(incomplete))

    return names


def keys(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the keys of the scenario on the command line that begin with `incomplete`."""
    from scenarios.file.document import Document
    from sim.base.errors import SimError

    def below(value: Any, path: str) -> Iterator[str]:
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in inner:
            at = f"{path}.{key}" if path else str(key)
            nested = isinstance(each, dict | list) and each
            yield from below(each, at) if nested else [f"{at}="]

    try:
        root = Document.read(ctx.params["scenario"] or ctx.args[0]).root.plain()
    except (IndexError, SimError):  # no scenario yet, or one that cannot be read
        return []
    return [key for key in below(root, "") if key.startswith(incomplete)]


def option(name: str, help: str, **more: Any) -> Any:
    """Return an option for typer from ``"--jobs N"``, its name and the placeholder of its value."""
    flag, _, value = name.partition(" ")
    return typer.Option(flag, metavar=value or None, help=help, **more)


def argument(name: str, help: str, **more: Any) -> Any:
    """Return an argument for typer."""
    return typer.Argument(metavar=name, help=help, **more)


def settings(help: str, name: str = "--set", **more: Any) -> Any:
    """Return the option ``--set KEY=VALUE``, or another one of that form."""
    return option(f"{name} KEY=VALUE", help, **more)


ScenarioPath = Annotated[str, argument("SCENARIO", "A scenario file (YAML), or a recording.")]

Policies = Annotated[
    list[str] | None,
    option(
        "--policy NAME",
        "A policy, a runtime, or an entry of the scenario's `compare:`; may be given several times. A"
        " policy keeps the scenario's placement, streams and other decisions; a runtime replaces them"
        " all. A name of both means the policy.",
        autocompletion=completes("sim.policies", "sim.runtimes", "sim.pipelines"),
    ),
]


Maximise = Annotated[
    str | None, option("--maximise RESULT", "Find the largest value of a result: mfu, tokens_per_s, ...")
]

Minimise = Annotated[
    str | None,
    option(
        "--minimise RESULT",
        "Find the smallest value of a result that `expect:` knows: makespan, step_time, ...",
    ),
]

SubjectTo = Annotated[
    list[str] | None,
    option(
        "--subject-to LIMIT",
        "A limit that the answer must keep: 'peak_memory.gpu0<=80GB', or fits; may be given several times.",
    ),
]

Sets = Annotated[
    list[str] | None,
    settings(
        "Change the scenario: a dotted path and a YAML value, as in workload.batch=32.", autocompletion=keys
    ),
]

AllowCode = Annotated[
    bool, option("--allow-code", "Allow names of the form module:Class; this runs their code.")
]

AllowOutside = Annotated[
    bool, option("--allow-outside", "Allow the scenario to name files outside its own folder.")
]

Json = Annotated[bool, option("--json", "Print the result as JSON.")]


class Outputs(tuple[str, ...]):
    """Default of a verb's parameter `files`: the options that name them (`common_options.with_outputs`)."""


Open = Annotated[
    bool, option("--open", "Open the page of --gantt FILE.html in a browser; without that, a temporary one.")
]

Arrows = Annotated[bool, option("--arrows", "Draw arrows from producers to consumers into the Gantt chart.")]

CriticalPath = Annotated[
    bool, option("--critical-path", "Show the executed critical path in the Gantt chart.")
]

MemoryTrace = Annotated[
    str | None,
    option(
        "--memory-trace FILE",
        "Write what was allocated and freed, for `sim memory` (.jsonl, .jsonl.gz); if several devices"
        " have memory, a file for each.",
    ),
]

Repeat = Annotated[
    int | None, option("--repeat N", "Run with N seeds and print the distribution of the makespan.", min=1)
]

ShowGraph = Annotated[
    tuple[str, str] | None,
    option(
        "--show-graph BEFORE AFTER", "Write the graph before and after the `compile` steps (.json, .json.gz)."
    ),
]
