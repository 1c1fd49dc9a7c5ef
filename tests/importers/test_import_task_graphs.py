"""Task graphs made by hand: workflows of WfCommons, and of the Standard Task Graph Set."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from scenarios.importers import load_graph
from scenarios.importers.scheduling_instances import TaskGraph
from scenarios.importers.wfformat import load as load_workflow
from sim import Graph
from sim.base.errors import GraphError, InputError, UnitError
from sim.graph.frames import has_control_flow
from sim.graph.graph import Role

MODERN: dict[str, Any] = {
    "name": "fork",
    "schemaVersion": "1.5",
    "workflow": {
        "specification": {
            "tasks": [
                {
                    "name": "split",
                    "id": "split_1",
                    "parents": [],
                    "children": ["work_1", "work_2"],
                    "inputFiles": ["raw"],
                    "outputFiles": ["left", "right"],
                },
                {
                    "name": "work",
                    "id": "work_1",
                    "parents": ["split_1"],
                    "children": ["report_1"],
                    "inputFiles": ["left"],
                    "outputFiles": [],
                },
                {
                    "name": "work",
                    "id": "work_2",
                    "parents": ["split_1"],
                    "children": [],
                    "inputFiles": ["right", "raw"],
                    "outputFiles": ["out"],
                },
                {
                    "name": "report",
                    "id": "report_1",
                    "parents": ["work_1", "work_2"],
                    "children": [],
                    "inputFiles": ["out"],
                },
            ],
            "files": [
                {"id": "raw", "sizeInBytes": 1000},
                {"id": "left", "sizeInBytes": 400},
                {"id": "right", "sizeInBytes": 600},
                {"id": "out", "sizeInBytes": 50},
            ],
        },
        "execution": {
            "tasks": [
                {"id": "split_1", "runtimeInSeconds": 0.5, "command": {"program": "cut"}, "coreCount": 2},
                {"id": "work_1", "runtimeInSeconds": 1.25, "machines": ["node7"]},
                {"id": "work_2", "runtimeInSeconds": 2},
                {"id": "report_1", "runtimeInSeconds": 0.0000000015},
            ]
        },
    },
}

CLASSIC: dict[str, Any] = {
    "name": "fork",
    "schemaVersion": "1.3",
    "workflow": {
        "tasks": [
            {
                "name": "split_ID0000001",
                "runtime": 0.5,
                "cores": 2,
                "children": ["work_ID0000002"],
                "files": [
                    {"link": "input", "name": "raw", "size": 1000},
                    {"link": "output", "name": "left", "size": 400},
                ],
            },
            {
                "name": "work_ID0000002",
                "runtimeInSeconds": 1.25,
                "machine": "node7",
                "parents": ["split_ID0000001"],
                "files": [{"link": "input", "name": "left", "sizeInBytes": 400}],
            },
        ]
    },
}


def workflow(folder: Path, content: object) -> Graph:
    path = folder / "workflow.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return load_graph(path)


def edges(graph: Graph) -> set[tuple[str, str, int]]:
    """Return (producer, consumer, bytes), 0 for a control edge."""
    data = {
        (graph.op_names[int(graph.tensor_producer[t])], graph.op_names[op], int(graph.tensor_nbytes[t]))
        for op in range(len(graph))
        for t in graph.inputs.row(op).tolist()
        if graph.tensor_producer[t] >= 0
    }
    control = {
        (graph.op_names[p], graph.op_names[op], 0)
        for op in range(len(graph))
        for p in graph.after.row(op).tolist()
    }
    return data | control


def test_a_workflow(tmp_path: Path) -> None:
    graph = workflow(tmp_path, MODERN)
    assert graph.name == "fork"
    assert [*graph.op_names] == ["split_1", "work_1", "work_2", "report_1"]
    assert graph.duration_ns.tolist() == [500_000_000, 1_250_000_000, 2_000_000_000, 2]
    assert [graph.kind(op) for op in range(4)] == ["cut", "work", "work", "report"]
    assert edges(graph) == {
        ("split_1", "work_1", 400),
        ("split_1", "work_2", 600),
        ("work_1", "report_1", 0),  # no file says so
        ("work_2", "report_1", 50),
    }
    assert [*graph.external_names] == ["raw"]
    assert graph.tensor_nbytes[graph.tensor_role == Role.INPUT].tolist() == [1000]
    assert graph.bytes_read.tolist() == [1000, 400, 1600, 50]
    assert graph.attributes[0] == {"cores": 2, "full_name": "split"}
    assert graph.attributes[1] == {"machine": "node7", "full_name": "work"}


@pytest.mark.parametrize("program", ["merge", "switch", "send"])
def test_a_program_that_is_called_like_control_flow_is_a_program(tmp_path: Path, program: str) -> None:
    content = {"tasks": [{"name": f"{program}_{k}", "runtime": 1, "files": []} for k in range(2)]}
    graph = workflow(tmp_path, {"schemaVersion": "1.2", "workflow": content})
    assert {graph.kind(op) for op in range(2)} == {f"{program} (program)"}
    assert not has_control_flow(graph)


def test_a_workflow_of_the_older_form(tmp_path: Path) -> None:
    graph = workflow(tmp_path, CLASSIC)
    assert graph.duration_ns.tolist() == [500_000_000, 1_250_000_000]
    assert [graph.kind(op) for op in range(2)] == ["split", "work"]
    assert edges(graph) == {("split_ID0000001", "work_ID0000002", 400)}
    assert graph.attributes == {0: {"cores": 2}, 1: {"machine": "node7"}}


def test_a_workflow_that_has_not_run_has_no_durations(tmp_path: Path) -> None:
    planned = copy.deepcopy(MODERN)
    del planned["workflow"]["execution"]
    assert workflow(tmp_path, planned).duration_ns.tolist() == [-1] * 4


def broken(change: Any) -> dict[str, Any]:
    content = copy.deepcopy(MODERN)
    change(content["workflow"]["specification"]["tasks"], content["workflow"]["execution"]["tasks"])
    return content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"workflow": 3, "tasks": 1}, "not a workflow"),
        ({"workflow": {"tasks": [{"runtime": 1}]}}, "a task or file has no 'name'"),
        ({"workflow": {"tasks": []}}, "has no task"),
        (broken(lambda t, r: t[0].pop("id")), "a task or file has no 'id'"),
        (broken(lambda t, r: t[1].update(outputFiles=["out"])), "'out' is written by 'work_1' and 'work_2'"),
        (broken(lambda t, r: t[1].update(children=["nobody"])), "has the child 'nobody', which is not there"),
        (broken(lambda t, r: t[1].update(parents=["nobody"])), "unknown control input 'nobody'"),
        (broken(lambda t, r: t[0].update(parents=["report_1"])), "cycle"),
        (broken(lambda t, r: r.append(r[0] | {"runtimeInSeconds": 9})), "execution has a task twice"),
        (broken(lambda t, r: r[0].update(id="nobody")), "or one that specification does not have"),
        (broken(lambda t, r: r[0].update(runtimeInSeconds=-1)), "-1 is no runtime in seconds"),
        (broken(lambda t, r: r[0].update(runtimeInSeconds="1s")), "'1s' is no runtime in seconds"),
    ],
)
def test_wrong_workflows_are_told(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        workflow(tmp_path, content)


# -- the Standard Task Graph Set ------------------------------------------------------------------

DIAMOND = """\
  4
  0   0   0
  1   7   1   0
  2   4   1   1
  3   9   1   1
  4   2   2   2  3
  5   0   1   4
