"""What an editor completes: names of policies, presets and kinds in the JSON Schema, and options by name.

::

    placement: {name: dev▒                     the names that are known are offered, any other text is allowed
    placement: {name: device-kind, so▒         then the options of that name, each with its meaning

The schema stays as wide as it was: names of other packages, and code, stay valid. More is offered, no more.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from devices.describe.dtypes import BITS
from devices.describe.kinds import known_kinds
from scenarios.known.decisions import Option, decisions
from scenarios.known.docstring import plain
from sim.words import plugins

__all__ = ["with_names"]

_POLICIES: Final = ("sim.policies", "sim.pipelines")
_CHOICES: Final = {
    ("Policy", "placement"): "sim.placements",
    ("Policy", "streams"): "sim.streams",
    ("Policy", "linearize"): "sim.linearizers",
    ("Policy", "compile"): "sim.rewrites",
    ("MemoryFields", "allocator"): "sim.allocators",
    ("MemoryFields", "devices"): "sim.allocators",
    ("TrainingRun", "recovery"): "sim.recoveries",
}
"""Kind of mapping and key → group whose members are chosen there, with their options."""

_ALIKE: Final = {"Policy": ("Policy", "Variant")}
"""An entry of ``compare`` has the keys of a policy."""


def with_names(schema: dict[str, Any]) -> None:
    """Put the names that are known, and their options, into a scenario's schema."""
    policies = [name for group in _POLICIES for name in plugins.names(group)]
    machines = [*plugins.names("sim.machines"), "recorded"]
    words = {
        ("Policy", "name"): policies,
        ("Policy", "runtime"): plugins.names("sim.runtimes"),
        ("Machine", "preset"): machines,
        ("Device", "preset"): plugins.names("sim.devices"),
        ("Device", "kind"): ["cpu", "gpu", "npu"],
        ("Device", "default_dtype"): sorted(BITS),
        ("Op", "kind"): sorted(known_kinds()),
        ("Op", "dtype"): sorted(BITS),
    }
    kinds = schema["$defs"]
    for (kind, key), names in words.items():
        for alike in _ALIKE.get(kind, (kind,)):
            _offer(kinds[alike]["properties"][key], names)
    for (kind, key), group in _CHOICES.items():
        what = "".join(word.capitalize() for word in plugins.GROUPS[group].split())
        kinds[what] = {
            **kinds["Choice"],
            "description": f"{plugins.GROUPS[group].capitalize()}: a name, and its options.",
            "properties": {"name": {"type": "string", "description": "`sim policies` lists them"}},
        } | _options(group)
        names = plugins.names(group) + ["runtime"] * (group == "sim.allocators")
        _offer(kinds[what]["properties"]["name"], names)
        for alike in _ALIKE.get(kind, (kind,)):
            _choose(kinds[alike]["properties"][key], what, names)
    kinds["PolicyOptions"] = _options(*_POLICIES)
    for alike in _ALIKE["Policy"]:
        kinds[alike]["allOf"] = [{"$ref": "#/$defs/PolicyOptions"}]
    del kinds["Choice"]
    _offer(schema["properties"]["machine"], machines)
    _offer(schema["properties"]["policy"], policies)
    schema["properties"]["policy"]["default"] = "ready-queue"
    _offer(schema["properties"]["compare"]["items"], policies)


def _offer(value: dict[str, Any], names: Sequence[str]) -> None:
    """Offer names for a value that may be any text."""
    value["anyOf"] = [{"enum": list(names)}, *value.get("anyOf", [{"type": value.pop("type", "string")}])]


def _choose(value: dict[str, Any], what: str, names: Sequence[str]) -> None:
    """Offer names, and the options of each, wherever a choice stands in a value."""
    for below in [value.get("items"), value.get("additionalProperties"), *value.get("anyOf", ())]:
        if isinstance(below, dict):
            _choose(below, what, names)
    choice = {"$ref": "#/$defs/Choice"}
    if choice in value.get("anyOf", ()):
        value["anyOf"][value["anyOf"].index(choice)] = {"$ref": f"#/$defs/{what}"}
        _offer(value, names)


def _options(*groups: str) -> dict[str, Any]:
    """Return what holds of the options of each name: nothing but what they mean."""
    offered = []
    for one in (known for group in groups for known in decisions(group)):
        if one.options:
            meanings = {option.name: {"description": _meaning(option)} for option in one.options}
            named = {"properties": {"name": {"const": one.name}}, "required": ["name"]}
            offered.append({"if": named, "then": {"properties": meanings}})
    return {"allOf": offered} if offered else {}


def _meaning(option: Option) -> str:
    shown = option.default if isinstance(option.default, str) else json.dumps(option.default)
    by_default = "" if option.default is None else f"; default {shown}"
    return plain(f"{option.meaning} ({option.type}{by_default})")
