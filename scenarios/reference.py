"""Reference of everything that ``policy:`` and related keys may name, with options, for `sim policies NAME`.

::

    entry point  out-of-order = policies.issue.program_order:OutOfOrder
                   │ signature    window: int | None = None         ──►  option, default
                   │ docstring    window : int, optional            ──►  type, meaning
                   └ module       "Out-of-order issue: ..."         ──►  rule and source

The command line, the reference on the docs site and the editors' schema are generated from it, so nothing is
written twice.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin

from devices.describe.field_types import BITS, Type
from devices.describe.fields import known_kinds
from scenarios.docstrings import ParameterDoc, plain, read_docstring, rule
from sim.base import plugins
from sim.base.errors import InputError, UnknownNameError
from sim.base.options import SUFFIXES, parameters, spelling
from sim.base.units import format_bytes, format_duration

# ----------------------------------------------------------------------------------------------------------


class Decision(NamedTuple):
    """A kind of decision: its group of plugins, and its key in a scenario."""

    group: str
    title: str
    written: str
    """Form in a scenario: ``NAME`` stands for its name and options."""
    method: str = ""
    """Method that identifies it among a user's own classes."""


DECISIONS: Final = (
    Decision("sim.policies", "policies: which op is issued next", "policy: NAME", "next"),
    Decision(
        "sim.linearizers", "linearize: the program order of the ops", "policy: {linearize: NAME}", "order"
    ),
    Decision("sim.placements", "placement: which device runs an op", "policy: {placement: NAME}", "place"),
    Decision(
        "sim.rewrites", "compile: rewrites of the graph before it runs", "policy: {compile: [NAME]}", "apply"
    ),
    Decision(
        "sim.streams",
        "streams: which stream of its device an op is launched on",
        "policy: {streams: NAME}",
        "assign",
    ),
    Decision("sim.allocators", "allocator: how tensors get their memory", "memory: {allocator: NAME}"),
    Decision(
        "sim.recoveries",
        "recovery: what a training run does when a worker has failed",
        "training_run: {recovery: [NAME]}",
        "after_failure",
    ),
    Decision("sim.pipelines", "pipeline schedules: a program for each rank", "policy: NAME"),
    Decision(
        "sim.batchers",
        "batchers: which requests a serving engine's next step computes",
        "policy: NAME",
        "schedule",
    ),
    Decision(
        "sim.routers",
        "routers: which replica serves a request",
        "workload: {serving: {router: NAME}}",
        "route",
    ),
    Decision(
        "sim.collectives", "collectives: how long ranks take to exchange data", "machine: {collectives: NAME}"
    ),
)


class Option(NamedTuple):
    """An option of a decision, as a scenario writes it.

    Attributes
    ----------
    name : str
    type : str
        Type of a value, in words.
    required : bool
    default : object
        Value as in a scenario; None: as the meaning says.
    meaning : str
    """

    name: str
    type: str
    required: bool
    default: Any
    meaning: str

    @property
    def by_default(self) -> str:
        """``needed``, ``default 4``, or nothing."""
        if self.required:
            return "needed"
        return (
            ""
            if self.default is None
            else f"default {self.default if isinstance(self.default, str) else json.dumps(self.default)}"
        )


class KnownDecision(NamedTuple):
    """A policy, or another plugin that decides.

    Attributes
    ----------
    name : str
    decision : Decision
    summary, text : str
        First line of its docstring, and the rest.
    options : tuple of Option
    rule : str
        Docstring of its module: the rule in full, and its source.
    code : str
        ``module:attribute``.
    """

    name: str
    decision: Decision
    summary: str
    text: str
    options: tuple[Option, ...]
    rule: str
    code: str

    @property
    def data(self) -> dict[str, Any]:
        """Its description as JSON values."""
        options = [{**one._asdict(), "meaning": plain(one.meaning)} for one in self.options]
        return {
            "name": self.name,
            "what": plugins.GROUPS[self.decision.group],
            "written": self.written,
            "summary": plain(self.summary),
            "text": plain(self.text),
            "options": options,
            "rule": plain(self.rule),
            "code": self.code,
        }

    @property
    def written(self) -> str:
        """Its form in a scenario: with the required options, or else with the first one."""
        options = [one for one in self.options if one.required] or self.options[:1]
        key = "model" if self.decision.group == "sim.collectives" else "name"
        more = "".join(f", {one.name}: {_yaml(one.default)}" for one in options)
        named = f"{{{key}: {self.name}{more}}}" if more or key == "model" else self.name
        return self.decision.written.replace("NAME", named)


