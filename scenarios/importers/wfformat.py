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
Both forms are read: since 1.4 as above, and up to 1.3, in which ``runtime`` and ``files`` are part of a task
(``link``: input or output).

Format: https://github.com/wfcommons/WfFormat; Coleman et al., "WfCommons: A framework for enabling scientific
workflow research and development", FGCS 2022, arXiv 2105.14352.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from scenarios.importers.files import read_json
from sim.base.errors import GraphError, InputError, in_file
from sim.base.files import StrPath
from sim.base.units import NS_PER_S, round_half_up
from sim.graph.builder import GraphBuilder
from sim.graph.frames import CONTROL_FLOW_KINDS
from sim.graph.graph import Graph

_RESERVED_KINDS: Final = CONTROL_FLOW_KINDS | {"send", "recv"}
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
        The file is not WfFormat (with the position in the file).
    GraphError
        There is a cycle, two tasks write one file, or a parent does not exist.
    """
    data = read_json(path)
    workflow = data.get("workflow") if isinstance(data, dict) else None
    if not isinstance(workflow, dict):
        raise InputError(f"{path}: not a workflow (it has no mapping workflow)")
    with in_file(path):
        try:
            tasks, sizes = _read(workflow) if "specification" in workflow else _read_classic(workflow)
            return _build(str(data.get("name") or "workflow"), tasks, sizes)
        except KeyError as error:
            raise InputError(f"a task or file has no {error}") from None
        except (TypeError, AttributeError, ValueError) as error:
            raise InputError(f"not as WfFormat has it: {error}") from None


_Tasks = list[dict[str, Any]]
"""A record for each task: its specification and its measurements, under the names of keys since 1.4."""


def _read(workflow: Mapping[str, Any]) -> tuple[_Tasks, dict[str, int]]:
    """Return tasks and sizes of files in the form since 1.4, in which measurements are apart."""
    plan, runs = workflow["specification"], workflow.get("execution", {}).get("tasks", [])
    measured = {run["id"]: run for run in runs}
    if len(measured) < len(runs) or measured.keys() - {task["id"] for task in plan["tasks"]}:
        raise ValueError("execution has a task twice, or one that specification does not have")
    tasks = [{**measured.get(task["id"], {}), **task} for task in plan["tasks"]]
    return tasks, {file["id"]: int(file["sizeInBytes"]) for file in plan.get("files", [])}


def _read_classic(workflow: Mapping[str, Any]) -> tuple[_Tasks, dict[str, int]]:
    """Return the same from the form up to 1.3, where a task has everything, and others refer to its name."""
    jobs = workflow.get("tasks", workflow.get("jobs"))
    if jobs is None:
        raise KeyError("tasks")
    ids = [str(task.get("id") or task["name"]) for task in jobs]
    id_of = {task["name"]: id_ for task, id_ in zip(jobs, ids, strict=True)}
    tasks, sizes = _Tasks(), dict[str, int]()
    for task, id_ in zip(jobs, ids, strict=True):
        files = task.get("files", [])
        sizes |= {file["name"]: int(file.get("sizeInBytes", file.get("size", 0))) for file in files}
        record = {"runtimeInSeconds": task.get("runtime"), "coreCount": task.get("cores"), **task, "id": id_}
        for key in ("parents", "children"):
            record[key] = [id_of.get(name, name) for name in task.get(key, [])]
        record["outputFiles"] = [file["name"] for file in files if file["link"] == "output"]
        record["inputFiles"] = [file["name"] for file in files if file["link"] != "output"]
        tasks.append(record)
    return tasks, sizes


def _kind(task: Mapping[str, Any]) -> str:
    """Return the name of the program, or else of the task without its number."""
    program = task.get("command", {}).get("program") or task.get("category")
    kind = str(program or re.sub(r"[_-]?(ID)?\d+$", "", task["name"]))
    return f"{kind} (program)" if kind in _RESERVED_KINDS else kind


def _ns(seconds: Any) -> int | None:
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        raise ValueError(f"{seconds!r} is no runtime in seconds")
    return round_half_up(NS_PER_S * Fraction(str(seconds)))


def _order(tasks: _Tasks) -> dict[str, list[str]]:
    """Return task -> the tasks before it, from the ``parents`` and ``children`` of all tasks."""
    before: dict[str, list[str]] = {task["id"]: [] for task in tasks}
    for task in tasks:
        before[task["id"]] += task.get("parents", [])
        for child in task.get("children", []):
            if child not in before:
                raise GraphError(f"task {task['id']!r} has the child {child!r}, which is not there")
            before[child].append(task["id"])
    return before


def _build(name: str, tasks: _Tasks, sizes: Mapping[str, int]) -> Graph:
    if not tasks:
        raise GraphError(f"the workflow {name!r} has no task")
    before = _order(tasks)
    writer: dict[str, tuple[str, int]] = {}
    for task in tasks:
        for k, file in enumerate(task.get("outputFiles", [])):
            if file in writer:
                raise GraphError(f"the file {file!r} is written by {writer[file][0]!r} and {task['id']!r}")
            writer[file] = (task["id"], k)
    builder = GraphBuilder(name)

    def refer(file: str) -> str:
        """Return how an op refers to a file."""
        if file in writer:
            return "{}:{}".format(*writer[file])
        return f"file {file}" if file in before else file

    reads = [dict.fromkeys(task.get("inputFiles", [])) for task in tasks]
    for file in dict.fromkeys(file for files in reads for file in files if file not in writer):
        builder.input(refer(file), sizes.get(file, 0))
    for task, files in zip(tasks, reads, strict=True):
        attributes = {
            "cores": task.get("coreCount"),
            "machine": (task.get("machines") or [task.get("machine")])[0],
            "full_name": task.get("name") if task.get("name") != task["id"] else None,
        }
        writers = {writer[file][0] for file in files if file in writer}
        builder.op(
            task["id"],
            kind=_kind(task),
            # A file that it also writes is updated in place.
            inputs=[refer(file) for file in files if file not in writer or writer[file][0] != task["id"]],
            after=[other for other in dict.fromkeys(before[task["id"]]) if other not in writers],
            outputs=[sizes.get(file, 0) for file in task.get("outputFiles", [])],
            duration_ns=_ns(task.get("runtimeInSeconds")),
            attributes={key: value for key, value in attributes.items() if value is not None},
        )
    return builder.build()
