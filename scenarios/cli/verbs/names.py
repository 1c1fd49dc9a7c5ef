"""``sim policies``, ``devices``, ``runtimes``, ``schema``, ``list``, ``new``: what is known, what ships."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from scenarios.cli.output import print_json, print_list, strong
from sim.base import plugins
from sim.base.errors import InputError, SimError, UnknownNameError

if TYPE_CHECKING:
    from scenarios.reference import KnownDecision


_HARDWARE: Final = (("sim.devices", "devices"), ("sim.machines", "machines"))
_OURS: Final = "graph-schedule-sim"
_RUNTIMES: Final = (("sim.runtimes", "runtimes: named sets of decisions"),)
_VERBS: Final = {"sim.runtimes": "runtimes", "sim.devices": "devices", "sim.machines": "devices"}
"""Group -> the verb that describes its members; `sim policies` describes those of other groups."""


def policies(name: str | None = None, json: bool = False, allow_code: bool = False) -> None:
    """List the policies and other decisions that a scenario may name under `policy:`.

    With a NAME: its options, with their types and defaults, and the rule that it follows, with its source. A
    class of your own, in the current folder or installed, is named module:Class.

    Parameters
    ----------
    name : NAME
        Describe this one, with its options.
    """
    from scenarios.reference import DECISIONS, known_as

    if name is None:
        return _print_groups([(one.group, one.title) for one in DECISIONS], json)
    _refuse_elsewhere(name, [one.group for one in DECISIONS])
    decisions = known_as(name, plugins.Origin(".", allow_code))
    if json:
        return print_json([one.data for one in decisions])
    for i, one in enumerate(decisions):
        if i:
            print()
        _print_decision(one)


def devices(name: str | None = None, json: bool = False) -> None:
    """List the presets that a scenario may name under `machine:`, and the keys of a device.

    Parameters
    ----------
    name : NAME
        Describe this preset: its numbers, each with its source.
    """
    if name is not None:
        return _preset(name, json)
    _print_groups(_HARDWARE, json)
    if json:
        return
    from devices.describe.fields import DEVICE_FIELDS

    rows = []
    for field in DEVICE_FIELDS.values():
        kinds = f" ({', '.join(field.kinds)})" if field.kinds else ""
        rows.append((f"{field.name}: {field.shown}", field.doc + kinds))
    print_list("keys of a device", rows)


def runtimes(name: str | None = None, json: bool = False) -> None:
    """List the runtimes that a scenario may name under `policy: {runtime: ...}`.

    Parameters
    ----------
    name : NAME
        Describe this one: what it decides.
    """
    if name is None:
        return _print_groups(_RUNTIMES, json)

    _refuse_elsewhere(name, ["sim.runtimes"])
    runtime = plugins.lookup("sim.runtimes", name)
    if json:
        return print_json({"name": name, "summary": runtime.__doc__, "decides": dict(runtime)})
    print(f"{name}: {runtime.__doc__}\n")
    print(f"policy: {{runtime: {name}}}\n\nis, written out:\n")
    print(_yaml({"policy": {key: value for key, value in runtime.items() if key != "allocator"}}))
    if "allocator" in runtime:
        print("and with memory: {allocator: runtime}, by kind of device:\n")
        print(_yaml({"memory": {"allocator": runtime["allocator"]}}))
    print(f"`sim policies {runtime['name']}` tells what it does; keys beside `runtime` change it.")


def schema() -> None:
    """Print the JSON Schema of scenario files.

    An editor with a YAML language server uses it if a scenario begins with the line
    `# yaml-language-server: $schema=./scenario.schema.json`.
    """
    from scenarios.schema import json_schema_text

    print(json_schema_text(), end="")


def _preset(name: str, json: bool) -> None:
    """Print a preset as in its file, with a source beside every number."""
    from devices.presets import device_preset, machine_preset, preset_text

    _refuse_elsewhere(name, [group for group, _ in _HARDWARE])
    if name in plugins.names("sim.machines"):
        preset = machine_preset(name)
    elif name in plugins.names("sim.devices"):
        preset = device_preset(name)
    else:
        presets = [one for group, _ in _HARDWARE for one in plugins.names(group)]
        raise UnknownNameError("device or machine preset", name, presets)
    if json:
        return print_json(preset)
    print((preset_text(name) or _yaml(preset)).rstrip())


def _refuse_elsewhere(name: str, groups: Sequence[str]) -> None:
    """Raise if another verb describes a name."""
    if ":" in name or any(name in plugins.names(group) for group in groups):
        return
    for group, verb in _VERBS.items():
        if group not in groups and name in plugins.names(group):
            raise InputError(f"{name!r} is a {plugins.GROUPS[group]}: sim {verb} {name}")
    if "sim.runtimes" in groups:
        plugins.lookup("sim.runtimes", name)


def _print_decision(decision: KnownDecision) -> None:
    """Print a decision: its summary, how a scenario names it, its options, its rule."""
    data = decision.data
    print(strong(f"{decision.name} ({data['what']}): {data['summary']}"))
    if data["text"]:
        print(f"\n{data['text']}")
    print(f"\n{decision.written}\n")
    rows = []
    for one, described in zip(decision.options, data["options"], strict=True):
        kind = "; ".join(filter(None, (one.type, one.by_default)))
        rows.append((one.name, ". ".join(filter(None, (kind, described["meaning"])))))
    print_list("options", rows)
    if data["rule"]:
        print(f"\nrule and source ({decision.code})")
        print("\n".join(f"  {line}".rstrip() for line in ["", *data["rule"].splitlines()]))


def _yaml(value: object) -> str:
    import yaml

    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=None)


def _print_groups(groups: Sequence[tuple[str, str]], json: bool) -> None:
    """Print the members of entry-point groups, each under its title."""
    members = {group: plugins.describe(group) for group, _ in groups}
    if json:
        return print_json(
            {group.removeprefix("sim."): [one._asdict() for one in members[group]] for group in members}
        )
    for group, title in groups:
        rows = []
        for entry in members[group]:
            origin = "" if entry.distribution == _OURS else f" [{entry.distribution}]"
            rows.append((entry.name, entry.summary + origin))
        if rows or len(groups) == 1:
            print_list(title, rows)


def list_(name: str | None = None, json: bool = False) -> None:
    """List the scenarios that ship: templates for `sim new`, and examples, each with one line.

    Every one runs in seconds, where it is or as a copy (`sim new FILE --template NAME`).

    Parameters
    ----------
    name : NAME
        Describe only this one.
    """
    from scenarios.shipped import find_shipped, shipped_scenarios

    scenarios = list(shipped_scenarios()) if name is None else [find_shipped(name)]
    if json:
        return print_json([{**one._asdict(), "path": str(one.path)} for one in scenarios])
    if name is not None:
        (one,) = scenarios
        print(f"{one.title}\n\n{one.description}\n")
        print(f"sim run {one.path}\nsim new {one.path.name} --template {one.name}      # a copy to change")
        return
    for title, templates, about in (
        ("templates, to begin with", True, attrgetter("description")),
        ("examples", False, attrgetter("title")),
    ):
        rows = [(one.name, about(one)) for one in scenarios if one.is_template == templates]
        print_list(title, rows)
    print("\n`sim list NAME` tells what one shows; `sim new FILE --template NAME` makes a copy to change.")


def new(file: Path | None = None, template: str | None = None, force: bool = False) -> None:
    """Write a first scenario: from a few questions on a terminal, or from a template.

    It runs at once, and its comments say what to change next. Files that it names come with it.

    Parameters
    ----------
    file : FILE
        Where to write it; by default here, under the template's name.
    template : --template NAME
        pipeline, gpu, cluster or trace, or any example that `sim list` names; copied without questions.
    force : --force
        Replace an existing file.
    """
    from scenarios.shipped import fill_template, find_shipped, shipped_scenarios, write_scenario

    asks = template is None
    if template is None:
        templates = [one.name for one in shipped_scenarios() if one.is_template]
        if not _on_terminal():
            raise InputError(f"give --template NAME: {', '.join(templates)}, or an example of `sim list`")
        for one in shipped_scenarios():
            if one.is_template:
                typer.echo(f"  {one.name:10}{one.description}")
        template = _ask("What do you want to simulate", "gpu", lambda name: find_shipped(name).name)
    source = find_shipped(template)
    target = file or Path(source.path.name)
    if target.suffix not in (".yaml", ".yml"):
        raise InputError(f"{target}: a scenario ends in .yaml")
    if target.exists() and not force:
        raise InputError(f"{target}: is there already; name another file, or replace it with --force")
    text = source.path.read_text(encoding="utf-8")
    text = fill_template(text, _ask if asks else lambda question, default, check: default, target)
    for path in write_scenario(target, text):
        typer.echo(f"wrote {path}")
    typer.echo(f"\nsim run {target}")


def _on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _ask(question: str, default: str, check: Callable[[str], str]) -> str:
    """Ask on the terminal until the answer is accepted."""

    def read(answer: str) -> str:
        try:
            return check(answer.strip())
        except SimError as error:
            raise typer.BadParameter(str(error)) from None

    accepted: str = typer.prompt(f"{question}?", default=default, value_proc=read, prompt_suffix=" ")
    return accepted