def decisions(group: str | None = None) -> Iterator[KnownDecision]:
    """Yield all known plugins that decide, or those of a group; warn of those that cannot be loaded.

    Parameters
    ----------
    group : str, optional
        A group of `DECISIONS`.
    """
    for decision in DECISIONS:
        if group in (None, decision.group):
            for entry in plugins.describe(decision.group):
                yield _find_decision(entry.name, decision, plugins.lookup(decision.group, entry.name))


def known_as(name: str, origin: plugins.Origin = plugins.NOWHERE) -> list[KnownDecision]:
    """Return all plugins of a name: ``round-robin`` is a placement, a stream assignment and a router.

    Parameters
    ----------
    name : str
        Name of a plugin, or ``module:Class``.
    origin : Origin
        Whether such a class may be loaded, and from where.

    Raises
    ------
    UnknownNameError
        No plugin has this name; the message has the nearest one.
    InputError
        A class may not be loaded, cannot be loaded, or decides nothing.

    Examples
    --------
    >>> [one.decision.group for one in known_as("round-robin")]
    ['sim.placements', 'sim.streams', 'sim.routers']
    >>> known_as("out-of-order")[0].options[0][:4]
    ('window', 'int', False, None)
    """
    if ":" in name:
        return [_describe_code(name, origin)]
    groups = {one: plugins.names(one.group) for one in DECISIONS}
    matches = [
        _find_decision(name, one, plugins.lookup(one.group, name))
        for one, names in groups.items()
        if name in names
    ]
    if not matches:
        every_name = dict.fromkeys(name for names in groups.values() for name in names)
        raise UnknownNameError("policy or other decision", name, every_name)
    return matches


def _describe_code(name: str, origin: plugins.Origin) -> KnownDecision:
    """Return the description of a class ``module:Class``, by the first decision that a method of it makes."""
    thing = origin.lookup("sim.policies", name)
    fitting = [one for one in DECISIONS if one.method and callable(getattr(thing, one.method, None))]
    if not fitting:
        methods = ", ".join(f"{one.method}()" for one in DECISIONS if one.method)
        raise InputError(f"{name!r} decides nothing: it has none of {methods}")
    return _find_decision(name, fitting[0], thing)


def _find_decision(name: str, decision: Decision, thing: Any) -> KnownDecision:
    doc = read_docstring(thing)
    options = tuple(_option(p, meaning) for p, meaning in _accepted_parameters(decision.group, name, thing))
    module = getattr(thing, "__module__", "")
    code = f"{module}:{getattr(thing, '__qualname__', type(thing).__name__)}"
    return KnownDecision(name, decision, doc.summary, doc.text, options, rule(thing), code)


