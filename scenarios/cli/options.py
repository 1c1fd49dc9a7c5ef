"""Makes commands of verbs: options come from docstrings, and some are added to many verbs.

::

    paths : PATH...                an argument, and its name in help
    update : --update              an option without a value
    budget : --budget N >= 1       an option, the placeholder of its value, and the least one
        Make at most N runs.       its help
    plot : --plot FILE             a file to write; before anything runs, its name is held to
        Draw it (.png, .svg).      the endings in its help

A verb describes its own parameters; those of many verbs stand here.

Parameters
----------
scenario : SCENARIO
    A scenario file (YAML), or a recording.
policy : --policy NAME
    A policy, a runtime, or an entry of the scenario's `compare:`; may be given several times. A policy keeps
    the scenario's placement, streams and other decisions; a runtime replaces them all. A name of both means
    the policy.
sets : --set KEY=VALUE
    Change the scenario: a dotted path and a YAML value, as in workload.batch=32.
maximise : --maximise RESULT
    Find the largest value of a result: mfu, tokens_per_s, ...
minimise : --minimise RESULT
    Find the smallest value of a result that `expect:` knows: makespan, step_time, ...
subject_to : --subject-to LIMIT
    A limit that the answer must keep: 'peak_memory.gpu0<=80GB', or fits; may be given several times.
jobs : --jobs N >= 1
    Run in N processes.
json : --json
    Print the result as JSON.
open_page : --open
    Open the page of --gantt FILE.html in a browser; without that, a temporary one.
arrows : --arrows
    Draw arrows from producers to consumers into the Gantt chart.
critical_path : --critical-path
    Show the executed critical path in the Gantt chart.
gantt : --gantt FILE
    Draw a Gantt chart (.png, .svg, .pdf), with an allocator also memory over time; or write a page (.html)
    with the chart to zoom into, memory, links, critical path, a table of ops, and why it took so long.
trace : --trace FILE
    Write a trace for Perfetto (.json, .json.gz); FOLDER/ takes a file for each GPU.
ops : --ops FILE
    Write one row per task and transfer (.csv, .csv.gz, .json, .json.gz, .parquet).
memory : --memory FILE
    Draw memory over time for each device (.png, .svg, .pdf).
links : --links FILE
    Draw how busy each link is over time (.png, .svg, .pdf).
roofline : --roofline FILE
    Draw the ops under the roofs of their devices (.png, .svg, .pdf).
memory_trace : --memory-trace FILE
    Write what was allocated and freed, for `sim memory` (.jsonl, .jsonl.gz); if several devices have memory,
    a file for each.
pareto : --pareto FILE
    For pipelines, plot time against memory (.png, .svg, .pdf).
plan : --plan FILE
    Write what the run decided (.json); `policy: {name: replay, file: FILE}` replays it.
tuning : --tuning FILE
    Write the placements that `placement: auto-tune` tried, one row each (.csv, .csv.gz, .json, .json.gz,
    .parquet).
timeline : --timeline FILE
    Draw what a `training_run` and its workers do over time (.png, .svg, .pdf).
allow_code : --allow-code
    Allow names of the form module:Class; this runs their code.
allow_outside : --allow-outside
    Allow the scenario to name files outside its own folder.
theme : --theme NAME
    How pictures and pages look: light, dark, or print (every colour has a hatch).
limit : --limit SECONDS
    Stop after this many seconds, with exit status 124.
force : --force
    Run even if it seems to need more memory than is free.
"""

from __future__ import annotations

import inspect
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, Final

import typer

from scenarios.cli.output import json_alone
from scenarios.docstrings import ParameterDoc, read_docstring
from sim.base.errors import InputError, SimError, UnknownNameError
from sim.base.plugins import Allowed

THEMES: Final = ("light", "dark", "print")
"""Names of the themes in `sim.plot.theme`, whose imports would slow down help."""
PICTURES: Final = ("gantt", "links", "memory", "roofline", "timeline", "plot", "pareto", "report")
"""Options that name the file of a picture or a page, or the folder of a report."""


