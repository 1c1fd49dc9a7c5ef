"""Plugins: found by name, loaded late, broken ones left out, code only on request."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sim.base.plugins
from sim.base.errors import InputError, UnknownNameError
from sim.base.plugins import PluginWarning, describe, lookup, names, register, unregister

GROUP = "test.things"
Install = Callable[..., Path]

MODULE = '''
class Good:
    """The good one.

    More about it.
    """

class Silent(Good):
    pass

value = Good()
number = 7
'''


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that puts a distribution with one module on `sys.path`, as pip would."""
    before = set(sys.modules)

    def put(
        distribution: str, module: str, entries: dict[str, str], source: str = MODULE, group: str = GROUP
    ) -> Path:
        site = tmp_path / distribution
        info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in entries.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
        (site / f"{module}.py").write_text(source)
        monkeypatch.syspath_prepend(site)
        return site

    yield put
    for name in set(sys.modules) - before:
        del sys.modules[name]
    sim.base.plugins._broken.clear()


def test_a_plugin_is_found_by_name_and_imported_only_when_looked_up(install: Install) -> None:
    install("things-a", "things_a", {"good": "things_a:Good", "value": "things_a:value"})
    assert names(GROUP) == ["good", "value"]
    assert "things_a" not in sys.modules
    assert lookup(GROUP, "good").__name__ == "Good"
    assert lookup(GROUP, "value").__class__ is lookup(GROUP, "good")


def test_names_from_several_distributions_are_one_list(install: Install) -> None:
    install("things-a", "things_a", {"b": "things_a:Good"})
    install("things-b", "things_b", {"a": "things_b:Good"})
    assert names(GROUP) == ["a", "b"]
    assert [(found.name, found.distribution) for found in describe(GROUP)] == [
        ("a", "things-b"),
        ("b", "things-a"),
    ]


def test_an_unknown_name_lists_the_nearest(install: Install) -> None:
    install("things-a", "things_a", {"good": "things_a:Good"})
    with pytest.raises(UnknownNameError, match=r"'god'; did you mean 'good'\? Known: good"):
        lookup(GROUP, "god")
    with pytest.raises(UnknownNameError, match=r"Known: \(none\)"):
        lookup("test.nothing", "good")


def test_a_description_is_the_first_line_of_the_things_own_docstring(install: Install) -> None:
    entries = {name: f"things_a:{name}" for name in ("Good", "Silent", "value", "number")}
    install("things-a", "things_a", {**entries, "module": "things_a"}, source='"""A module."""\n' + MODULE)
    assert {found.name: found.summary for found in describe(GROUP)} == {
        "Good": "The good one.",
        "Silent": "",
        "module": "A module.",
        "number": "",
        "value": "The good one.",
    }


@pytest.mark.parametrize(
    ("value", "source", "reason"),
    [
        ("things_a:Good", "raise RuntimeError('boom')", "RuntimeError: boom"),
        ("things_a:Good", "import sys; sys.exit(3)", "SystemExit: 3"),
        ("things_a:Good", "def (", "SyntaxError"),
        ("things_a:Missing", MODULE, "AttributeError"),
        ("not_there:Good", MODULE, "ModuleNotFoundError"),
    ],
)
def test_a_broken_plugin_warns_and_is_left_out(
    install: Install, value: str, source: str, reason: str
) -> None:
    install("things-a", "things_a", {"broken": value}, source=source)
    install("things-b", "things_b", {"good": "things_b:Good"})
    with pytest.warns(PluginWarning, match=reason) as caught:
        found = describe(GROUP)
    assert "the member of test.things 'broken' of things-a" in str(caught[0].message)
    assert [one.name for one in found] == ["good"]
    assert names(GROUP) == ["good"]
    with pytest.warns(PluginWarning, match=reason), pytest.raises(UnknownNameError, match="Known: good"):
        lookup(GROUP, "broken")


def test_of_two_plugins_with_one_name_the_first_distribution_is_used(install: Install) -> None:
    install("things-b", "things_b", {"good": "things_b:Good"})
    install("things-a", "things_a", {"good": "things_a:Good"})
    with pytest.warns(PluginWarning, match="things-b and things-a both offer"):
        assert lookup(GROUP, "good").__module__ == "things_a"


