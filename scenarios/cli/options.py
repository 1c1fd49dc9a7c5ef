"""Options that several verbs declare, and options that wrappers add to many (``--limit``, ``--theme``)."""

from __future__ import annotations

import inspect
import os
import re
import signal
import sys
import threading
from _thread import interrupt_main
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any, Final

import typer

from scenarios.docstrings import ParameterDoc, read_docstring
from sim.base.errors import InputError, SimError, UnknownNameError
from sim.base.plugins import Allowed


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

    def below(value: Any, path: str) -> Iterator[str]:
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in inner:
            at = f"{path}.{key}" if path else str(key)
            nested = isinstance(each, dict | list) and each
            yield from below(each, at) if nested else [f"{at}="]

    try:
        root = Document.read(ctx.params["scenario"] or ctx.args[0]).root.plain()
    except (IndexError, KeyError, SimError):  # no scenario yet, or one that cannot be read
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


SHARED: Final = {
    "scenario": argument("SCENARIO", "A scenario file (YAML), or a recording."),
    "policy": option(
        "--policy NAME",
        "A policy, a runtime, or an entry of the scenario's `compare:`; may be given several times. A policy "
        "keeps the scenario's placement, streams and other decisions; a runtime replaces them all. A name of "
        "both means the policy.",
        autocompletion=completes("sim.policies", "sim.runtimes", "sim.pipelines"),
    ),
    "sets": option(
        "--set KEY=VALUE",
        "Change the scenario: a dotted path and a YAML value, as in workload.batch=32.",
        autocompletion=keys,
    ),
    "maximise": option("--maximise RESULT", "Find the largest value of a result: mfu, tokens_per_s, ..."),
    "minimise": option(
        "--minimise RESULT",
        "Find the smallest value of a result that `expect:` knows: makespan, step_time, ...",
    ),
    "subject_to": option(
        "--subject-to LIMIT",
        "A limit that the answer must keep: 'peak_memory.gpu0<=80GB', or fits; may be given several times.",
    ),
    "jobs": option("--jobs N", "Run in N processes.", 1, min=1),
    "json": flag("--json", "Print the result as JSON."),
    "allow_code": flag("--allow-code", "Allow names of the form module:Class; this runs their code."),
    "open_page": flag(
        "--open", "Open the page of --gantt FILE.html in a browser; without that, a temporary one."
    ),
    "arrows": flag("--arrows", "Draw arrows from producers to consumers into the Gantt chart."),
    "critical_path": flag("--critical-path", "Show the executed critical path in the Gantt chart."),
}
"""Parameter of a verb -> its option, unless the docstring of the verb describes another one."""


class Outputs(tuple[str, ...]):
    """Default of a verb's parameter `files`: the options that name them (`with_outputs`)."""


# ----------------------------------------------------------------------------------------------------------
# Options that wrappers add to verbs.


