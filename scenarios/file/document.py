"""A scenario file as it was written: finding places in it, changing values of it, naming what is wrong.

A path is a tuple of keys and list indices, ``("workload", "ops", "b", "inputs", 0)``, and is written
``workload.ops.b.inputs.0``, in messages as on the command line (``--set``).
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
from sim.base.errors import InputError, ScenarioError, UnknownNameError, UnknownOptionError, hint, shortened
from sim.base.plugins import NOTHING, Allowed, Origin, names, within

Loc = tuple[str | int, ...]
"""A path into a document."""


def dotted(loc: Loc) -> str:
    """Return a path as it is written.

    Examples
    --------
    >>> dotted(("ops", "b", "inputs", 0))
    'ops.b.inputs.0'
    """
    return ".".join(shortened(str(part)) for part in loc)


def key_and_value(setting: str, option: str, example: str) -> tuple[str, str]:
    """Split what an option of the command line sets.

    Raises
    ------
    ScenarioError
        It has no key, or no ``=``.
    """
    key, equals, value = setting.partition("=")
    key = key.strip()
    if not equals or not key or key.startswith(".") or key.endswith("."):
        source = f"{option} {shortened(setting)}"
        raise ScenarioError(f"{source}: should be KEY=VALUE, as in {option} {example}")
    return key, value


def plain_settings(settings: Iterable[str], example: str) -> dict[str, Any]:
    """Return what ``--set`` gives to something else than a scenario: keys, and values that are YAML."""
    found = {}
    for setting in settings:
        key, value = key_and_value(setting, "--set", example)
        found[key] = read_yaml_text(value, f"--set {setting}", places=False).plain()
    return found


@dataclass(frozen=True)
class Document:
    """A YAML tree and the file it came from.

    Attributes
    ----------
    root : Node
        The whole tree, after ``--set``.
    path : Path
        The file; relative files that it names are found from its folder.
    changed : frozenset of str
        The options that changed it; without any it is what the file says.
    allowed : Allowed
        Whether it may name code, and files outside its folder.
    """

    root: Node
    path: Path
    changed: frozenset[str] = frozenset()
    allowed: Allowed = NOTHING

    @classmethod
    def read(cls, path: str | Path, allowed: Allowed = NOTHING) -> Document:
        """Read a file, laid over the one that it extends; a recording is the scenario that runs it.

        Raises
        ------
        ScenarioError
            A file cannot be read, is not a YAML mapping, extends itself, or is of an unknown version.
        """
        if os.path.isdir(path) or not str(path).endswith((".yaml", ".yml")):
            from scenarios.recorded.many_ranks import as_scenario, format_of

            if format_of(path) is not None:
                path = os.path.realpath(path)
                root = read_yaml_text(json.dumps(as_scenario(path)), path, places=False)
                return cls(root, Path(path), allowed=allowed)
        return cls(_whole(read_yaml(path), Path(path), allowed.outside), Path(path), allowed=allowed)

    @classmethod
    def written(cls, text: str, folder: str | Path, allowed: Allowed = NOTHING) -> Document:
        """Return what the text of a file in a folder would be.

        Raises
        ------
        ScenarioError
            As of a file.
        """
        path = Path(folder) / "scenario"
        root = _whole(read_yaml_text(text, path.name), path, allowed.outside)
        return cls(root, path, allowed=allowed)

    @property
    def title(self) -> str:
        """What the scenario calls itself, else the name of its file."""
        name = self.root.child("name")
        return str(name.value) if name and name.value else Path(self.path.name.removesuffix(".gz")).stem

    @property
    def directory(self) -> Path:
        """Folder in which relative files are looked for."""
        return self.path.parent

    @property
    def origin(self) -> Origin:
        """What it may name, and from where."""
        return Origin(self.directory, *self.allowed)

    def file(self, name: str) -> Path:
        """Return where a file named by the scenario is: in its folder, unless others are allowed."""
        return self.origin.file(name)

    def at(self, loc: Loc) -> Node | None:
        """Return the value at `loc`, None when there is none."""
        node: Node | None = self.root
        for part in loc:
            node = node and node.child(part)
        return node

    def said(self, loc: Loc, *key: str | int) -> Loc:
        """Return where a key is said: what an entry of ``compare`` at `loc` leaves out, ``policy`` says."""
        entry, policy = self.at(loc), self.at(("policy",))
        if loc[:1] != ("compare",) or not key or entry is None or policy is None:
            return loc
        own, base = (
            node.value if isinstance(node.value, dict) else {"name": node} for node in (entry, policy)
        )
        return ("policy",) if key[0] in base and not {key[0], "runtime"} & own.keys() else loc

    def matching(self, pattern: str) -> list[Loc]:
        """Return the paths that fit a dotted one in which ``*`` is any key of a mapping or item of a list."""
        found: list[tuple[Loc, Node]] = [((), self.root)]
        for part in pattern.split("."):
            below: list[tuple[Loc, Node]] = []
            for loc, node in found:
                inside = node.value
                if part == "*" and isinstance(inside, list):
                    below += [((*loc, i), item) for i, item in enumerate(inside)]
                elif part == "*" and isinstance(inside, dict):
                    below += [((*loc, key), item) for key, item in inside.items()]
                elif isinstance(inside, dict) and part in inside:
                    below.append(((*loc, part), inside[part]))
            found = below
        return [loc for loc, _ in found]

    def place(self, loc: Loc, *, key: bool = False) -> Place:
        """Return where the value at `loc` stands (or its key), or the nearest thing around it."""
        return self.root.place_of(loc, key=key)

    def error(self, loc: Loc, message: str, *, key: bool = False) -> ScenarioError:
        """Return an error that begins with place and path."""
        place, path = self.place(loc, key=key), f"{dotted(loc)}: " if loc else ""
        if message.startswith(own := f"{place.source}: "):  # a recording or an instance, given as it is
            return place.error(message.removeprefix(own))
        return place.error(f"{path}{message.removeprefix(path)}")

    def wrong(self, error: InputError, loc: Loc = ()) -> ScenarioError:
        """Return `error` with its place: its path begins at `loc`."""
        loc = self.said(loc, *error.path[:1])
        if isinstance(error, UnknownNameError):
            near = hint(error.name, error.known)
            if error.what == "policy" and error.name in names("sim.runtimes"):
                near = f"; it is a runtime: policy: {{runtime: {error.name}}}"
            return self.error((*loc, *error.path), f"unknown {error.what} {error.name!r}{near}")
        return self.error((*loc, *error.path), error.message, key=isinstance(error, UnknownOptionError))

    @contextmanager
    def placing(self, *loc: str | int) -> Iterator[None]:
        """Give an error that is raised inside its place: its path begins at `loc`."""
        try:
            yield
        except ScenarioError:  # it has its place
            raise
        except InputError as error:
            raise self.wrong(error, loc) from error

    def with_settings(self, settings: Iterable[str], option: str = "--set") -> Document:
        """Return the document changed by ``KEY=VALUE`` texts, applied in order.

        Parameters
        ----------
        settings : iterable of str
        option : str
            What gave them on the command line, for messages.

        Raises
        ------
        ScenarioError
            A setting without ``=``, a value that is not YAML, or a key that leads nowhere.
        """
        document = self
        for setting in settings:
            key, text = key_and_value(setting, option, "workload.batch=32")
            source = f"{option} {shortened(setting)}"
            nothing = text.strip() in ("", "~", "null")
            value = Node(None, Place(source)) if nothing else read_yaml_text(text, source, places=False)
            document = document._set(key, value, by={option})
        return document

    def with_values(self, values: Mapping[str, Any], loc: Loc) -> Document:
        """Return the document changed by the values of the mapping at `loc`: paths to values (``set:``)."""
        document = self
        for key in values:
            node = self.at((*loc, key))
            assert node is not None
            document = document._set(key, node, place=self.place((*loc, key), key=True))
        return document

    def _set(
        self, key: str, value: Node, *, place: Place | None = None, by: Set[str] = frozenset()
    ) -> Document:
        place = place or value.place
        if key == "extends":
            raise place.error("extends: is read before anything is set; say it in the file")
        root = _replaced(self.root, key, key, value, place)
        return replace(self, root=root, changed=self.changed | by)


VERSIONS: Final = (1,)
"""Versions of the format that can be read; a file that names none is of the last one."""


def _whole(root: Node, path: Path, allow_outside: bool, above: tuple[Path, ...] = ()) -> Node:
    """Return what a file says, laid over the one that it extends; `above` are the files that extend it."""
    if not isinstance(root.value, dict):
        raise root.place.error("a scenario is a mapping: 'name: ...', 'machine: ...', 'workload: ...'")
    schema, version, extends = (root.child(key) for key in ("schema", "version", "extends"))
    if schema is not None and str(schema.value).startswith("sim.graph/"):
        raise root.place.error("is a graph file, no scenario; a scenario names it: workload: {graph: FILE}")
    if version is not None and (version.value not in VERSIONS or isinstance(version.value, bool)):
        known = ", ".join(map(str, VERSIONS))
        raise version.place.error(
            f"version: unknown version {version.plain()!r} of the format; known: {known}"
        )
    if extends is None:
        return root
    if not isinstance(extends.value, str):
        raise extends.place.error(f"extends: should be a file, not {extends.plain()!r}")
    try:
        base = within(path.parent, extends.value, allow_outside=allow_outside)
    except InputError as error:
        raise extends.place.error(f"extends: {error}") from None
    seen = (*above, path)
    if base.resolve() in [each.resolve() for each in seen]:
        chain = " -> ".join(each.name for each in (*seen, base))
        raise extends.place.error(f"extends: a scenario cannot extend itself: {chain}")
    try:
        return _laid_over(_whole(read_yaml(base), base, allow_outside, seen), root)
    except ScenarioError as error:
        if str(error).startswith(f"{base}: "):  # of the whole file: it is missing, or cannot be read
            raise extends.place.error(f"extends: {error}") from None
        raise


_HOW_MANY: Final = ("count", "nodes")
_SHORT: Final = {
    "calibration": "from",
    **dict.fromkeys(("policy", "placement", "streams", "linearize", "allocator"), "name"),
}
"""Where a name may stand for a mapping that has it under this key: ``--set`` may add keys to it."""


def _laid_over(base: Node, over: Node) -> Node:
    """Return `base` with what `over` says in its place: mappings key by key, anything else as a whole.

    A mapping that names another preset is of another thing: of the one before only how many there are stays.
    """
    if not isinstance(base.value, dict) or not isinstance(over.value, dict):
        return over
    old, new = (node.child("preset") for node in (base, over))
    other = new is not None and (old is None or old.plain() != new.plain())
    below = {key: node for key, node in base.value.items() if not other or key in _HOW_MANY}
    both = {key: _laid_over(below[key], node) for key, node in over.value.items() if key in below}
    return Node({**below, **over.value, **both}, over.place, {**base.keys, **over.keys})


def _replaced(node: Node, rest: str, whole: str, value: Node, place: Place) -> Node:
    """Return a copy of `node` with `value` at the path `rest`, sharing what is not on the way."""
    at = whole[: len(whole) - len(rest)].rstrip(".")
    if isinstance(node.value, dict):
        # Names may contain dots: the longest key that fits is meant.
        fitting = [key for key in node.value if rest == key or rest.startswith(f"{key}.")]
        name = max(fitting, key=len, default=rest)
        below = rest[len(name) + 1 :]
        first, dot, beyond = rest.partition(".")
        if not fitting and dot and at and node.value and _short(at) is None:
            known = hint(first, node.value)
            add = f" (a new one is given whole: {at}.{first}={{...}})" if known.startswith("; known") else ""
            raise place.error(f"there is no key {first!r} under {at!r}{known}{add}")
        if not fitting and dot:  # a part that the file leaves out, such as the machine; the schema checks it
            made = _replaced(Node({}, place), beyond, whole, value, place)
            return Node({**node.value, first: made}, node.place, {**node.keys, first: place})
        new = _replaced(node.value[name], below, whole, value, place) if below else value
        keys = {**node.keys} if name in node.keys else {**node.keys, name: place}
        return Node({**node.value, name: new}, node.place, keys)
    if isinstance(node.value, list):
        first, _, below = rest.partition(".")
        if not first.isdecimal() or int(first) >= len(node.value):
            raise place.error(f"{at} is a list of {len(node.value)}; {first!r} should be an index from 0")
        items = list(node.value)
        items[int(first)] = _replaced(items[int(first)], below, whole, value, place) if below else value
        return Node(items, node.place)
    if node.value is None:
        return _replaced(Node({}, node.place), rest, whole, value, place)
    if isinstance(node.value, str) and (key := _short(at)) is not None:
        return _replaced(Node({key: node}, node.place), rest, whole, value, place)
    raise place.error(f"{at} is {node.value!r} and has no key {rest!r}")


def _short(at: str) -> str | None:
    """Return the key that a name stands for, where one may stand in place of a mapping."""
    return _SHORT.get(at.rpartition(".")[2])