def as_command(
    verb: Callable[..., Any], *, ours: bool = True, at_once: bool = False, simulates: bool = False
) -> Callable[..., Any]:
    """Return a verb for typer: with its options, and those that many verbs have.

    Parameters
    ----------
    verb : callable
        If it has a parameter `allowed`, two options say what is allowed. The default of a parameter `files`
        lists options that name files, which the verb gets as a mapping.
    ours : bool
        Whether its docstring describes its options; otherwise typer's own do.
    at_once : bool
        Whether it takes no time, and so needs no ``--limit``.
    simulates : bool
        Whether it may need much memory, which ``--force`` ignores.
    """
    signature = inspect.signature(verb, eval_str=True)
    parameters = dict(signature.parameters)
    described = {**_SHARED, **(read_docstring(verb).parameters if ours else {})}
    files: Any = parameters.pop("files").default if "files" in parameters else ()
    names = {name.replace("-", "_"): name for name in files}
    more: dict[str, Any] = dict.fromkeys(names, list[str] | None)
    if parameters.pop("allowed", None) is not None:
        more |= {"allow_code": bool, "allow_outside": bool}
    draws = [name for name in (*parameters, *names) if name in PICTURES]
    if draws:
        more["theme"] = str | None
    if not at_once:
        more["limit"] = float | None
    if simulates:
        more["force"] = bool
    more = {name: kind for name, kind in more.items() if name not in parameters}

    @wraps(verb)
    def run(**values: Any) -> Any:
        with ExitStack() as stack:
            if ours and values.get("json"):
                stack.enter_context(json_alone())
            if "limit" in more:
                stack.enter_context(time_limit(values.pop("limit")))
            if "theme" in more and (theme := values.pop("theme")) is not None:
                from sim.plot.theme import theme as drawn_in

                _check_theme(theme, draws, values)
                stack.enter_context(drawn_in(theme))
            if "force" in more:
                from sim.base import room

                stack.enter_context(room.any_size(values.pop("force")))
            if "allow_outside" in more:
                values["allowed"] = Allowed(values.pop("allow_code"), values.pop("allow_outside"))
            if names:
                values["files"] = {name: values.pop(key) for key, name in names.items()}
            return verb(**values)

    for name, kind in more.items():
        default = False if kind is bool else None
        parameters[name] = inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
        )
    for name, parameter in parameters.items():
        if name in described and (ours or name in more):
            option: Any = _declare(described[name], parameter.default, verb.__name__.strip("_"))
            if name not in more and option.metavar == "FILE":
                option.callback = _checks_name(name, option.help)
            parameters[name] = parameter.replace(default=option)
    if ours:
        run.__doc__ = (inspect.getdoc(verb) or "").partition("\n\nParameters\n---")[0]
    run.__signature__ = signature.replace(parameters=[*parameters.values()])  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return run


_SHARED: Final = read_docstring(sys.modules[__name__]).parameters
_FORM: Final = re.compile(r"(--[\w-]+)? ?(.*?)(?: ?>= (\d+))?(?: ?<= (\d+))?")


def _declare(doc: ParameterDoc, default: Any, verb: str) -> Any:
    """Return the argument or option for typer that a docstring describes."""
    form = _FORM.fullmatch(doc.type)
    assert form is not None
    name, placeholder, least, most = form.groups()
    settings: dict[str, Any] = {"min": least and int(least), "max": most and int(most), "help": doc.meaning}
    settings["default"] = ... if default is inspect.Parameter.empty else default
    settings["autocompletion"] = _COMPLETED.get(name or f"{verb} {placeholder}")
    if name is None:
        return typer.Argument(metavar=placeholder, **settings)
    return typer.Option(settings.pop("default"), name, metavar=placeholder or None, **settings)


def _checks_name(option: str, help: str) -> Callable[[Any], Any] | None:
    """Return a function that refuses names without one of the endings in an option's help, if it has any."""
    endings = re.search(r"\((\.[^)]*)\)", help)
    if endings is None:
        return None

    def check(value: Any) -> Any:
        from scenarios.report.outputs import check_path

        for path in value if isinstance(value, list) else [value]:
            check_path(option, path, tuple(endings[1].split(", ")))
        return value

    return check


