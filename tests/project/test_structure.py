"""How the source is laid out: imports lead one way, rooms are few and large, names stand for one thing.

A floor is what stands in one folder: its files, and its folders as wholes. Every import counts, wherever it
stands: those inside functions and those for type checkers, too. What a package's ``__init__.py`` takes from
its own files is not an arrow between them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = (("studies", "validation"), ("scenarios",), ("devices", "policies"), ("sim",))
PACKAGES = [name for layer in LAYERS for name in layer]
FOUR = ("sim", "devices", "policies", "scenarios")
MOST_FILES, LEAST_FILES, MOST_LINES = 30, 5, 600
LONG = {"sim/kernel/loop.py": 1010}
"""The kernel's loop over instants, which is compiled in one piece."""
SMALL = frozenset(
    f"{layer}/{room}"
    for layer, rooms in (
        ("sim", "diff export record"),
        ("devices", "presets"),
        ("scenarios", "file"),
    )
    for room in rooms.split()
)
"""Rooms of few files that other rooms may not import back, so that none of these can hold them."""
PARTICIPLE = re.compile(
    r"_?([a-z]*[a-df-z]ed|begun|built|done|drawn|found|given|held|hidden|kept|known|left|lost|made|met|said|seen"
    r"|sent|shown|spent|taken|told|written)"
)
NO_NOUN = re.compile(
    "asked|at|both|by|each|got|here|how|its|made|mine|of|on|own|per|put|said|such|than|theirs|there|those|to|told"
    "|was|went|what|which|whose"
)
"""Words that do not say what a variable holds."""
EVENTS = {"carried", "ended", "started"}
"""Contracts name these methods by what has just happened when they are called."""


@cache
def modules() -> dict[str, str]:
    """Return every module's name and its path in the repository."""
    paths = [path.relative_to(ROOT) for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))]
    return {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path.as_posix() for path in paths}


