"""Scientific workflows in WfFormat, the JSON of WfCommons: tasks, the files between them, measured runtimes.

::

    "workflow": {
      "specification": {
        "tasks": [{"id", "name", "parents", "children", "inputFiles", "outputFiles"}],
        "files": [{"id", "sizeInBytes"}]},
      "execution": {
        "tasks": [{"id", "runtimeInSeconds", "command", "coreCount", "machines"}]}}

A file that a task writes is one of its outputs, and its readers read that tensor; a file that nobody
writes is an input of the graph. ``parents`` and ``children`` are control edges unless a file implies them.
This is the form since 1.4; older ones, without a specification, are refused.

Format: https://github.com/wfcommons/WfFormat; Coleman et al., "WfCommons: A framework for enabling scientific
workflow research and development", FGCS 2022, arXiv 2105.14352.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from scenarios.importers.files import read_json
from sim.base.arrays import group_pairs
from sim.base.errors import GraphError, InputError, in_file
from sim.base.files import StrPath
from sim.base.units import NS_PER_S, round_half_up
from sim.graph.builder import GraphBuilder
from sim.graph.frames import CONTROL_FLOW_KINDS
from sim.graph.graph import Graph

_OTHERWISE_MEANT: Final = CONTROL_FLOW_KINDS | {"send", "recv"}
"""Kinds of op that cannot be names of programs."""


def recognises(name: str, head: bytes) -> bool:
    """Whether `head` looks like a workflow: its schema, or its sections."""
    return re.search(rb'"workflow"\s*:', head) is not None and (
        re.search(rb'"(schemaVersion|specification|tasks|jobs)"\s*:', head) is not None
    )


def load(path: StrPath) -> Graph:
    """Return the graph of a workflow.

    Parameters
    ----------
    path : path

    Returns
    -------
    Graph
        One op per task, named by its id; its kind is the program's name (``merge (program)`` if that is
        also a kind of control flow). The recorded ``cores``,
        ``machine`` and ``program`` are attributes.

    Raises
    ------
    InputError
        The file is not WfFormat (with the position in the file), or of a version before 1.4.
    GraphError
        There is a cycle, two tasks write one file, or a parent does not exist.
    """
    data = read_json(path)
    workflow = data.get("workflow") if isinstance(data, dict) else None
    if not isinstance(workflow, dict):
        raise InputError(f"{path}: not a workflow (it has no mapping workflow)")
    if "specification" not in workflow:
        raise InputError(f"{path}: a workflow without a specification; WfFormat has one since 1.4")
    with in_file(path):
        try:
            return _graph(str(data.get("name") or "workflow"), workflow)
        except KeyError as error:
            raise InputError(f"a task or file has no {error}") from None
        except (TypeError, AttributeError, ValueError) as error:
            raise InputError(f"not as WfFormat has it: {error}") from None


def _graph(name: str, workflow: Mapping[str, Any]) -> Graph:
    plan, runs = workflow["specification"], workflow.get("execution", {}).get("tasks", [])
    tasks = {task["id"]: task for task in plan["tasks"]}
    measured = {run["id"]: run for run in runs}
    if not tasks:
        raise GraphError(f"the workflow {name!r} has no task")
    if len(measured) < len(runs) or measured.keys() - tasks.keys():
        raise ValueError("execution has a task twice, or one that specification does not have")
    for id, task in tasks.items():
        for child in task.get("children", []):
            if child not in tasks:
                raise GraphError(f"task {id!r} has the child {child!r}, which is not there")
    parents = group_pairs((child, id) for id, task in tasks.items() for child in task.get("children", []))
    writer: dict[str, tuple[str, int]] = {}
    for id, task in tasks.items():
        for k, file in enumerate(task.get("outputFiles", [])):
            if file in writer:
                raise GraphError(f"the file {file!r} is written by {writer[file][0]!r} and {id!r}")
            writer[file] = (id, k)
    sizes = {file["id"]: int(file["sizeInBytes"]) for file in plan.get("files", [])}
    builder = GraphBuilder(name)
    refs = {file: f"{id}:{k}" for file, (id, k) in writer.items()}
    for file in (file for task in tasks.values() for file in task.get("inputFiles", [])):
        if file not in refs:
            refs[file] = builder.input(f"file {file}" if file in tasks else file, sizes.get(file, 0))
    for task in plan["tasks"]:
        id, run = task["id"], measured.get(task["id"], {})
        reads = dict.fromkeys(task.get("inputFiles", []))
        before = {
            writer[file][0] for file in reads if file in writer
        }  # itself, if it updates a file in place
        after = dict.fromkeys([*task.get("parents", []), *parents.get(id, [])])
        builder.op(
            id,
            kind=_kind(task, run),
            inputs=[refs[file] for file in reads if file not in writer or writer[file][0] != id],
            after=[parent for parent in after if parent not in before],
            outputs=[sizes.get(file, 0) for file in task.get("outputFiles", [])],
            duration_ns=_ns(run.get("runtimeInSeconds")),
            attributes=_attributes(task, run),
        )
    return builder.build()


def _kind(task: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """Return the name of the program, or else of the task without its number."""
    program = run.get("command", {}).get("program") or task.get("category")
    kind = str(program or re.sub(r"[_-]?(ID)?\d+$", "", task["name"]))
    return f"{kind} (program)" if kind in _OTHERWISE_MEANT else kind


def _attributes(task: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    found = {"cores": run["coreCount"]} if "coreCount" in run else {}
    found |= {"machine": run["machines"][0]} if run.get("machines") else {}
    return found | ({"full_name": task["name"]} if task.get("name") not in (None, task["id"]) else {})


def _ns(seconds: Any) -> int | None:
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        raise ValueError(f"{seconds!r} is no runtime in seconds")
    return round_half_up(NS_PER_S * Fraction(str(seconds)))