def documented(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Return a verb with options for typer, as the parameters in its docstring describe them.

    ::

        paths : PATH...                an argument, and its name in help
        update : --update              an option without a value
        budget : --budget N >= 1       an option, the placeholder of its value, and the least one
            Make at most N runs.       its help
    """
    signature = inspect.signature(verb, eval_str=True)
    described = read_docstring(verb).parameters
    parameters = [
        each.replace(default=_declared(each, described.get(each.name)))
        for each in signature.parameters.values()
    ]

    @wraps(verb)
    def run(**given: Any) -> Any:
        return verb(**given)

    run.__doc__ = (inspect.getdoc(verb) or "").partition("\n\nParameters\n---")[0]
    return _with_parameters(run, parameters)


_FORM: Final = re.compile(r"(--[\w-]+)? ?(.*?)(?: ?>= (\d+))?")


def _declared(parameter: inspect.Parameter, told: ParameterDoc | None) -> Any:
    """Return the default of a parameter, which is its option."""
    if told is None:
        return SHARED.get(parameter.name, parameter.default)
    form = _FORM.fullmatch(told.type)
    assert form is not None
    name, placeholder, least = form.groups()
    default = ... if parameter.default is parameter.empty else parameter.default
    if name is None:
        return argument(placeholder, told.meaning, default)
    more = {"autocompletion": keys} if placeholder.startswith("KEY=") else {}
    return option(f"{name} {placeholder}", told.meaning, default, min=least and int(least), **more)


def _with_parameters(run: Callable[..., Any], parameters: list[inspect.Parameter]) -> Callable[..., Any]:
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def takes_also(
    run: Callable[..., Any],
    verb: Callable[..., Any],
    options: Mapping[str, tuple[Any, Any]],
    instead: str = "",
) -> Callable[..., Any]:
    """Return `run` with the signature of `verb` and further options, for typer to read.

    Parameters
    ----------
    run : callable
        Called instead of the verb, with the options as well.
    verb : callable
    options : mapping of str to (type, typer.Option)
    instead : str
        Parameter of the verb that the options replace.
    """
    plain = inspect.signature(verb, eval_str=True)
    own = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind)
        for name, (kind, option) in options.items()
    ]
    return _with_parameters(
        run, [*(each for each in plain.parameters.values() if each.name != instead), *own]
    )


def runs_in(
    context: Callable[[Any, Mapping[str, Any]], AbstractContextManager[None]],
    verb: Callable[..., Any],
    name: str,
    kind: Any,
    option: Any,
) -> Callable[..., Any]:
    """Return a verb that takes one more option, and runs in a context made of its value and other options."""

    @wraps(verb)
    def run(**given: Any) -> Any:
        with context(given.pop(name), given):
            return verb(**given)

    return takes_also(run, verb, {name: (kind, option)})


# ----------------------------------------------------------------------------------------------------------
# ``--allow-code``, ``--allow-outside``: a verb that reads scenarios gets both as one parameter, `allowed`.

_ALLOWED: Final = "allowed"


def with_permissions(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Return a verb that takes both options, if it has the parameter `allowed`, else the verb itself."""
    if _ALLOWED not in inspect.signature(verb).parameters:
        return verb

    @wraps(verb)
    def run(*, allow_code: bool, allow_outside: bool, **given: Any) -> Any:
        return verb(**given, allowed=Allowed(allow_code, allow_outside))

    outside = flag("--allow-outside", "Allow the scenario to name files outside its own folder.")
    options = {"allow_code": (bool, SHARED["allow_code"]), "allow_outside": (bool, outside)}
    return takes_also(run, verb, options, _ALLOWED)


# ----------------------------------------------------------------------------------------------------------
# ``--gantt FILE``, ``--ops FILE``, ...: output files, which a verb gets as one parameter, `files`.

_FILES: Final = "files"
_OUTPUTS: Final = {
    "gantt": "Draw a Gantt chart (.png, .svg, .pdf), with an allocator also memory over time; or write a "
    "page (.html) with the chart to zoom into, memory, links, critical path, a table of ops, and why it took "
    "so long.",
    "trace": "Write a trace for Perfetto (.json, .json.gz); FOLDER/ takes a file for each GPU.",
    "ops": "Write one row per task and transfer (.csv, .parquet, .json).",
    "memory": "Draw memory over time for each device (.png, .svg, .pdf).",
    "links": "Draw how busy each link is over time (.png, .svg, .pdf).",
    "roofline": "Draw the ops under the roofs of their devices (.png, .svg, .pdf).",
    "memory-trace": "Write what was allocated and freed, for `sim memory` (.jsonl, .jsonl.gz); if several "
    "devices have memory, a file for each.",
    "pareto": "For pipelines, plot time against memory (.png, .svg, .pdf).",
    "plan": "Write what the run decided (.json); `policy: {name: replay, file: FILE}` replays it.",
    "tuning": "Write the placements that `placement: auto-tune` tried, one row each (.csv, .parquet, .json).",
    "timeline": "Draw what a `training_run` and its workers do over time (.png, .svg, .pdf).",
}
"""Option → its help; `scenarios.report.outputs` writes the files."""


def with_outputs(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Return a verb that takes the options in the default of its parameter `files`, else the verb itself."""
    given = inspect.signature(verb).parameters.get(_FILES)
    if given is None or not isinstance(names := given.default, Outputs):
        return verb

    @wraps(verb)
    def run(**given: Any) -> Any:
        named = {name: given.pop(key) for key, name in name_of.items()}
        return verb(**given, files=named)

    name_of = {name.replace("-", "_"): name for name in names}
    kind = list[str] | None
    options = {key: (kind, option(f"--{name} FILE", _OUTPUTS[name])) for key, name in name_of.items()}
    return takes_also(run, verb, options, _FILES)


# ----------------------------------------------------------------------------------------------------------
# ``--limit SECONDS``: a command that takes longer is interrupted, as by Ctrl-C.
#
#     0 ──────────── SECONDS ──── + 1 s ──── + 2 s
#                    interrupt    again      a process that does not react is ended

_GRACE_S: Final = 2.0


class TimeLimitError(SimError):
    """Raised when a command exceeds ``--limit``; the exit status is that of ``timeout``."""

    exit_status = 124


def with_limit(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Return a verb that takes ``--limit`` as well, unless it has a ``--limit`` of its own."""
    if "limit" in inspect.signature(verb).parameters:
        return verb
    limit = option("--limit SECONDS", "Stop after this many seconds, with exit status 124.")
    return runs_in(lambda seconds, _: limited(seconds), verb, "limit", float | None, limit)


@contextmanager
def limited(seconds: float | None) -> Iterator[None]:
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
    said = f"stopped after {seconds:g} s (--limit)"
    up, over = threading.Event(), threading.Event()
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # in the background of a script, under nohup
    if ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_watch, args=(seconds, said, up, over), daemon=True).start()
    try:
        yield
    except KeyboardInterrupt as error:
        if not up.is_set():
            raise
        raise TimeLimitError(f"{said}; {error}" if str(error) else said) from None
    finally:
        over.set()
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _watch(seconds: float, said: str, up: threading.Event, over: threading.Event) -> None:
    if over.wait(seconds):
        return
    up.set()
    for _ in range(2):  # an interrupt in a finaliser or a callback of the garbage collector is lost
        _interrupt()
        if over.wait(_GRACE_S / 2):
            return
    print(said, file=sys.stderr, flush=True)
    os._exit(TimeLimitError.exit_status)


def _interrupt() -> None:
    if hasattr(signal, "pthread_kill"):  # unlike an interrupt, a signal ends a wait for a lock or a pipe
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        interrupt_main()


# ----------------------------------------------------------------------------------------------------------
# ``--force``: run even if more memory may be needed than is free (`sim.base.room`).

SIMULATING: Final = ("run", "compare", "explain", "check", "whatif")
"""Verbs that take it: those that simulate in this process."""


def with_force(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Return a verb that takes ``--force`` as well."""

    def any_size(force: bool, given: Mapping[str, Any]) -> AbstractContextManager[None]:
        from sim.base import room

        return room.any_size(force)

    force = flag("--force", "Run even if it seems to need more memory than is free.")
    return runs_in(any_size, verb, "force", bool, force)


# ----------------------------------------------------------------------------------------------------------
# ``--theme light|dark|print``: an option of every verb that draws, added in one place like ``--limit``.
#
# A verb draws if it has an option of `PICTURES`; one that writes a report always does. The theme applies to
# everything that is drawn and saved while the verb runs (`sim.plot.theme`).

THEMES: Final = ("light", "dark", "print")
"""Names of the themes in `sim.plot.theme`, whose imports would slow down help."""
PICTURES: Final = ("gantt", "links", "memory", "roofline", "timeline", "plot", "pareto", "report")
"""Options that name the file of a picture or a page, or the folder of a report."""


def with_theme(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Return a verb that takes ``--theme`` as well, if it draws, else the verb itself."""
    parameters = inspect.signature(verb).parameters
    draws = [name for name in parameters if name in PICTURES]
    if not draws or "theme" in parameters:
        return verb

    def drawn_in(name: str | None, given: Mapping[str, Any]) -> AbstractContextManager[None]:
        if name is None:
            return nullcontext()
        if name not in THEMES:
            raise UnknownNameError("theme", name, THEMES, path=["--theme"])
        if not any(given[name] for name in draws) and not given.get("open_page") and draws != ["report"]:
            options = ", ".join(f"--{name}" for name in draws)
            raise InputError(f"--theme {name}: is how a picture looks; name the file of one ({options})")
        from sim.plot.theme import theme

        return theme(name)

    theme = option(
        "--theme NAME",
        "How pictures and pages look: light, dark, or print (every colour has a hatch).",
        autocompletion=lambda incomplete: [name for name in THEMES if name.startswith(incomplete)],
    )
    return runs_in(drawn_in, verb, "theme", str | None, theme)
