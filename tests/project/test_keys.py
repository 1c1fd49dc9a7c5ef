"""Keys of scenarios: few, each explained in a page, and none that was renamed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sim.base.errors import hint, renamed_names

ROOT = Path(__file__).resolve().parents[2]
MOST_NAMES = 340
"""Different names of keys, options of policies and rewrites among them. Use a word that there is."""


def keys(node: Any, *, named: bool = False) -> Iterator[str]:
    """Yield the properties of a JSON Schema, however deep."""
    if isinstance(node, dict):
        if not named and isinstance(node.get("properties"), dict):
            yield from node["properties"]
        for key, value in node.items():
            yield from keys(value, named=key == "properties" and not named)
    elif isinstance(node, list):
        for value in node:
            yield from keys(value)


NAMES = set(keys(json.loads((ROOT / "scenarios/scenario.schema.json").read_text(encoding="utf-8"))))


def test_there_are_not_many() -> None:
    assert len(NAMES) <= MOST_NAMES


def test_each_stands_in_a_page() -> None:
    """As code, not as a word of a sentence."""
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"))]
    code = [
        part
        for page in pages
        for part in re.findall(r"^```.*?^```|^ {4}.*?$|`[^`]+`", page, re.DOTALL | re.M)
    ]
    assert sorted(NAMES - set(re.findall(r"[\w$]+", " ".join(code)))) == []


def test_an_old_name_leads_to_the_new_one() -> None:
    elsewhere = "allocator chunk lifetime network pipeline size threads when_full"  # keys still
    assert " ".join(name for name in renamed_names() if name in NAMES) == elsewhere
    for old, new in renamed_names().items():
        if new.startswith("gone: "):
            assert hint(old, NAMES) == f"; {old} is {new}"
            continue
        assert set(re.match(r"[\w.]+", new)[0].split(".")) <= NAMES
        assert hint(old, NAMES - {old}) == f"; {old} is now {new}"