def test_a_built_in_wins_over_a_plugin(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sim.base.plugins, "_own_entry_points", lambda: {GROUP: {"good": "fractions:Fraction"}}
    )
    install("a-first-by-name", "things_a", {"good": "things_a:Good"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lookup(GROUP, "good").__module__ == "fractions"  # nobody else is asked
    with pytest.warns(PluginWarning, match="the one of graph-schedule-sim"):
        assert names(GROUP) == ["good"]
    assert describe(GROUP)[0].distribution == "graph-schedule-sim"


def test_in_a_checkout_its_pyproject_counts_and_not_the_installed_copy(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sim.base.plugins, "_own_entry_points", lambda: {GROUP: {"new": "fractions:Fraction"}})
    install("graph-schedule-sim", "things_a", {"old": "things_a:Good"})
    assert names(GROUP) == ["new"]
    monkeypatch.setattr(sim.base.plugins, "_own_entry_points", dict)
    sim.base.plugins._plugins.cache_clear()
    assert names(GROUP) == ["old"]


def test_where_it_is_installed_the_built_ins_are_read_beside_the_packages(tmp_path: Path) -> None:
    info = tmp_path / "graph_schedule_sim-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[sim.policies]\nready-queue = a.b:C\n")
    assert sim.base.plugins._own_entry_points(tmp_path) == {"sim.policies": {"ready-queue": "a.b:C"}}
    assert (sim.base.plugins._ROOT / "sim" / "base" / "plugins.py").is_file()


def test_every_built_in_can_be_loaded_and_says_what_it_is() -> None:
    declared = sim.base.plugins._own_entry_points()
    assert declared
    with warnings.catch_warnings():
        warnings.simplefilter("error", PluginWarning)
        for group in declared:
            assert group in sim.base.plugins.GROUPS or not group.startswith("sim.")
            if group.startswith("sim."):
                assert [found.name for found in describe(group) if not found.summary] == []


def test_registering(install: Install) -> None:
    install("things-a", "things_a", {"good": "things_a:Good"})
    register(GROUP, "mine", 1)
    register(GROUP, "mine", 2)
    assert lookup(GROUP, "mine") == 2
    assert names(GROUP) == ["good", "mine"]
    assert describe(GROUP)[1] == ("mine", "", "(registered)")
    with pytest.raises(InputError, match="things-a has that name"):
        register(GROUP, "good", 3)
    with pytest.raises(InputError, match="no colon"):
        register(GROUP, "a:b", 3)
    unregister(GROUP, "mine")
    assert names(GROUP) == ["good"]
    with pytest.raises(UnknownNameError):
        unregister(GROUP, "mine")


def test_code_is_loaded_only_when_allowed(install: Install) -> None:
    install("things-a", "things_a", {})
    with pytest.raises(InputError, match="allow it with --allow-code"):
        lookup(GROUP, "things_a:Good")
    assert "things_a" not in sys.modules
    assert lookup(GROUP, "things_a:Good.__name__", allow_code=True) == "Good"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("not_there:Good", "cannot be imported: ModuleNotFoundError"),
        ("things_a:Godo", "did you mean 'Good'"),
        ("things_a:", "not of the form module:Class"),
        (":Good", "not of the form module:Class"),
        ("..things_a:Good", "cannot be imported"),
    ],
)
def test_code_that_is_not_there_is_the_users_mistake(install: Install, name: str, message: str) -> None:
    install("things-a", "things_a", {})
    with pytest.raises(InputError, match=message):
        lookup(GROUP, name, allow_code=True)


def test_where_code_was_sought_is_said_if_it_is_in_neither_place(tmp_path: Path) -> None:
    (tmp_path / "needs_more.py").write_text("import not_there_either\n")
    with pytest.raises(InputError, match=f"'not_there', neither in '{tmp_path}' nor installed$"):
        lookup(GROUP, "not_there:Good", allow_code=True, directory=tmp_path)
    with pytest.raises(InputError, match=r"No module named 'not_there_either'$"):
        lookup(GROUP, "needs_more:Good", allow_code=True, directory=tmp_path)


def test_code_beside_a_scenario_is_found_and_never_mistaken_for_anothers(
    install: Install, tmp_path: Path
) -> None:
    for folder, number in (("one", 1), ("two", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "beside.py").write_text(f"number = {number}")
    path = list(sys.path)
    assert lookup(GROUP, "beside:number", allow_code=True, directory=tmp_path / "one") == 1
    assert lookup(GROUP, "beside:number", allow_code=True, directory=tmp_path / "one") == 1
    with pytest.raises(InputError, match="is already imported as 'beside'; rename"):
        lookup(GROUP, "beside:number", allow_code=True, directory=tmp_path / "two")
    assert sys.path == path


def test_importing_the_registry_reads_no_metadata() -> None:
    script = (
        "import importlib.metadata as m\n"
        "def no(*a, **k): raise AssertionError('looked for plugins at import')\n"
        "m.entry_points = no\n"
        "import sim.base.plugins\n"
    )
    root = Path(sim.base.plugins.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
