"""Arguments and options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

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


def option(name: str, help: str, default: Any = None, **more: Any) -> Any:
    """Return an option for typer from ``"--jobs N"``, its name and the placeholder of its value."""
    flag, _, value = name.partition(" ")
    return typer.Option(default, flag, metavar=value or None, help=help, **more)


def flag(name: str, help: str) -> Any:
    """Return an option without a value."""
    return option(name, help, False)


def argument(name: str, help: str, default: Any = ..., **more: Any) -> Any:
    """Return an argument for typer."""
    return typer.Argument(default, metavar=name, help=help, **more)


def settings(help: str, name: str = "--set", **more: Any) -> Any:
    """Return the option ``--set KEY=VALUE``, or another one of that form."""
    return option(f"{name} KEY=VALUE", help, **more)


SCENARIO = argument("SCENARIO", "A scenario file (YAML), or a recording.")
POLICIES = option(
    "--policy NAME",
    "A policy, a runtime, or an entry of the scenario's `compare:`; may be given several times. A policy "
    "keeps the scenario's placement, streams and other decisions; a runtime replaces them all. A name of "
    "both means the policy.",
    autocompletion=completes("sim.policies", "sim.runtimes", "sim.pipelines"),
)
SETS = settings(
    "Change the scenario: a dotted path and a YAML value, as in workload.batch=32.", autocompletion=keys
)
MAXIMISE = option("--maximise RESULT", "Find the largest value of a result: mfu, tokens_per_s, ...")
MINIMISE = option(
    "--minimise RESULT",
    "Find the smallest value of a result that `expect:` knows: makespan, step_time, ...",
)
SUBJECT_TO = option(
    "--subject-to LIMIT",
    "A limit that the answer must keep: 'peak_memory.gpu0<=80GB', or fits; may be given several times.",
)
JOBS = option("--jobs N", "Run in N processes.", 1, min=1)
JSON = flag("--json", "Print the result as JSON.")
ALLOW_CODE = flag("--allow-code", "Allow names of the form module:Class; this runs their code.")
ALLOW_OUTSIDE = flag("--allow-outside", "Allow the scenario to name files outside its own folder.")
OPEN = flag("--open", "Open the page of --gantt FILE.html in a browser; without that, a temporary one.")
ARROWS = flag("--arrows", "Draw arrows from producers to consumers into the Gantt chart.")
CRITICAL_PATH = flag("--critical-path", "Show the executed critical path in the Gantt chart.")


class Outputs(tuple[str, ...]):
    """Default of a verb's parameter `files`: the options that name them (`common_options.with_outputs`)."""