def _accepted_parameters(group: str, name: str, thing: Any) -> list[tuple[inspect.Parameter, ParameterDoc]]:
    """Return the parameters that a scenario may give to a plugin, and their meanings."""
    from devices.memory.registry import MemorySpec, allocator_options

    if not callable(thing):
        return []
    args, sources = parameters(thing), [thing]
    if group == "sim.allocators":
        args = {key: one for key, one in allocator_options(name).items() if key != "group_of"}
        args |= {key: one for key, one in parameters(MemorySpec).items() if key.endswith("_ns")}
        sources = [thing, getattr(thing, "__self__", None), MemorySpec]
    elif group == "sim.pipelines":
        from policies.pipeline.registry import default_chunks, generate

        shared = parameters(generate)
        args = {key: one for key, one in args.items() if key not in ("ranks", "micro_batches")}
        if "chunks" in args and args["chunks"].default is inspect.Parameter.empty:
            args["chunks"] = args["chunks"].replace(default=default_chunks(name))
        args |= {"checkpoint": shared["checkpoint"]} if name != "custom" else {}
        sources = [thing, generate]
    docs: dict[str, ParameterDoc] = {}
    for source in sources:
        docs = {**read_docstring(source).parameters, **docs}
    return [
        (one, docs.get(key, ParameterDoc("", ""))) for key, one in args.items() if _in_a_file(one.annotation)
    ]


def _in_a_file(annotation: Any) -> bool:
    """Whether a file can hold a value of an annotation; otherwise only Python code can give one."""
    if isinstance(annotation, UnionType) or get_origin(annotation) is Union:
        return any(_in_a_file(one) for one in get_args(annotation) if one is not NoneType)
    if get_origin(annotation) is Annotated:
        return True
    kind = get_origin(annotation) or annotation
    return not isinstance(kind, type) or (
        kind.__module__.partition(".")[0] in _PLAIN and kind.__name__ != "Callable"
    )


_PLAIN: Final = ("builtins", "collections", "inspect", "pathlib")
"""Packages of the types whose values a file can hold; ``inspect`` has that of a missing annotation."""


_QUANTITIES: Final[Mapping[str, tuple[str, Callable[[int], str]]]] = {
    "_ns": ("duration, as in 10us", lambda value: format_duration(value).replace(" ", "")),
    "_bytes": ("size, as in 4MB", lambda value: format_bytes(value, iec=True).replace(" ", "")),
    "_bytes_per_s": ("bandwidth, as in 1.5TB/s", str),
    "_flop_per_s": ("flop rate, as in 989TFLOP/s", str),
    "_hz": ("frequency, as in 1.98GHz", str),
}


def _option(parameter: inspect.Parameter, described: ParameterDoc) -> Option:
    """Return an option as spelt in a file; a unit in the parameter's name belongs to the value instead."""
    default = None if parameter.default is parameter.empty else parameter.default
    kind, annotation = described.type.removesuffix(", optional"), parameter.annotation
    if not kind and annotation is not parameter.empty:
        kind = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    for part in (parameter.annotation, *get_args(parameter.annotation)):
        for about in getattr(part, "__metadata__", ()):
            kind = f"as in {about.shown}" if isinstance(about, Type) else kind
    for suffix in SUFFIXES:
        if parameter.name.endswith(suffix):
            kind, written = _QUANTITIES[suffix]
            default = written(default) if isinstance(default, int) else default
    if isinstance(default, (tuple, Path)) or callable(default):
        default = list(default) if isinstance(default, tuple) else str(default)
    required = parameter.default is parameter.empty
    return Option(spelling(parameter.name), kind, required, default, described.meaning)


def _yaml(value: object) -> str:
    if value is None:
        return "..."
    return str(value).lower() if isinstance(value, bool) else str(value)


# ----------------------------------------------------------------------------------------------------------
# What an editor completes: names of policies, presets and kinds in the JSON Schema, and their options.
#
#  placement: {name: dev▒                     known names are offered, any other text is allowed
#  placement: {name: device-kind, so▒         then the options of that name, each with its meaning
#
# The schema accepts as much as before: names of other packages, and code, stay valid. It only offers more.

_POLICIES: Final = ("sim.policies", "sim.pipelines", "sim.batchers")
_CHOICES: Final = {
    ("PolicyFields", "placement"): "sim.placements",
    ("PolicyFields", "streams"): "sim.streams",
    ("PolicyFields", "linearize"): "sim.linearizers",
    ("PolicyFields", "compile"): "sim.rewrites",
    ("MemoryFields", "allocator"): "sim.allocators",
    ("MemoryFields", "devices"): "sim.allocators",
    ("TrainingRun", "recovery"): "sim.recoveries",
    ("ServingFields", "router"): "sim.routers",
}
"""Kind of mapping and key → group of the plugins that can be chosen there, with their options."""


