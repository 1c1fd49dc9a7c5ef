"""A scenario file as it was written: finds places in it, changes its values, and locates errors.

A path is a tuple of keys and list indices, ``("workload", "ops", "b", "inputs", 0)``. It is written
``workload.ops.b.inputs.0``, both in messages and on the command line (``--set``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from scenarios.file.yaml_read import Node, Place, read_yaml, read_yaml_text
from sim.base.errors import (
    InputError,
    ScenarioError,
    UnknownNameError,
    UnknownOptionError,
    clip_repr,
    hint,
    shorten,
)
from sim.base.plugins import NOTHING, Allowed, Origin, names, within

_PACKAGE: Final = Path(__file__).parents[1]

Loc = tuple[str | int, ...]
"""A path into a document."""


def dotted_path(loc: Loc) -> str:
    """Return a path as text.

    Examples
    --------
    >>> dotted_path(("ops", "b", "inputs", 0))
    'ops.b.inputs.0'
    """
    return ".".join(shorten(str(part)) for part in loc)


def key_and_value(setting: str, option: str, example: str) -> tuple[str, str]:
    """Return the key and the value of a ``KEY=VALUE`` option.

    Raises
    ------
    ScenarioError
        The key or the ``=`` is missing.
    """
    key, equals, value = setting.partition("=")
    key = key.strip()
    if not equals or not key or key.startswith(".") or key.endswith("."):
        source = f"{option} {shorten(setting)}"
        raise ScenarioError(f"{source}: should be KEY=VALUE, as in {option} {example}")
    return key, value


def plain_settings(settings: Iterable[str], example: str) -> dict[str, Any]:
    """Return the keys and YAML values of ``--set`` options that do not change a scenario."""
    values = {}
    for setting in settings:
        key, value = key_and_value(setting, "--set", example)
        values[key] = read_yaml_text(value, f"--set {setting}", places=False).plain()
    return values


_NO_POLICIES: Final[Mapping[str, str]] = {
    "sim.runtimes": "a runtime: policy: {runtime: NAME}",
    "sim.placements": "a placement: policy: {name: in-order, placement: NAME}",
    "sim.linearizers": "a program order: policy: {name: in-order, linearize: NAME}",
    "sim.streams": "a stream assignment: policy: {name: in-order, streams: NAME}",
    "sim.rewrites": "a rewrite: policy: {name: in-order, compile: [NAME]}",
    "sim.pipelines": "a pipeline schedule, of workload.pipeline and workload.train",
    "sim.batchers": "a batcher, of workload.serving",
}
"""Entry points that are named where a policy belongs -> what they are."""


@dataclass(frozen=True)
class Document:
    """The YAML tree of a scenario, and its file.

    Attributes
    ----------
    root : Node
        Whole tree, after ``--set``.
    path : Path
        File; relative paths in it start at its folder.
    changed : frozenset of str
        Options that changed the document; empty: it is as in the file.
    allowed : Allowed
        Whether it may name code, and files outside its folder.
    """

    root: Node
    path: Path
    changed: frozenset[str] = frozenset()
    allowed: Allowed = NOTHING

    @classmethod
    def read(cls, path: str | Path, allowed: Allowed = NOTHING) -> Document:
        """Return the document of a file, over the one it extends; a recording becomes a scenario to run it.

        Raises
        ------
        ScenarioError
            A file cannot be read, is not a YAML mapping, or extends itself.
        """
        if os.path.isdir(path) or not str(path).endswith((".yaml", ".yml")):
            from scenarios.recorded.many_ranks import as_scenario, format_of

            if format_of(path) is not None:
                path = os.path.realpath(path)
                root = read_yaml_text(json.dumps(as_scenario(path)), path, places=False)
                return cls(root, Path(path), allowed=allowed)
        if not os.path.exists(path):  # named as in the documentation, outside a checkout
            name = Path(path).stem
            if any((_PACKAGE / folder / f"{name}.yaml").exists() for folder in ("examples", "templates")):
                copy = f"`sim new {name}.yaml --template {name}` copies the one that ships"
                raise InputError(f"{path}: no such file; {copy}")
        return cls(_with_bases(read_yaml(path), Path(path), allowed.outside), Path(path), allowed=allowed)

    @classmethod
    def from_text(cls, text: str, folder: str | Path, allowed: Allowed = NOTHING) -> Document:
        """Return the document of a text as if it were a file in a folder.

        Raises
        ------
        ScenarioError
            As for a file.
        """
        if not isinstance(text, str):
            raise InputError(f"a scenario should be a text of YAML, not {clip_repr(text)}")
        path = Path(folder) / "scenario"
        root = _with_bases(read_yaml_text(text, path.name), path, allowed.outside)
        return cls(root, path, allowed=allowed)

    @property
    def title(self) -> str:
        """Name that the scenario gives itself, or else the name of its file."""
        name = self.root.child("name")
        return str(name.value) if name and name.value else Path(self.path.name.removesuffix(".gz")).stem

    @property
    def directory(self) -> Path:
        """Folder at which relative paths start."""
        return self.path.parent

    @property
    def origin(self) -> Origin:
        """Origin of the names in the document: its folder, and what it may name."""
        return Origin(self.directory, *self.allowed)

    def file(self, name: str) -> Path:
        """Return the path of a file named by the scenario; it must be in its folder unless others may be."""
        return self.origin.file(name)

    def at(self, loc: Loc) -> Node | None:
        """Return the value at `loc`, or None."""
        node: Node | None = self.root
        for part in loc:
            node = None if node is None else node.child(part)
        return node

    def place_of(self, loc: Loc, *key: str | int) -> Loc:
        """Return where a key is given: in the entry of ``compare`` at `loc`, or in ``policy``."""
        entry, policy = self.at(loc), self.at(("policy",))
        if loc[:1] != ("compare",) or not key or entry is None or policy is None:
            return loc
        entry_keys, policy_keys = (
            node.value if isinstance(node.value, dict) else {"name": node} for node in (entry, policy)
        )
        return ("policy",) if key[0] in policy_keys and not {key[0], "runtime"} & entry_keys.keys() else loc

    def matching(self, *patterns: str) -> Iterator[Loc]:
        """Yield the paths that match dotted patterns; ``*`` is any key of a mapping or item of a list."""
        for pattern in patterns:
            matches: list[tuple[Loc, Node]] = [((), self.root)]
            for part in pattern.split("."):
                matches = [
                    ((*loc, key), item)
                    for loc, node in matches
                    for key, item in (node.items() if part == "*" else [(part, node.child(part))])
                    if item is not None
                ]
            yield from (loc for loc, _ in matches)

    def place(self, loc: Loc, *, key: bool = False) -> Place:
        """Return the place of the value at `loc` (or of its key), or of the nearest value around it."""
        return self.root.place_of(loc, key=key)

    def error(self, loc: Loc, message: str, *, key: bool = False) -> ScenarioError:
        """Return an error that begins with its place and path."""
        place, path = self.place(loc, key=key), f"{dotted_path(loc)}: " if loc else ""
        if message.startswith(head := f"{place.source}: "):  # a recording or instance, no scenario file
            return place.error(message.removeprefix(head))
        return place.error(f"{path}{message.removeprefix(path)}")

    def wrong(self, error: InputError, loc: Loc = ()) -> ScenarioError:
        """Return `error` with its place, from its path relative to `loc`."""
        loc = self.place_of(loc, *error.path[:1])
        if isinstance(error, UnknownNameError):
            near = hint(error.name, error.known)
            if error.what == "policy":
                found = (text for group, text in _NO_POLICIES.items() if error.name in names(group))
                near = next((f"; it is {text.replace('NAME', error.name)}" for text in found), near)
            return self.error((*loc, *error.path), f"unknown {error.what} {error.name!r}{near}")
        return self.error((*loc, *error.path), error.message, key=isinstance(error, UnknownOptionError))

    @contextmanager
    def placing(self, *loc: str | int) -> Iterator[None]:
        """Add the place to an error raised in the block, from its path relative to `loc`."""
        try:
            yield
        except ScenarioError:  # it has its place already
            raise
        except InputError as error:
            raise self.wrong(error, loc) from error

    def with_settings(self, settings: Iterable[str], option: str = "--set") -> Document:
        """Return the document changed by ``KEY=VALUE`` texts, applied in order.

        Parameters
        ----------
        settings : iterable of str
        option : str
            Option of the command line that gave them, for messages.

        Raises
        ------
        ScenarioError
            A setting has no ``=``, a value is not YAML, or a key does not exist.
        """
        document = self
        for setting in settings:
            key, text = key_and_value(setting, option, "workload.batch=32")
            source = f"{option} {shorten(setting)}"
            nothing = text.strip() in ("", "~", "null")
            value = Node(None, Place(source)) if nothing else read_yaml_text(text, source, places=False)
            document = document._set(key, value, options={option})
        return document

    def with_values(self, values: Mapping[str, Any], loc: Loc) -> Document:
        """Return the document changed by the mapping at `loc` (``set:``), from paths to values."""
        document = self
        for key in values:
            node = self.at((*loc, key))
            assert node is not None
            document = document._set(key, node, place=self.place((*loc, key), key=True))
        return document

    def _set(
        self, key: str, value: Node, *, place: Place | None = None, options: Set[str] = frozenset()
    ) -> Document:
        place = place or value.place
        if key == "extends":
            raise place.error("extends: is read before anything is set; say it in the file")
        root = _replace(self.root, key, key, value, place)
        return replace(self, root=root, changed=self.changed | options)


def _with_bases(root: Node, path: Path, allow_outside: bool, above: tuple[Path, ...] = ()) -> Node:
    """Return the tree of a file, over the one that it extends; `above` are the files that extend it."""
    if not isinstance(root.value, dict):
        raise root.place.error("a scenario is a mapping: 'name: ...', 'machine: ...', 'workload: ...'")
    schema, extends = root.child("schema"), root.child("extends")
    if schema is not None and str(schema.value).startswith("sim.graph/"):
        raise root.place.error("is a graph file, no scenario; a scenario names it: workload: {graph: FILE}")
    if extends is None:
        return root
    if not isinstance(extends.value, str):
        raise extends.place.error(f"extends: should be a file, not {extends.plain()!r}")
    try:
        base = within(path.parent, extends.value, allow_outside=allow_outside)
    except InputError as error:
        raise extends.place.error(f"extends: {error}") from None
    files = (*above, path)
    if base.resolve() in [file.resolve() for file in files]:
        chain = " -> ".join(file.name for file in (*files, base))
        raise extends.place.error(f"extends: a scenario cannot extend itself: {chain}")
    try:
        return _merge(_with_bases(read_yaml(base), base, allow_outside, files), root)
    except ScenarioError as error:
        if str(error).startswith(f"{base}: "):  # about the whole file: it is missing, or cannot be read
            raise extends.place.error(f"extends: {error}") from None
        raise


_COUNTS: Final = ("count", "nodes")
_SHORTHANDS: Final = {
    "calibration": "from",
    "machine": "preset",
    **dict.fromkeys(("train.model", "serving.model"), "name"),
    **dict.fromkeys(("policy", "placement", "streams", "linearize", "allocator"), "name"),
}
"""End of a path → the key for which a name alone stands, instead of a mapping."""


def _merge(base: Node, top: Node, path: str = "") -> Node:
    """Return `base` with `top` laid over it: mappings key by key, anything else as a whole.

    A name alone stands for its mapping (`_SHORTHANDS`) if keys are laid over it, or if it is a preset's.
    A mapping with another preset replaces the old one, of which only the count is kept.
    """
    short = _shorthand(path)
    if short and isinstance(base.value, str) and isinstance(top.value, dict):
        base = Node({short: base}, base.place)
    if short == "preset" and isinstance(base.value, dict) and isinstance(top.value, str):
        top = Node({short: top}, top.place)
    if not isinstance(base.value, dict) or not isinstance(top.value, dict):
        return top
    old, new = (node.child("preset") for node in (base, top))
    other = new is not None and (old is None or old.plain() != new.plain())
    below = {key: node for key, node in base.value.items() if not other or key in _COUNTS}
    merged = {
        key: _merge(below[key], node, f"{path}.{key}") for key, node in top.value.items() if key in below
    }
    return Node({**below, **top.value, **merged}, top.place, {**base.keys, **top.keys})


def _replace(node: Node, rest: str, path: str, value: Node, place: Place) -> Node:
    """Return a copy of `node` with `value` at the path `rest`, sharing all nodes off the path."""
    parent = path[: len(path) - len(rest)].rstrip(".")
    if isinstance(node.value, dict):
        # Names may contain dots, so the longest matching key is meant.
        fitting = [key for key in node.value if rest == key or rest.startswith(f"{key}.")]
        name = max(fitting, key=len, default=rest)
        below = rest[len(name) + 1 :]
        first, dot, beyond = rest.partition(".")
        if not fitting and dot and parent and node.value and _shorthand(parent) is None:
            names = hint(first, node.value)
            add = f" (a new one is given whole: {parent}.{first}={{...}})" * names.startswith("; known")
            raise place.error(f"there is no key {first!r} under {parent!r}{names}{add}")
        if not fitting and dot:  # a section that the file leaves out, such as machine; the schema checks it
            section = _replace(Node({}, place), beyond, path, value, place)
            return Node({**node.value, first: section}, node.place, {**node.keys, first: place})
        new = _replace(node.value[name], below, path, value, place) if below else value
        keys = {**node.keys} if name in node.keys else {**node.keys, name: place}
        return Node({**node.value, name: new}, node.place, keys)
    if isinstance(node.value, list):
        first, _, below = rest.partition(".")
        if not first.isdecimal() or int(first) >= len(node.value):
            raise place.error(f"{parent} is a list of {len(node.value)}; {first!r} should be an index from 0")
        items = list(node.value)
        items[int(first)] = _replace(items[int(first)], below, path, value, place) if below else value
        return Node(items, node.place)
    if node.value is None:
        return _replace(Node({}, node.place), rest, path, value, place)
    if isinstance(node.value, str) and (key := _shorthand(parent)) is not None:
        return _replace(Node({key: node}, node.place), rest, path, value, place)
    raise place.error(f"{parent} is {node.value!r} and has no key {rest!r}")


def _shorthand(path: str) -> str | None:
    """Return the key for which a name alone stands at this path, or None if there is no such key."""
    if f".{path}".rpartition(".")[0].endswith(".machine.devices"):
        return "preset"
    return next((key for end, key in _SHORTHANDS.items() if f".{path}".endswith(f".{end}")), None)
