"""YAML as data with places: every value has the file, line and column it came from.

A scenario is written by hand, so an error in it needs its place. PyYAML's events carry places; this module
turns them into a tree of `Node`, without recursion, and checks them on the way::

    bytes ─ decode ─► text ─ yaml.parse ─► events ─ _Composer ─► Node ─ Node.plain() ─► dict, list, str, int

Differences from ``yaml.safe_load``, which reads YAML 1.1:

* Scalars are read by the core schema of YAML 1.2.2 (https://yaml.org/spec/1.2.2/, section 10.3.2), so that
  ``1e9`` is a number, and ``12:30``, ``on``, ``off``, ``yes``, ``no`` and ``2024-01-01`` are text.
* A duplicate key is an error, not a silent loss. Keys are always text.
* Aliases and merge keys (``<<: *base``) work, but they may not expand the file by more than `MAX_ALIASED`
  values (a "YAML bomb" is a few lines that stand for billions), nor contain themselves.
* No tags but ``!!str`` are accepted: a scenario is data and creates no objects.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from sim.base.errors import LONGEST_NAME, InputError, ScenarioError, shorten
from sim.base.files import FileTooLargeError, read_bytes
from sim.base.startup import collector_paused

MAX_BYTES: Final = 16 * 2**20
"""Largest accepted file. Large graphs belong in graph files, which are read a thousand times faster."""

LONG_BYTES: Final = 4 * 2**20
"""Size of a file that takes several seconds to read; a warning then points to graph files beforehand."""

MAX_DEPTH: Final = 64
"""Deepest accepted nesting. Real scenarios are never nested deeper than a dozen levels."""

MAX_ALIASED: Final = 20_000
"""Number of values that aliases may stand for, beyond those that are written out."""

Scalar = str | int | float | bool | None

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_WORDS: Final[Mapping[str, Scalar]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **{sign + inf: float(sign + "inf") for sign in ("", "+", "-") for inf in (".inf", ".Inf", ".INF")},
}
_INT: Final = re.compile(r"[-+]?[0-9]+")
_OTHER_BASE: Final = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


class Place(NamedTuple):
    """A place in a file or another source, by line and column, counted from 1; 0 means unknown."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        """Return ``file:line:column``, or the source alone."""
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source

    def error(self, message: str) -> ScenarioError:
        """Return an error that begins with this place; long numbers and quoted names are shortened."""
        short = _LONG.sub(lambda match: shorten(match[0]), message)
        error = ScenarioError(f"{self}: {short}")
        error.placed = [(self, short)]
        return error


_LONG: Final = re.compile(rf"(?<=')[^'\s]{{{LONGEST_NAME + 1},}}(?=')|\d{{{LONGEST_NAME + 1},}}")
"""A quoted name or a number that is too long to show in a message."""


@dataclass(slots=True)
class Node:
    """A value of a YAML file, and its place.

    Attributes
    ----------
    value : scalar, list of Node, or dict of str to Node
    place : Place
        Where the value begins.
    keys : dict of str to Place
        For a mapping, the place of each key.
    size : int
        Number of values in it, including itself; aliases count each time they occur.
    """

    value: Any
    place: Place
    keys: dict[str, Place] = field(default_factory=dict)
    size: int = 1

    def plain(self, *, leave_out: Collection[str] = ()) -> Any:
        """Return the value as plain dicts, lists and scalars, with None for the keys in `leave_out`."""
        if isinstance(self.value, dict):
            return {key: None if key in leave_out else node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def items(self) -> Iterable[tuple[str | int, Node]]:
        """Return the values in it, each with its key or list index."""
        if isinstance(self.value, dict):
            return self.value.items()
        return enumerate(self.value) if isinstance(self.value, list) else ()

    def child(self, part: str | int) -> Node | None:
        """Return the value under a key or list index, or None."""
        if isinstance(self.value, dict):
            return self.value.get(str(part))
        if isinstance(self.value, list) and isinstance(part, int) and 0 <= part < len(self.value):
            return self.value[part]  # type: ignore[no-any-return]
        return None

    def place_of(self, path: tuple[str | int, ...], *, key: bool = False) -> Place:
        """Return the place of the value at `path` (or of its key), or of the nearest value around it."""
        node, place = self, self.place
        for i, part in enumerate(path):
            if key and i == len(path) - 1 and str(part) in node.keys:
                return node.keys[str(part)]
            below = node.child(part)
            if below is None:
                return place
            node, place = below, below.place
        return place


_TOO_DEEP: Final = f"is nested more than {MAX_DEPTH} levels deep"


def read_yaml(path: str | Path) -> Node:
    """Return the tree of a YAML file.

    Raises
    ------
    ScenarioError
        The file is missing, not a regular file, binary, not UTF-8, empty, too large, or not YAML.
    """
    source = str(path)
    advice = "keep a large graph in a graph file (sim import) and name that in the scenario"
    try:
        content = read_bytes(path, unpack=False, most=MAX_BYTES)
    except FileTooLargeError as error:
        raise ScenarioError(f"{error}; {advice}") from None
    except InputError as error:
        raise ScenarioError(str(error)) from None
    if len(content) > LONG_BYTES:
        took_s = 1.3 * len(content) / 10**6  # measured: 20 s for 15 MB
        message = (
            f"{source}: {len(content) / 10**6:.0f} MB of YAML take about {took_s:.0f} s to read; {advice}"
        )
        warnings.warn(message, stacklevel=2)
    return _tree(_decode(content, source), source)


def _decode(content: bytes, source: str) -> str:
    if b"\0" in content[:8192] or content[:2] == b"\x1f\x8b":
        raise ScenarioError(f"{source}: is a binary file, not a scenario (YAML text)")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        raise Place(source, line, column).error(
            f"is not UTF-8 text (byte {content[error.start]:#04x}); save the file as UTF-8"
        ) from None


def read_yaml_text(text: str, source: str, *, places: bool = True) -> Node:
    """Return the tree of a YAML text; `source` is its name in messages.

    Parameters
    ----------
    text : str
    source : str
    places : bool
        Whether lines and columns help the reader of a message (not for a command line).

    Raises
    ------
    ScenarioError
        Not YAML, empty, more than one document, a duplicate key, a tag, or too many aliases.
    """
    composer = _Composer(source, places)
    try:
        with collector_paused(keeps=True):
            for event in yaml.parse(text, Loader=LOADER):
                composer.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        if "nesting depth" in problem:  # libyaml has a limit as well, since PyYAML 6.0.4
            raise composer.place(mark).error(_TOO_DEEP) from None
        raise composer.place(mark).error(f"not YAML: {problem}{_hint(text, mark)}") from None
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        raise ScenarioError(f"{source}: not YAML: {' '.join(str(error).split())}") from None
    if composer.root is None or composer.root.value is None:
        raise ScenarioError(f"{source}: is empty")
    return composer.root


_tree = lru_cache(maxsize=1)(read_yaml_text)
"""... of the last file: a command that writes looks first whether the scenario names what is written."""


def texts_in(value: Any) -> Iterator[str]:
    """Yield the texts in a plain value that may name a file; most name none, and very long ones cannot."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts_in(item)
    elif isinstance(value, str) and 0 < len(value) < 1000:
        yield value


