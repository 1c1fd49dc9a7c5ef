"""The page of a scenario's keys: the JSON Schema that editors use, as tables."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

_HEAD: Final = """\
# Keys of a scenario

Every key, from the schema that editors use (`sim schema`). [Scenarios](../scenarios.md) shows them by
example; options of policies are in [their own reference](policies.md). A key that is not known is an
error.

## The file
"""


def text() -> str:
    """Return the page: the file's own keys, then each kind of mapping in the order in which they are met."""
    from scenarios.schema import json_schema

    schema = json_schema()
    kinds = schema["$defs"]
    titles = _titles(schema, kinds)
    parts = [_HEAD, _table(schema, titles)]
    for name, title in titles.items():
        parts.append(f"## {title}\n\n{_sentence(kinds[name].get('description', ''))}\n")
        if "properties" in kinds[name]:
            parts.append(_table(kinds[name], titles))
    return "\n".join(parts)


def _titles(schema: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, str]:
    """Return each kind of mapping and where a reader meets it first, breadth first; quantities last."""
    places: dict[str, str] = {}
    waiting: list[tuple[Any, str]] = [(schema["properties"], "")]
    while waiting:
        part, at = waiting.pop(0)
        for name, place in _references(part, at):
            if name not in places and name != "JsonValue":
                quantity = "properties" not in kinds[name]
                places[name] = name if quantity else place
                waiting.append((kinds[name].get("properties", {}), place))
    crowded = [place for place, count in Counter(places.values()).items() if count > 1]
    ordered = sorted(places, key=lambda name: "properties" not in kinds[name])
    return {
        name: f"{places[name]} ({_own(name, kinds[name])})" if places[name] in crowded else places[name]
        for name in ordered
    }


def _own(name: str, kind: Mapping[str, Any]) -> str:
    """Return what tells a kind from others in its place: its model, or the key that it must have."""
    model = kind["properties"].get("model", {})
    words = model.get("enum") or [model.get("const") or next(iter(kind.get("required", [name])))]
    return str(words[0])


def _references(part: Any, at: str) -> Iterator[tuple[str, str]]:
    """Yield the kinds that a part of the schema names, and where they stand: ``machine.devices.NAME``."""
    if isinstance(part, list):
        for below in part:
            yield from _references(below, at)
    if not isinstance(part, dict):
        return
    if isinstance(part.get("$ref"), str):
        yield part["$ref"].rpartition("/")[2], at
        return
    for key, below in part.items():
        if key in ("anyOf", "oneOf", "allOf", "items"):
            yield from _references(below, at)
        elif key == "additionalProperties":
            yield from _references(below, f"{at}.NAME")
        elif isinstance(below, dict):
            yield from _references(below, f"{at}.{key}".lstrip("."))


def _slug(title: str) -> str:
    """Return the anchor of a title, as the site makes it."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _table(kind: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """Return the keys of a mapping."""
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for key, value in kind["properties"].items():
        needed = "**needed**" if key in kind.get("required", ()) else _default(value.get("default"))
        meaning = _sentence(value.get("description", ""))
        rows.append(f"| `{key}` | {_kind(value, titles)} | {needed} | {meaning} |")
    return "\n".join(rows) + "\n"


def _default(value: Any) -> str:
    return "" if value in (None, [], {}) or isinstance(value, dict) else f"`{json.dumps(value)}`"


def _kind(value: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """Return what a value may be, with links to the kinds of mapping."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return "any" if name not in titles else f"[{titles[name]}](#{_slug(titles[name])})"
    for key in ("anyOf", "oneOf"):
        if key in value:
            given = [one for one in value[key] if one.get("type") != "null"]
            if {"type": "string"} in given:  # of which some words are offered to editors
                given = [one for one in given if "enum" not in one]
            words = [_kind(one, titles) for one in given]
            return " or ".join(dict.fromkeys(words))
    if "enum" in value:
        return ", ".join(f"`{word}`" for word in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    kind = value.get("type", "any")
    if kind == "array":
        return f"list of {_kind(value.get('items', {}), titles)}"
    if kind == "object" and isinstance(value.get("additionalProperties"), dict):
        return f"names to {_kind(value['additionalProperties'], titles)}"
    if isinstance(kind, list):
        return " or ".join(str(_WORDS.get(one, one)) for one in kind)
    return str(_WORDS.get(kind, kind))


_WORDS: Final[Mapping[str, str]] = {
    "boolean": "true or false",
    "integer": "whole number",
    "number": "number",
    "object": "mapping",
    "string": "text",
}


def _sentence(told: str) -> str:
    """Return a description for a cell."""
    return " ".join(told.split()).replace("``", "`").replace("|", "\\|").replace("<", "&lt;")
