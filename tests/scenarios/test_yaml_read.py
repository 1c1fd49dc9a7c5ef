"""YAML with places: what is read, where it stands, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from scenarios.file import yaml_read
from scenarios.file.yaml_read import (
    LONG_BYTES,
    MAX_ALIASED,
    MAX_BYTES,
    MAX_DEPTH,
    Node,
    read_yaml,
    read_yaml_text,
)
from sim.base.errors import ScenarioError


def read(text: str) -> Node:
    return read_yaml_text(text, "s.yaml")


def failure(text: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        read(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e9", 1e9),
        ("1.5E-3", 0.0015),
        (".5", 0.5),
        ("-7", -7),
        ("010", 10),
        ("0x1F", 31),
        ("0o17", 15),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("null", None),
        ("~", None),
        ("true", True),
        ("False", False),
        # What YAML 1.1 takes for booleans, base-60 numbers, dates and octal numbers is text.
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("no", "no"),
        ("n", "n"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("1_000", "1_000"),
        ("+.5.5", "+.5.5"),
        ("10us", "10us"),
        ("1.5 TB/s", "1.5 TB/s"),
        ("'1'", "1"),
        ('"true"', "true"),
        ("!!str 1", "1"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_scalars_are_read_by_the_core_schema_of_yaml_1_2(text: str, value: object) -> None:
    found = read(f"a: {text}").plain()["a"]
    assert found == value
    assert type(found) is type(value)


def test_not_a_number() -> None:
    assert math.isnan(read("a: .nan").plain()["a"])


def test_places_of_values_and_keys() -> None:
    root = read("a:\n  b: [1, {c: 2}]\nd:\n")
    assert str(root.place_of(("a", "b", 0))) == "s.yaml:2:7"
    assert str(root.place_of(("a", "b", 1, "c"))) == "s.yaml:2:14"
    assert str(root.place_of(("a", "b", 1, "c"), key=True)) == "s.yaml:2:11"
    assert str(root.place_of(("a", "b"), key=True)) == "s.yaml:2:3"
    assert str(root.place_of(("a", "nothing", "here"))) == "s.yaml:2:3"
    assert str(root.place_of(("d",))) == "s.yaml:3:1"
    assert str(read_yaml_text("{a: 1}", "--set x", places=False).place_of(("a",))) == "--set x"


def test_keys_are_text() -> None:
    assert read("{1: a, on: b, null: c, 1.50: d}").plain() == {"1": "a", "on": "b", "null": "c", "1.50": "d"}


def test_aliases_and_merge_keys() -> None:
    root = read("base: &b {x: 1, y: 2}\none: *b\ntwo: {<<: *b, y: 3}\nthree: {<<: [*b, {z: 9, x: 0}]}\n")
    assert root.plain() == {
        "base": {"x": 1, "y": 2},
        "one": {"x": 1, "y": 2},
        "two": {"x": 1, "y": 3},
        "three": {"x": 1, "y": 2, "z": 9},
    }
    assert root.place_of(("two", "x")).line == 1
    assert root.place_of(("two", "x"), key=True).line == 1


def test_a_bomb_of_aliases_is_refused_at_once() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 40)]
    assert failure("\n".join(levels)).endswith(f": aliases stand for more than {MAX_ALIASED:,} values")


def test_a_bomb_of_merge_keys_is_refused_at_once() -> None:
    levels = ["a0: &a0 {" + ", ".join(f"k{j}: 1" for j in range(100)) + "}"]
    levels += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 40)]
    assert "aliases stand for more than" in failure("\n".join(levels))


def test_many_values_without_aliases_are_fine() -> None:
    assert len(read("[" + "1," * 3 * MAX_ALIASED + "]").plain()) == 3 * MAX_ALIASED


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "s.yaml:3:1: the key 'a' is given twice (first on line 1)"),
        ("a: &x [1, *x]\n", "s.yaml:1:11: the alias *x contains itself"),
        ("a: *x\n", "s.yaml:1:4: the alias *x refers to nothing before it"),
        ("a: !!py/a 1", "s.yaml:1:4: the tag '!!py/a' is not accepted: a scenario is plain data"),
        ("a: !mine {b: 1}", "s.yaml:1:4: the tag '!mine' is not accepted: a scenario is plain data"),
        ("? [a]\n: 1\n", "s.yaml:1:3: a key must be plain text, not a list or mapping"),
        ("a: &x b\n*x : 1\n", "s.yaml:2:1: a key must be plain text, not the alias *x"),
        ("a: 1\n---\nb: 2", "s.yaml:2:1: a second document begins here ('---'); a scenario is one document"),
        ("a: {<<: 3}", "s.yaml:1:9: '<<' merges mappings, as in '<<: *base'"),
        ("", "s.yaml: is empty"),
        ("# nothing\n", "s.yaml: is empty"),
        ("null\n", "s.yaml: is empty"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, message: str) -> None:
    assert failure(text) == message


def test_what_is_not_yaml() -> None:
    assert failure("a: [1, 2\nb: 3\n").startswith("s.yaml:2:2: not YAML: while parsing a flow sequence")
    assert failure("a:\n\tb: 1\n").startswith("s.yaml:2:1: not YAML: ")
    assert failure("a:\n\tb: 1\n").endswith("; indent with spaces, not with tabs")
    assert failure("a: \x07\n").startswith("s.yaml:")
    assert "\n" not in failure("a: 'b\n")


def test_depth_is_bounded_without_recursion() -> None:
    assert read("[" * MAX_DEPTH + "]" * MAX_DEPTH).plain()
    deep = 100_000
    assert failure("[" * deep + "]" * deep).endswith(f"is nested more than {MAX_DEPTH} levels deep")


def test_files_that_are_no_scenarios(tmp_path: Path) -> None:
    def of(name: str, content: bytes) -> str:
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ScenarioError) as caught:
            read_yaml(path)
        return str(caught.value).removeprefix(f"{tmp_path}/")

    assert of("binary", b"\x7fELF\0\0\0") == "binary: is a binary file, not a scenario (YAML text)"
    assert of("zipped", b"\x1f\x8b\x08abc") == "zipped: is a binary file, not a scenario (YAML text)"
    assert of("latin1", b"a: 1\nb: \xe9t\xe9\n") == (
        "latin1:2:4: is not UTF-8 text (byte 0xe9); save the file as UTF-8"
    )
    assert of("empty", b"") == "empty: is empty"
    assert "is larger than 16 MiB; keep a large graph in a graph file" in of("large", b" " * (MAX_BYTES + 1))
    for path, why in ((tmp_path, "is a directory, not a file"), (tmp_path / "no", "no such file")):
        with pytest.raises(ScenarioError, match=f": {why}$"):
            read_yaml(path)


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: x\n")
    assert read_yaml(path).plain() == {"name": "x"}


TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn", "Co"]), max_size=8),
    lambda below: (
        st.lists(below, max_size=4) | st.dictionaries(st.text("abcxyz", min_size=1), below, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text("abc", min_size=1), TREES, min_size=1))
def test_whatever_is_written_as_json_is_read_back(tree: dict[str, object]) -> None:
    assert read(json.dumps(tree, ensure_ascii=False)).plain() == tree


@given(
    st.dictionaries(st.text("abc", min_size=1), st.lists(st.booleans() | st.integers() | st.text("abc xyz")))
)
def test_the_pure_python_loader_reads_the_same(tree: dict[str, object]) -> None:
    """PyYAML without libyaml gives the same events."""
    text = yaml.safe_dump(tree, default_flow_style=False)
    with pytest.MonkeyPatch.context() as patch:
        expected = read(text)
        patch.setattr("scenarios.file.yaml_read.LOADER", yaml.SafeLoader)
        assert read(text) == expected


def test_who_waits_for_a_long_file_is_told_before_of_graph_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "long.yaml"
    path.write_text("a: 1\n" + "#" * LONG_BYTES)
    monkeypatch.setattr(yaml_read, "_tree", lambda text, source: pytest.fail("parsed before it said so"))
    with pytest.raises(
        UserWarning, match=r"4 MB of YAML take about 5 s to read; keep a large graph in a graph"
    ):
        read_yaml(path)


def test_a_file_that_is_as_before_is_not_parsed_again(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("a: 1\n")
    assert read_yaml(path) is read_yaml(path)
    path.write_text("a: 2\n")
    assert read_yaml(path).plain() == {"a": 2}