def _check_theme(name: str, draws: Collection[str], values: Mapping[str, Any]) -> None:
    if name not in THEMES:
        raise UnknownNameError("theme", name, THEMES, path=["--theme"])
    if not any(values[name] for name in draws) and not values.get("open_page") and draws != ["report"]:
        options = ", ".join(f"--{name}" for name in draws)
        raise InputError(f"--theme {name}: is how a picture looks; name the file of one ({options})")


# ----------------------------------------------------------------------------------------------------------
# What the shell completes.


def completes(*groups: str) -> Callable[[str], list[str]]:
    """Return a function that completes names of plugins in the shell; without groups, of all decisions."""

    def names(incomplete: str) -> list[str]:
        from scenarios.reference import DECISIONS
        from sim.base import plugins

        candidates = {
            name for group in groups or [one.group for one in DECISIONS] for name in plugins.names(group)
        }
        return sorted(name for name in candidates if name.startswith(incomplete))

    return names


def keys(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the keys of the scenario on the command line that begin with `incomplete`."""
    from scenarios.file.document import Document

    def below(value: Any, path: str) -> Iterator[str]:
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in inner:
            key_path = f"{path}.{key}" if path else str(key)
            nested = isinstance(item, dict | list) and item
            yield from below(item, key_path) if nested else [f"{key_path}="]

    try:
        root = Document.read(ctx.params["scenario"] or ctx.args[0]).root.plain()
    except (IndexError, KeyError, SimError):  # no scenario yet, or one that cannot be read
        return []
    return [key for key in below(root, "") if key.startswith(incomplete)]


def templates(incomplete: str) -> list[str]:
    """Return the names of templates and examples that begin with `incomplete`."""
    from scenarios.shipped import shipped_scenarios

    return [one.name for one in shipped_scenarios() if one.name.startswith(incomplete)]


_COMPLETED: Final[Mapping[str, Callable[..., list[str]]]] = {
    "--policy": completes("sim.policies", "sim.runtimes", "sim.pipelines"),
    "--set": keys,
    "--template": templates,
    "--theme": lambda incomplete: [name for name in THEMES if name.startswith(incomplete)],
    "--vary": keys,
    "devices NAME": completes("sim.devices", "sim.machines"),
    "list NAME": templates,
    "policies NAME": completes(),
    "runtimes NAME": completes("sim.runtimes"),
    "schedule NAME": completes("sim.pipelines"),
}
"""Option, or verb and argument -> a function that completes its value."""


# ----------------------------------------------------------------------------------------------------------
# ``--limit SECONDS``: a command that takes longer is interrupted, as by Ctrl-C.
#
#     0 ──────────── SECONDS ──── + 1 s ──── + 2 s
#                    interrupt    again      a process that does not react is ended

_GRACE_S: Final = 2.0


class TimeLimitError(SimError):
    """Raised when a command exceeds ``--limit``; the exit status is that of ``timeout``."""

    exit_status = 124


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Interrupt the block, which runs in the main thread, after `seconds`; None: never.

    Raises
    ------
    TimeLimitError
        The time is up.
    """
    if seconds is None:
        yield
        return
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise typer.BadParameter("--limit should be a number of seconds, more than 0")
    message = f"stopped after {seconds:g} s (--limit)"
    up, done = threading.Event(), threading.Event()
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # in the background of a script, under nohup
    if ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_watch, args=(seconds, message, up, done), daemon=True).start()
    try:
        yield
    except KeyboardInterrupt as error:
        if not up.is_set():
            raise
        raise TimeLimitError(f"{message}; {error}" if str(error) else message) from None
    finally:
        done.set()
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _watch(seconds: float, message: str, up: threading.Event, done: threading.Event) -> None:
    if done.wait(seconds):
        return
    up.set()
    for _ in range(2):  # an interrupt in a finaliser or a callback of the garbage collector is lost
        # Unlike `interrupt_main`, a signal ends a wait for a lock or a pipe.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        if done.wait(_GRACE_S / 2):
            return
    print(message, file=sys.stderr, flush=True)
    os._exit(TimeLimitError.exit_status)
