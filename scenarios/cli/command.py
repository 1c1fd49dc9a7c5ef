"""The command ``sim``: its verbs, and their exit status.

=====  ==================================================================================
0      done
1      a check failed, or the workload cannot run on the machine (out of memory, stuck)
2      wrong usage, a wrong scenario, or an error in a class that it names
3      an error in this program; SIM_TRACEBACK=1 shows where
124    it took longer than --limit allows
130    interrupted
=====  ==================================================================================

Errors of the user are reported on stderr without a traceback; only results go to stdout. With ``--json``, a
command without a result prints ``{"schema": "sim.error/1", "error", "message", "exit_status"}`` there.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from scenarios.cli.options import as_command
from scenarios.cli.output import place_of_other_code, print_json, show_warnings, terminal
from sim.base import plugins
from sim.base.errors import InputError, ScenarioError, SimError, UnknownNameError

# Docstrings are wrapped to the width of the terminal, not to that of the source.
_STYLE: Final[Any] = {"rich_markup_mode": "markdown", "pretty_exceptions_enable": False}

_VERBS: Final = {
    "new": ("names:new", "Write a first scenario, from a few questions or a template."),
    "list": ("names:list_", "List the templates and examples that ship."),
    "run": ("run:run", "Run a scenario and print the results."),
    "compare": ("run:compare", "Run the same work under several policies and explain the differences."),
    "diff": ("recordings:diff", "Show what differs between two runs or recordings, and what moved first."),
    "explain": ("run:explain", "Show the critical path and why devices were idle."),
    "check": ("run:check", "Check every `expect:` of scenarios; exit 1 if one fails."),
    "import": ("recordings:import_", "Convert a model in any known format to a graph file."),
    "policies": ("names:policies", "List the policies and the other decisions."),
    "devices": ("names:devices", "List the device and machine presets and the keys of a device."),
    "runtimes": ("names:runtimes", "List the runtimes."),
    "whatif": ("recordings:whatif", "Show what would make a recorded program faster, and by how much."),
    "collectives": ("parts:collectives", "Show how NCCL runs a collective, and how long it takes."),
    "memory": ("recordings:memory", "Replay an allocation trace through allocators."),
    "schedule": ("parts:schedule", "Print a pipeline schedule as a picture, or as CSV for torch."),
    "schema": ("names:schema", "Print the JSON Schema of scenario files, for editors."),
    "sweep": ("search:sweep", "Run a scenario at every combination of settings."),
    "optimum": ("search:optimum", "Find the best possible schedule, or how far the policies are from it."),
    "bench": ("search:bench", "Compare policies and solvers on a set of instances."),
    "tune": ("search:tune", "Search for the best settings, order, placement and streams."),
}
"""Verb -> its function in `scenarios.cli.verbs` and its line in help, which lists them in this order."""


_INSTANT: Final = ("policies", "devices", "runtimes", "schema", "list", "new")
"""Verbs that take no time, and so need no `--limit`."""

_SIMULATING: Final = ("run", "compare", "explain", "check", "whatif")
"""Verbs that simulate in this process, and may need more memory than is free."""

_FILE_PARAMETERS: Final = ("scenario", "file", "trace", "paths")
"""Parameters that name the file that a verb reads."""

_OUTPUT_METAVARS: Final = ("FILE", "BEFORE AFTER")
"""Placeholders in help for files that an option writes."""

_USAGE: Final[Any] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""Base class of errors that typer reports itself: wrong usage."""


def _texts(value: Any) -> list[str]:
    """Return the strings among the values of a parameter."""
    return [text for text in (value if isinstance(value, list | tuple) else [value]) if isinstance(text, str)]