# Multiprocessor Scheduling
#   CP Length:  18
"""
WITH_COMMUNICATION = """\
2
0 5 0
1 3 1  0 10
2 4 2  0 20  1 0.5
3 0 1  2 0
"""


def stg(folder: Path, text: str, **options: str) -> Graph:
    path = folder / "graph.stg"
    path.write_text(text, encoding="ascii")
    return load_graph(path, **options)


def test_a_diamond(tmp_path: Path) -> None:
    graph = stg(tmp_path, DIAMOND)
    assert graph.name == "graph"
    assert [*graph.op_names] == list("012345")
    assert graph.duration_ns.tolist() == [0, 7_000, 4_000, 9_000, 2_000, 0]
    assert edges(graph) == {
        *[("0", "1", 0), ("1", "2", 0), ("1", "3", 0), ("2", "4", 0), ("3", "4", 0), ("4", "5", 0)]
    }
    assert stg(tmp_path, DIAMOND, unit="1ms").duration_ns.sum() == 22_000_000


def test_a_prototype_has_processors_and_one_dummy(tmp_path: Path) -> None:
    """Their format: https://www.kasahara.cs.waseda.ac.jp/schedule/proto_e.html."""
    graph = stg(tmp_path, "2 3\n1 14 0\n2 20 1 1\n3 0 1 2\n")
    assert graph.duration_ns.tolist() == [14_000, 20_000, 0]
    assert edges(graph) == {("1", "2", 0), ("2", "3", 0)}


def test_communication_becomes_bytes(tmp_path: Path) -> None:
    """10 us at 1 GB/s are 10 kB; each successor has a time of its own."""
    graph = stg(tmp_path, WITH_COMMUNICATION, communication="yes")
    assert edges(graph) == {("0", "1", 10_000), ("0", "2", 20_000), ("1", "2", 500), ("2", "3", 0)}
    faster = stg(tmp_path, WITH_COMMUNICATION, communication="yes", bandwidth="2GB/s")
    assert ("0", "1", 20_000) in edges(faster)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("1 2 3\n", "its first line should be the number of tasks"),
        ("1\n0 x 0\n", "line 2: 'x' is no number from 0"),
        ("1\n0 -1 0\n", "line 2: '-1' is no number from 0"),
        ("1\n0 1 2 0\n", "line 2: should be TASK TIME N PREDECESSOR ..., found '0 1 2 0'"),
        ("5\n0 1 0\n", r"5 tasks are announced \(and two dummies\), 1 are there"),
        ("2\n0 1 0\n1 1 1 7\n", "task 1 comes after task 7, which is not there"),
        ("2\n0 1 1 1\n1 1 1 0\n", "cycle"),
        ("2\n0 1 0\n0 1 0\n", "the name '0' is used twice"),
    ],
)
def test_wrong_task_graphs_are_told(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        stg(tmp_path, text)


def test_options_that_do_not_do(tmp_path: Path) -> None:
    with pytest.raises(UnitError, match="unit: "):
        stg(tmp_path, DIAMOND, unit="1")
    with pytest.raises(InputError, match=r"communication: should be .no. or .yes., not .maybe."):
        stg(tmp_path, DIAMOND, communication="maybe")
    with pytest.raises(InputError, match="batch=2 cannot be set"):
        load_graph(tmp_path / "graph.stg", batch=2)
    (tmp_path / "binary.stg").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="is not UTF-8 text"):
        TaskGraph.load(tmp_path / "binary.stg")
    (tmp_path / "no.json").write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        load_workflow(tmp_path / "no.json")


def test_errors_of_the_graph_are_of_its_family(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"graph\.stg: "):
        stg(tmp_path, "2\n0 1 1 1\n1 1 1 0\n")