def with_names(schema: dict[str, Any]) -> None:
    """Add the known names, and their options, to a scenario's schema."""
    policies = [name for group in _POLICIES for name in plugins.names(group)]
    machines = [*plugins.names("sim.machines"), "recorded"]
    words = {
        ("PolicyFields", "name"): policies,
        ("PolicyFields", "runtime"): plugins.names("sim.runtimes"),
        ("Machine", "preset"): machines,
        ("Device", "preset"): plugins.names("sim.devices"),
        ("Device", "kind"): ["cpu", "gpu", "npu"],
        ("Device", "dtype"): sorted(BITS),
        ("Op", "kind"): sorted(known_kinds()),
        ("Op", "dtype"): sorted(BITS),
    }
    kinds = schema["$defs"]
    for (kind, key), names in words.items():
        _offer(kinds[kind]["properties"][key], names)
    for (kind, key), group in _CHOICES.items():
        definition = "".join(word.capitalize() for word in plugins.GROUPS[group].split())
        kinds[definition] = {
            **kinds["Choice"],
            "description": f"{plugins.GROUPS[group].capitalize()}: a name, and its options.",
            "properties": {"name": {"type": "string", "description": "`sim policies` lists them"}},
        } | _options(group)
        names = plugins.names(group) + (["runtime"] if group == "sim.allocators" else [])
        _offer(kinds[definition]["properties"]["name"], names)
        _choose(kinds[kind]["properties"][key], definition, names)
    kinds["PolicyOptions"] = _options(*_POLICIES)
    policy, entry = kinds["PolicyFields"], kinds["VariantFields"]
    policy["allOf"] = entry["allOf"] = [{"$ref": "#/$defs/PolicyOptions"}]
    entry["properties"] |= policy["properties"]  # an entry of ``compare`` has the keys of a policy
    del kinds["Choice"]
    _offer(schema["properties"]["machine"], machines)
    devices = kinds["Machine"]["properties"]["devices"]["additionalProperties"]
    _offer(devices, plugins.names("sim.devices"))
    _offer(schema["properties"]["policy"], policies)
    schema["properties"]["policy"]["default"] = "ready-queue"
    _offer(schema["properties"]["compare"]["items"], policies)


def _offer(value: dict[str, Any], names: Sequence[str]) -> None:
    """Offer names for a value that may be any text."""
    value["anyOf"] = [{"enum": list(names)}, *value.get("anyOf", [{"type": value.pop("type", "string")}])]


def _choose(value: dict[str, Any], definition: str, names: Sequence[str]) -> None:
    """Offer names, and the options of each, wherever a value contains a choice."""
    for below in [value.get("items"), value.get("additionalProperties"), *value.get("anyOf", ())]:
        if isinstance(below, dict):
            _choose(below, definition, names)
    choice = {"$ref": "#/$defs/Choice"}
    if choice in value.get("anyOf", ()):
        value["anyOf"][value["anyOf"].index(choice)] = {"$ref": f"#/$defs/{definition}"}
        _offer(value, names)


def _options(*groups: str) -> dict[str, Any]:
    """Return schemas for the options of each name, which only describe them."""
    offered = []
    for one in (decision for group in groups for decision in decisions(group)):
        if one.options:
            meanings = {option.name: {"description": _meaning(option)} for option in one.options}
            named = {"properties": {"name": {"const": one.name}}, "required": ["name"]}
            offered.append({"if": named, "then": {"properties": meanings}})
    return {"allOf": offered} if offered else {}


def _meaning(option: Option) -> str:
    by_default = "" if option.default is None else f"; {option.by_default}"
    return plain(f"{option.meaning} ({option.type}{by_default})")
