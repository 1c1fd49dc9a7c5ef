"""Job shops, flexible job shops and projects: what their files say, and what is wrong with others."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from cli_runner import sim
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from scenarios.importers import load_graph, write_graph
from scenarios.importers.scheduling_instances import FlexibleJobShop, JobShop, Project, is_instance
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from scenarios.variants.optimum import find_optimum
from sim.base.errors import InputError

SHOP = "# two jobs\n2 2\n0 3 1 2\n1 4 0 1\n"
FLEXIBLE = "2 2 1.5\n2  2 1 3 2 5  1 2 4\n1  1 1 6\n"
PROJECT = """\
************
projects : 1
RESOURCES
  - renewable : 2 R
************
PRECEDENCE RELATIONS:
jobnr. #modes #successors successors
1 1 2 2 3
2 1 1 4
3 1 1 4
4 1 0
************
REQUESTS/DURATIONS:
jobnr. mode duration R 1 R 2
------------
1 1 0 0 0
2 1 5 2 0
3 1 4 1 1
4 1 0 0 0
************
RESOURCEAVAILABILITIES:
  R 1  R 2
    2    1
************
"""


def written(folder: Path, text: str, name: str = "x") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_a_job_shop(tmp_path: Path) -> None:
    graph = load_graph(written(tmp_path, SHOP))
    assert [*graph.op_names] == ["j0.0", "j0.1", "j1.0", "j1.1"]
    assert graph.duration_ns.tolist() == [3000, 2000, 4000, 1000]
    assert [graph.pins[code] for code in graph.pin_code] == ["m0", "m1", "m1", "m0"]
    assert graph.after.lists() == [[], [0], [], [2]]
    result = run_scenario(load_scenario(tmp_path / "x"))
    assert result.trace.makespan_ns == 6000  # m0: j0.0, then j1.1; m1: j1.0, then j0.1
    assert find_optimum([result], limit_ns=10**10).proven


def test_a_flexible_job_shop_and_its_unit(tmp_path: Path) -> None:
    graph = load_graph(written(tmp_path, FLEXIBLE), unit="1ms")
    assert {name: ns.tolist() for name, ns in graph.duration_by_kind.items()} == {
        "m0": [3_000_000, -1, -1],
        "m1": [5_000_000, -1, -1],
    }
    assert graph.duration_ns.tolist() == [-1, 4_000_000, 6_000_000]
    assert [graph.pins[code] if code >= 0 else "" for code in graph.pin_code] == ["", "m1", "m0"]
    from_0 = written(tmp_path, "1 2\n1 2 0 3 1 5\n", "y.fjs")
    assert set(load_graph(from_0).duration_by_kind) == {"m0", "m1"}


def test_a_project(tmp_path: Path) -> None:
    graph = load_graph(written(tmp_path, PROJECT, "x.sm"))
    assert [*graph.op_names] == ["1", "2", "3", "4"]
    assert graph.attribute("resources") == {1: {"R1": 2}, 2: {"R1": 1, "R2": 1}}
    assert graph.machine["resources"] == {"R1": 2, "R2": 1}
    result = run_scenario(load_scenario(tmp_path / "x.sm"))
    result.trace.check()
    assert result.trace.makespan_ns == 9000


def test_the_machine_stays_with_a_graph_file(tmp_path: Path) -> None:
    graph = load_graph(written(tmp_path, PROJECT, "x.sm"))
    write_graph(graph, tmp_path / "g.json")
    assert load_graph(tmp_path / "g.json").machine == graph.machine
    (tmp_path / "s.yaml").write_text("workload: {graph: g.json}\npolicy: ready-queue\n")
    assert run_scenario(load_scenario(tmp_path / "s.yaml")).trace.makespan_ns == 9000


def test_files_are_told_apart() -> None:
    kinds = [
        [one.recognises("x", text.encode()) for one in (JobShop, FlexibleJobShop, Project)]
        for text in (SHOP, FLEXIBLE, PROJECT, "a: 1\n", "3\n1 2\n", "")
    ]
    assert kinds == [[True, False, False], [False, True, False], [False, False, True], *[[False] * 3] * 3]
    assert not FlexibleJobShop.recognises("robot.stg", b"88 16\n1 10 0\n")


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (
            "2 2\n0 3 1 2\n1 4 0\n",
            "x",
            "x: line 3: should be MACHINE TIME for each of 2 ops, machines from 0 to 1",
        ),
        ("2 2\n0 3 2 2\n1 4 0 1\n", "x", "line 2: should be MACHINE TIME"),
        ("2 2\n0 3 1 -2\n1 4 0 1\n", "x.jsp", "line 2: should be MACHINE TIME"),
        ("2 2\n0 3 1 2\n", "x", "2 jobs are announced, a line each, and 1 lines follow"),
        ("2 0\n0 3 1 2\n1 4 0 1\n", "x.jsp", "line 1: should be JOBS MACHINES"),
        ("# nothing\n", "x.jsp", "line 1: should be JOBS MACHINES"),
        ("1 2 1\n2 1 1 3 1\n", "x.fjs", "line 2: should be OPS, then for each op N and N times MACHINE TIME"),
        ("1 2 1\n1 2 1 3 1 4\n", "x.fjs", "line 2: should be OPS"),
        ("1 2 1\n1 1 4 3\n", "x.fjs", "line 2: should be ops on machines from 1 to 2, found '1 1 4 3'"),
        ("1 2 1\n0\n", "x.fjs", "line 2: should be OPS"),
        (
            PROJECT.replace("2 1 5 2 0", "2 1 5 2"),
            "x.sm",
            "line 17: should be JOB MODE TIME and a need of each",
        ),
        (PROJECT.replace("1 1 2 2 3", "1 1 3 2 3"), "x.sm", "line 8: should be JOB 1 N and N successors"),
        (
            PROJECT.replace("2 1 1 4", "2 2 1 4"),
            "x.sm",
            "line 9: should be JOB 1 N SUCCESSOR ...: an activity of",
        ),
        (PROJECT.replace("3 1 1 4\n4", "3 1 1 7\n4"), "x.sm", "activity 7 follows others and has no line"),
        (
            PROJECT.replace("    2    1\n", "    2\n"),
            "x.sm",
            "line 23: should be how much there is of each of 2",
        ),
        (PROJECT.replace("  R 1  R 2\n", "  R 1  N 2\n"), "x.sm", "line 22: should be renewable resources"),
        (PROJECT[: PROJECT.index("RESOURCEA")], "x.sm", "has no RESOURCEAVAILABILITIES"),
    ],
)
def test_wrong_files_are_told(tmp_path: Path, text: str, name: str, message: str) -> None:
    path = written(tmp_path, text, name)
    format_ = {"x.jsp": "jsplib", "x": "jsplib", "x.fjs": "fjsp"}.get(name, "psplib")
    with pytest.raises(InputError) as error:
        load_graph(path, format=format_)
    assert message in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("2 2\n0 3 1 2\n1 4 0\n", 3, "1 4 0"),
        ("2 2\n0 3 1 -2\n1 4 0 1\n", 2, "0 3 1 -2"),
        ("2 2\n0 3; 1 2\n1 4 0 1\n", 2, "0 3; 1 2"),
    ],
    ids=["short", "negative", "separated"],
)
def test_a_wrong_file_ends_with_2(tmp_path: Path, text: str, line: int, found: str) -> None:
    ran = sim("run", written(tmp_path, text, "x.jsp"))
    assert ran.exit_code == 2
    assert f"line {line}: should be MACHINE TIME for each of 2 ops, machines from 0 to 1" in ran.output
    assert f"found '{found}'" in ran.output
    assert not is_instance(tmp_path / "there is none")


@given(st.sampled_from([SHOP, FLEXIBLE, PROJECT]), st.data())
@examples(200)
def test_damaged_files_give_an_error_or_a_graph(
    tmp_path_factory: pytest.TempPathFactory, text: str, data: st.DataObject
) -> None:
    words = text.split(" ")
    k = data.draw(st.integers(0, len(words) - 1))
    words[k : k + 1] = data.draw(
        st.lists(st.sampled_from(["7", "0", "x", "-1", "\n", "", "99999999999"]), max_size=2)
    )
    path = written(tmp_path_factory.mktemp("damaged"), " ".join(words))
    for format_ in ("jsplib", "fjsp", "psplib"):
        with suppress(InputError):
            assert len(load_graph(path, format=format_)) > 0