@cache
def tree(path: str) -> ast.Module:
    """Return the syntax of a file."""
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements inside a node, however deep, and no expressions: most nodes are such."""
    for block in ("body", "orelse", "handlers", "finalbody", "cases"):
        for inner in getattr(node, block, ()):
            yield inner
            yield from statements(inner)


@cache
def arrows() -> dict[str, set[str]]:
    """Return which modules of ours each one imports."""
    known = modules()
    found: dict[str, set[str]] = {}
    for name, path in known.items():
        used: set[str] = set()
        for node in statements(tree(path)):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}:{node.lineno}: imports name their package in full"
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    used.add(whole if whole in known else str(node.module))
            elif isinstance(node, ast.Import):
                used |= {alias.name for alias in node.names}
        found[name] = used & set(known)
    return found


def cycle_in(graph: dict[str, set[str]]) -> list[str] | None:
    """Return a cycle, its first member repeated at the end, or None."""
    state = dict.fromkeys(graph, 0)  # 1: on the path, 2: done
    for start in sorted(graph):
        path, ways = [start], [iter(sorted(graph[start]))]
        while path and state[start] < 2:
            state[path[-1]] = 1
            step = next((node for node in ways[-1] if state[node] < 2), None)
            if step is None:
                state[path.pop()] = 2
                ways.pop()
            elif state[step] == 1:
                return [*path[path.index(step) :], step]
            else:
                path.append(step)
                ways.append(iter(sorted(graph[step])))
    return None


@cache
def floor(folder: str) -> dict[str, set[str]]:
    """Return the files and folders that stand in `folder`, and which of the others each one imports."""
    prefix = f"{folder}/" if folder else ""
    inside = {
        name: path.removeprefix(prefix).split("/")[0]
        for name, path in modules().items()
        if path.startswith(prefix) and path != f"{prefix}__init__.py"
    }
    graph: dict[str, set[str]] = {member: set() for member in inside.values()}
    for name, member in inside.items():
        graph[member] |= {inside[other] for other in arrows()[name] if other in inside} - {member}
    return graph


FOLDERS = sorted({"", *(path.rpartition("/")[0] for path in modules().values())})


def test_a_cycle_is_found() -> None:
    assert cycle_in({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}) is None
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": {"b"}}) == ["b", "c", "d", "b"]
    assert cycle_in({"a": {"a"}}) == ["a", "a"]


def test_no_files_import_one_another() -> None:
    assert cycle_in(arrows()) is None


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_lead_one_way_on_every_floor(folder: str) -> None:
    assert cycle_in(floor(folder)) is None


def test_arrows_between_packages_point_down() -> None:
    height = {name: len(LAYERS) - i for i, layer in enumerate(LAYERS) for name in layer}
    up = [
        f"{name} imports {other}"
        for name, others in arrows().items()
        for other in others
        if name.split(".")[0] != other.split(".")[0]
        and height[name.split(".")[0]] <= height[other.split(".")[0]]
    ]
    assert sorted(up) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_floor_is_crowded(folder: str) -> None:
    files = [name for name in floor(folder) if name.endswith(".py")]
    assert len(files) <= MOST_FILES, f"{folder}: {', '.join(sorted(files))}"


@pytest.mark.parametrize("folder", [each for each in FOLDERS if each.split("/")[0] in FOUR])
def test_a_folder_is_a_room(folder: str) -> None:
    """A layer, a room, at most a chamber in it; and none for a handful of files that has no need of one."""
    assert folder.count("/") <= 2
    inside = [path for path in modules().values() if path.startswith(f"{folder}/")]
    assert len(inside) > LEAST_FILES or folder in SMALL, f"{folder}: {', '.join(sorted(inside))}"


def test_a_file_answers_one_question() -> None:
    long = {path: len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in modules().values()}
    assert {path: n for path, n in long.items() if n > LONG.get(path, MOST_LINES)} == {}


def test_public_class_names_are_unique() -> None:
    seen: dict[str, list[str]] = {}
    for name, path in modules().items():
        if path.split("/")[0] not in FOUR:
            continue
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                seen.setdefault(node.name, []).append(name)
    assert {name: where for name, where in seen.items() if len(where) > 1} == {}


def test_no_function_is_a_bare_participle() -> None:
    """``scale_durations`` says what it does, ``rounded_size`` what it returns; ``told`` says neither."""
    bare = [
        f"{path}:{node.lineno}: {node.name}"
        for path in modules().values()
        if path.split("/")[0] in FOUR
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef) and PARTICIPLE.fullmatch(node.name) and node.name not in EVENTS
        if not any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]
    assert bare == []


def test_variables_are_named_after_what_they_hold() -> None:
    vague = [
        f"{path}:{node.lineno}: {node.id}"
        for path in modules().values()
        if path.split("/")[0] in FOUR
        for function in ast.walk(tree(path))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and NO_NOUN.fullmatch(node.id)
    ]
    assert vague == []


@cache
def parameters_of(docstring: str) -> list[str]:
    """Return the names in a docstring's section of parameters."""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=\n\n\S|\Z)", docstring, re.DOTALL | re.MULTILINE)
    lines = section[1].splitlines() if section else []
    names = [line.split(" : ")[0].split(", ") for line in lines if line and not line.startswith(" ")]
    return [name.lstrip("*\\") for group in names for name in group]


def test_docstrings_list_parameters_that_there_are() -> None:
    wrong = []
    for path in modules().values():
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue
            if getattr(node, "bases", []) and "__init__" not in [
                getattr(part, "name", "") for part in node.body
            ]:
                continue  # it may have parameters of its base
            names = {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
            names |= {ast.unparse(part.target) for part in node.body if isinstance(part, ast.AnnAssign)}
            listed = parameters_of(ast.get_docstring(node) or "")
            wrong += [f"{path}:{node.lineno}: {name}" for name in listed if name not in names]
    assert wrong == [], "\n".join(wrong)


def test_only_faces_list_their_names() -> None:
    """What a package offers stands in its ``__init__``; a module offers what has no underscore before it."""
    listed = [
        path
        for path in modules().values()
        if not path.endswith("__init__.py")
        for node in tree(path).body
        if isinstance(node, ast.Assign) and "__all__" in [getattr(each, "id", "") for each in node.targets]
    ]
    assert listed == []


def test_every_folder_says_what_it_is() -> None:
    for folder in FOLDERS[1:]:
        init = ROOT / folder / "__init__.py"
        assert init.is_file(), f"{folder} has no __init__.py"
        assert ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))), (
            f"{folder}/__init__.py says nothing"
        )