def _hint(text: str, mark: Any) -> str:
    """Return advice about the most frequent error: tabs in the indentation."""
    line = text.split("\n")[mark.line] if mark is not None and mark.line < text.count("\n") + 1 else ""
    return "; indent with spaces, not with tabs" if "\t" in line[: len(line) - len(line.lstrip())] else ""


@dataclass(slots=True)
class _Open:
    """A collection whose end has not been seen."""

    node: Node
    anchor: str | None
    key: Any = None
    merged: list[Node] = field(default_factory=list)

    @property
    def wants_key(self) -> bool:
        """Whether a key of a mapping comes next."""
        return isinstance(self.node.value, dict) and self.key is None


class _Composer:
    """Builds a tree of nodes from events; open collections are on a stack, so depth needs no recursion."""

    def __init__(self, source: str, places: bool) -> None:
        self.source, self.places = source, places
        self.root: Node | None = None
        self.open: list[_Open] = []
        self.anchors: dict[str, Node | None] = {}  # None: not complete yet
        self.aliased = 0

    def place(self, mark: Any) -> Place:
        if mark is None or not self.places:
            return Place(self.source)
        return Place(self.source, mark.line + 1, mark.column + 1)

    def take(self, event: Any) -> None:
        place = self.place(event.start_mark)
        if isinstance(event, yaml.ScalarEvent):
            self._check_tag(event, place)
            if self.open and self.open[-1].wants_key:
                self._key(self.open[-1], event.value, place)
            else:
                self._add(Node(_scalar(event), place), event.anchor)
        elif isinstance(event, yaml.CollectionStartEvent):
            self._check_tag(event, place)
            if self.open and self.open[-1].wants_key:
                raise place.error("a key must be plain text, not a list or mapping")
            if len(self.open) >= MAX_DEPTH:
                raise place.error(_TOO_DEEP)
            empty: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
            if event.anchor is not None:
                self.anchors[event.anchor] = None
            self.open.append(_Open(Node(empty, place), event.anchor))
        elif isinstance(event, yaml.CollectionEndEvent):
            done = self.open.pop()
            for other in done.merged:  # adds the keys that are not there (https://yaml.org/type/merge.html)
                for key, node in other.value.items():
                    done.node.value.setdefault(key, node)
                    done.node.keys.setdefault(key, other.keys[key])
            self._add(done.node, done.anchor)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(str(event.anchor), place)
        elif isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
            raise place.error("a second document begins here ('---'); a scenario is one document")

    def _check_tag(self, event: Any, place: Place) -> None:
        if event.tag not in (None, "!", "tag:yaml.org,2002:str"):
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            raise place.error(f"the tag {tag!r} is not accepted: a scenario is plain data")

    def _key(self, top: _Open, key: str, place: Place) -> None:
        if key in top.node.keys:
            first = top.node.keys[key]
            raise place.error(f"the key {key!r} is given twice (first on line {first.line})")
        top.key = key
        top.node.keys[key] = place

    def _alias(self, anchor: str, place: Place) -> None:
        if self.open and self.open[-1].wants_key:
            raise place.error(f"a key must be plain text, not the alias *{anchor}")
        if anchor not in self.anchors:
            raise place.error(f"the alias *{anchor} refers to nothing before it")
        node = self.anchors[anchor]
        if node is None:
            raise place.error(f"the alias *{anchor} contains itself")
        self.aliased += node.size
        if self.aliased > MAX_ALIASED:
            raise place.error(f"aliases stand for more than {MAX_ALIASED:,} values")
        self._add(node, None)

    def _add(self, node: Node, anchor: str | None) -> None:
        if anchor is not None:
            self.anchors[anchor] = node
        if not self.open:
            self.root = node
            return
        top = self.open[-1]
        if isinstance(top.node.value, list):
            top.node.value.append(node)
        else:
            key, top.key = top.key, None
            if key == "<<":
                del top.node.keys[key]
                top.merged += _mappings(node)
            else:
                if node.value is None:  # an empty value has the place of whatever follows it: use the key's
                    node.place = top.node.keys[key]
                top.node.value[key] = node
        top.node.size += node.size


def _mappings(node: Node) -> Iterator[Node]:
    """Yield the mappings of a merge key: one or several."""
    several = node.value if isinstance(node.value, list) else [node]
    for one in several:
        if not isinstance(one.value, dict):
            raise one.place.error("'<<' merges mappings, as in '<<: *base'")
        yield one


def _scalar(event: Any) -> Scalar:
    """Return the value of a scalar in the core schema of YAML 1.2; quoted or tagged scalars are text."""
    text: str = event.value
    if event.style not in (None, "") or event.tag is not None:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > 400:  # nobody writes such numbers, and Python refuses integers of thousands of digits
        return text
    if _INT.fullmatch(text):
        return int(text)
    if _OTHER_BASE.fullmatch(text):
        return int(text, 0)
    return float(text) if _FLOAT.fullmatch(text) else text
