"""Long lists in JSON files, some items at a time: what `json` reads, however the list is cut in pieces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from scenarios.importers import files as streamed_json
from scenarios.importers.kineto import event_columns as wanted
from sim.base.errors import InputError

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6)
VALUES = st.recursive(
    SCALARS,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=3), values, max_size=3),
    max_leaves=6,
)
OTHERS = st.dictionaries(st.text(max_size=4), VALUES, max_size=3)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("json") / "file.json"


def read(file: Path, content: bytes, piece: int) -> tuple[list[Any], dict[str, Any]]:
    """Read the list ``items`` of a file in pieces of at least so many bytes."""
    file.write_bytes(content)
    others: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streamed_json, "_PIECE_BYTES", piece)
        return list(streamed_json.items(file, "a list", "items", others)), others


@examples(120)
@given(st.data())
def test_it_is_what_json_reads(file: Path, data: st.DataObject) -> None:
    values, before, after = data.draw(st.lists(VALUES, max_size=5)), data.draw(OTHERS), data.draw(OTHERS)
    whole = {**before, "items": values, **{key: value for key, value in after.items() if key not in before}}
    ascii_only, indent = data.draw(st.booleans()), data.draw(st.sampled_from([None, 0, 2]))
    text = json.dumps(whole, ensure_ascii=ascii_only, indent=indent)
    encoding = data.draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]))
    content = text.encode(encoding, "surrogatepass")
    if data.draw(st.booleans()):
        content = gzip.compress(content, mtime=0)
    found = read(file, content, data.draw(st.integers(4, 40)))
    assert found == (values, {key: value for key, value in whole.items() if key != "items"})


@examples(200)
@given(st.data())
def test_what_is_wrong_is_wrong_at_the_same_place(file: Path, data: st.DataObject) -> None:
    values = data.draw(st.lists(VALUES, max_size=3))
    text = json.dumps({"a": 1, "items": values, "b": [2]}, indent=data.draw(st.sampled_from([None, 1])))
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(text)))
        put = data.draw(st.sampled_from([*'{}[],:"\\- \n1e.x', "", "", "NaN", "\x01"]))
        text = text[:at] + put + text[at + data.draw(st.sampled_from([0, 1, 1, 100])) :]
    piece = data.draw(st.integers(4, 40))
    try:
        whole = json.loads(text)
    except json.JSONDecodeError as error:
        where = str(error)
        if "trailing comma" in where:  # as newer Pythons say, and of the comma
            where = "line"
        with pytest.raises(InputError, match=r"not JSON|has no list|stands twice") as caught:
            read(file, text.encode(), piece)
        if "not JSON" in str(caught.value):
            assert where in str(caught.value)
        return
    listed = whole if isinstance(whole, list) else whole.get("items") if isinstance(whole, dict) else None
    if isinstance(listed, list) and text.count('"items"') < 2:
        assert repr(read(file, text.encode(), piece)[0]) == repr(listed)
    elif not isinstance(listed, list):
        with pytest.raises(InputError, match=r"not a list \(it has no list items"):
            read(file, text.encode(), piece)


@pytest.mark.parametrize(
    ("item", "cut"),
    [({"a": "}", "b": [1, {}]}, True), ({"a": [{}, {}, {"}, {": 1}]}, True), ([1], False)],
    ids=["plain", "the same inside an item", "no objects"],
)
def test_objects_are_parsed_many_at_a_time(
    file: Path, monkeypatch: pytest.MonkeyPatch, item: Any, cut: bool
) -> None:
    monkeypatch.setattr(streamed_json, "_PIECE_BYTES", 4000)
    file.write_text(json.dumps([item] * 1000))
    found = [*streamed_json.lists(file, "a list", "items", {})]
    assert [one for many in found for one in many] == [item] * 1000
    assert (len(found) in range(2, 20)) == cut


EVENTS = st.lists(
    st.dictionaries(
        st.sampled_from(["ph", "cat", "name", "ts", "dur", "pid", "other"]),
        VALUES | st.integers(-(2**70), 2**70) | st.floats(),
        max_size=4,
    ).flatmap(
        lambda event: st.fixed_dictionaries(
            {"args": st.dictionaries(st.sampled_from(["stream", "grid", "dtype", "x"]), VALUES) | VALUES}
        ).map(lambda args: {**event, **args})
    )
    | VALUES,
    max_size=4,
)


@examples(60)
@given(EVENTS)
def test_what_is_wanted_of_events_is_what_json_reads(events: list[Any]) -> None:
    """To the last bit of a number; and what is no event is told in the same words."""
    text = json.dumps(events)
    assert _what_is_read(wanted.parse_events(text.encode())) == _what_is_read(json.loads(text))


def _what_is_read(values: list[Any]) -> str:
    try:
        events = wanted.as_events(values)
    except ValueError as error:
        return str(error)
    read = [[*(getattr(event, member) for member in event.__struct_fields__)] for event in events]
    for *_, args in read:
        for key in {*args} - {*wanted.Args.__annotations__} if isinstance(args, dict) else ():
            del args[key]
    return repr(read)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"not JSON: Expecting value: line 1 column 1 \(char 0\)"),
        (b"{}", r"not a list \(it has no list items\)"),
        (b'"text"', r"not a list \(it has no list items\)"),
        (b'{"items": 3}', r"not a list \(it has no list items\)"),
        (b'{"items": [1], "items": [2]}', r"not a list \(the key 'items' stands twice in"),
        (b'{"items": [1]} 2', r"not JSON: Extra data: line 1 column 16 \(char 15\)"),
        (b'{"items": [1], "b": }', r"not JSON: Expecting value: line 1 column 21 \(char 20\)"),
        (b'{"items": [1\xff]}', "not JSON: 'utf-8' codec can't decode byte 0xff in position 12"),
        (b'{"items": [' + b"9" * 5000 + b"]}", "not JSON: Exceeds the limit"),
        (b'{"items": [' + b"[" * 100_000, "not JSON: maximum recursion depth exceeded"),
    ],
    ids=range(10),
)
def test_wrong_files(file: Path, content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(file, content, 8)