class _Verb(TyperCommand):
    """A verb of ours: refuses options that are given twice, and records the file that it reads."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; typer alone would silently use the last value of a repeated option."""
        repeated: Any = self.make_parser(ctx).parse_args(list(args))[2]
        for param in repeated:
            once = param.param_type_name == "option" and not (param.multiple or param.is_flag)
            if once and repeated.count(param) > 1:
                raise typer.BadParameter(f"{param.opts[0]} is given twice", ctx=ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb, after recording the file that it reads, for messages about errors."""
        ctx.meta["file"] = next((ctx.params[name] for name in _FILE_PARAMETERS if name in ctx.params), None)
        ctx.meta["json"] = ctx.params.get("json") or ctx.params.get("format") == "json"
        self._refuse_to_write_over_what_is_read(ctx)
        return super().invoke(ctx)

    def _refuse_to_write_over_what_is_read(self, ctx: Any) -> None:
        read: list[str] = []
        written: dict[str, str] = {}
        for param in self.params:
            names = _texts(ctx.params.get(param.name))
            if param.param_type_name == "argument":
                read += names
            elif param.metavar in _OUTPUT_METAVARS:
                written |= {os.path.realpath(name): f"{param.opts[0]} {name}" for name in names}
        if not any(map(os.path.isfile, written)):
            return
        for name in read:
            for path, description in ((name, "which is read"), *_named_in(name)):
                if (option := written.get(os.path.realpath(path))) is not None:
                    raise InputError(f"{option}: would write over {path}, {description}")


def _named_in(name: str) -> Iterator[tuple[str, str]]:
    """Yield the files that a scenario names, and a description; those of ``expect`` may be overwritten."""
    from scenarios.file.document import Document
    from scenarios.file.yaml_read import texts_in

    if not name.endswith((".yaml", ".yml")):
        return
    with suppress(InputError, OSError):  # errors in it are reported when it is run
        document = Document.read(name)
        for text in texts_in(document.root.plain(leave_out=("expect", "compare"))):
            if os.path.isfile(document.directory / text):
                with suppress(InputError):
                    yield str(document.file(text)), f"which {name} names"


_PICTURES: Final = frozenset({"chart", "draw", "gantt", "plot"})


class _Sim(TyperGroup):
    """Creates verbs when they are named, and turns errors into exit statuses, for shells and tests alike."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._providers: dict[str, str] = {}
        """Verb -> the plugin that provides it."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a verb; for an unknown name, create all verbs, so that the nearest one can be suggested."""
        if cmd_name in _VERBS and cmd_name not in self.commands:
            where, line = _VERBS[cmd_name]
            module, _, function = where.partition(":")
            verb = getattr(import_module(f"scenarios.cli.verbs.{module}"), function)
            self._add(lambda app: app.command(cmd_name, short_help=line)(verb))
        elif cmd_name not in self.commands:
            self.list_commands(ctx)
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return a verb; for the name of a picture, say which option draws it."""
        if args[0] in _PICTURES and not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"No such command {args[0]!r}. A picture of a run: sim run SCENARIO --gantt FILE.png")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return all verbs after creating them: ours, then those of other packages."""
        for name in _VERBS:
            self.get_command(ctx, name)
        with warnings.catch_warnings():
            show_warnings()
            built_in = plugins.built_in("sim.commands")
            for name in sorted(plugins.names("sim.commands"), key=lambda name: (name not in built_in, name)):
                with suppress(UnknownNameError):  # it cannot be loaded: a warning says why
                    self._add(plugins.lookup("sim.commands", name), name)
        return sorted(self.commands, key=[*_VERBS, *self.commands].index)

    def _add(self, add_to: Callable[[typer.Typer], object], plugin: str = "sim") -> None:
        """Add the verbs that a module or another package registers, except those whose names are taken."""
        part = typer.Typer(**_STYLE)
        add_to(part)
        for info in part.registered_commands:
            if info.cls in (None, TyperCommand):
                info.cls = _Verb
            if info.callback is not None:
                ours, name = plugin in ("sim", *plugins.built_in("sim.commands")), info.name
                at_once, simulates = name in _INSTANT, ours and name in _SIMULATING
                info.callback = as_command(info.callback, ours=ours, at_once=at_once, simulates=simulates)
        for name, verb in get_group(part).commands.items():
            first = self._providers.setdefault(name, plugin)
            if first == plugin:
                self.commands[name] = verb
            else:
                message = f"{plugin} and {first} both offer the verb {name!r}; the one of {first} is used"
                warnings.warn(message, plugins.PluginWarning, stacklevel=2)

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Read the options of `sim` itself: ``--help`` and ``--version`` print, and the disk may be full."""
        if sys.flags.optimize > 1:
            typer.echo("options and their help are docstrings, which Python leaves out under -OO", err=True)
            raise SystemExit(2)
        try:
            with terminal():
                return super().make_context(*arguments, **options)
        except OSError as error:
            typer.echo(_describe(error, {})[0], err=True)
            raise SystemExit(2) from None

    def invoke(self, ctx: Any) -> Any:
        """Run a verb; any error ends with a line on stderr and an exit status."""
        with warnings.catch_warnings(), terminal():
            show_warnings()
            try:
                return super().invoke(ctx)
            except (typer.Exit, typer.Abort, _USAGE):
                raise
            except BaseException as error:  # sys.exit() in a user's code, too
                if os.environ.get("SIM_TRACEBACK"):
                    typer.echo("".join(traceback.format_exception(error)), err=True, nl=False)
                line, status = _describe(error, ctx.meta)
                typer.echo(line, err=True)
                if ctx.meta.get("json") and not getattr(sys.stdout, "written", True):
                    described = {"error": type(error).__name__, "message": line, "exit_status": status}
                    print_json({"schema": "sim.error/1", **described})
                raise typer.Exit(status) from None


def _describe(error: BaseException, meta: Mapping[str, Any]) -> tuple[str, int]:
    """Return the message about an error, and the exit status."""
    if not isinstance(error, SimError) and isinstance(error.__cause__, KeyboardInterrupt):
        error = error.__cause__  # Python wraps an interrupt that occurs while a class is created
    if isinstance(error, KeyboardInterrupt):
        return f"interrupted; {error}" if str(error) else "interrupted", 130
    place = place_of_other_code(error)
    if isinstance(error, SimError):
        prefix = f"{place}: " if place is not None and not isinstance(error, ScenarioError) else ""
        return f"{prefix}{error}", error.exit_status
    if isinstance(error, OSError) and place is None:
        return (str(error) if error.filename is None else f"{error.filename}: {error.strerror}"), 2
    paths = meta.get("file")
    file = ", ".join(paths) if isinstance(paths, list) else paths
    where = f"{file}: " if file else ""
    if isinstance(error, MemoryError):
        return f"{where}needs more memory than there is", 1
    summary = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    if place is not None:
        return f"{place}: {summary}; SIM_TRACEBACK=1 shows how it came there", 2
    return f"{where}a mistake of sim itself, please report it ({summary}); SIM_TRACEBACK=1 shows where", 3


app = typer.Typer(
    cls=_Sim,
    no_args_is_help=True,
    help="How would this computation graph run on this machine under this scheduling policy, and why?",
    **_STYLE,
)


def _version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        from sim.base.compiled import state

        typer.echo(f"sim {version('graph-schedule-sim')}")
        typer.echo(f"kernel: {state()}")
        raise typer.Exit


@app.callback()
def _common(
    version: bool = typer.Option(
        False,
        "--version",
        callback=_version,
        is_eager=True,
        help="Print the version, and whether the kernel is compiled.",
    ),
) -> None: ...
