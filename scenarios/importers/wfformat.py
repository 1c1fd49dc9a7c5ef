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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from scenarios.importers.files import read_json
from sim.base.errors import GraphError, InputError, in_file
from sim.base.files import StrPath
from sim.base.units import NS_PER_S, round_half_up
from sim.graph.builder import GraphBuilder
from sim.graph.frames import CONTROL_FLOW_KINDS
from sim.graph.graph import Graph

_OTHERWISE_MEANT: Final = CONTROL_FLOW_KINDS | {"send", "recv"}
"""Kinds of op that cannot be names of programs."""


@dataclass
class _Task:
    """A task, from either form of the format."""

    id: str
    kind: str
    runtime_ns: int | None = None
    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)


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
            tasks, sizes = _modern(workflow) if "specification" in workflow else _classic(workflow)
            return _build(str(data.get("name") or "workflow"), tasks, sizes)
        except KeyError as error:
            raise InputError(f"a task or file has no {error}") from None
        except (TypeError, AttributeError, ValueError) as error:
            raise InputError(f"not as WfFormat has it: {error}") from None


def _modern(workflow: Mapping[str, Any]) -> tuple[list[_Task], dict[str, int]]:
    """Read the form since 1.4, which separates the specification from the measurements."""
    plan = workflow["specification"]
    runs = workflow.get("execution", {}).get("tasks", [])
    measured = {task["id"]: task for task in runs}
    if len(measured) < len(runs) or measured.keys() - {task["id"] for task in plan["tasks"]}:
        raise ValueError("execution has a task twice, or one that specification does not have")
    tasks = []
    for task in plan["tasks"]:
        run = measured.get(task["id"], {})
        made = _Task(task["id"], _kind(task, run), _ns(run.get("runtimeInSeconds")))
        made.reads, made.writes = list(task.get("inputFiles", [])), list(task.get("outputFiles", []))
        tasks.append(_with_the_rest(made, task, run, "coreCount"))
    return _parents(tasks, plan["tasks"]), {f["id"]: int(f["sizeInBytes"]) for f in plan.get("files", [])}


def _classic(workflow: Mapping[str, Any]) -> tuple[list[_Task], dict[str, int]]:
    """Read the form up to 1.3, which keeps everything at the task and identifies it by name."""
    given = workflow.get("tasks", workflow.get("jobs"))
    if given is None:
        raise KeyError("tasks")
    tasks, sizes = [], {}
    for task in given:
        made = _Task(_id(task), _kind(task, task), _ns(task.get("runtimeInSeconds", task.get("runtime"))))
        for file in task.get("files", []):
            sizes[file["name"]] = int(file.get("sizeInBytes", file.get("size", 0)))
            (made.writes if file["link"] == "output" else made.reads).append(file["name"])
        tasks.append(_with_the_rest(made, task, task, "cores"))
    by_name = {task["name"]: _id(task) for task in given}
    return _parents(tasks, given, by_name), sizes


def _id(task: Mapping[str, Any]) -> str:
    return str(task.get("id") or task["name"])


def _kind(task: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """Return the name of the program, or else of the task without its number."""
    program = run.get("command", {}).get("program") or task.get("category")
    return str(program or re.sub(r"[_-]?(ID)?\d+$", "", task["name"]))


def _ns(seconds: Any) -> int | None:
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        raise ValueError(f"{seconds!r} is no runtime in seconds")
    return round_half_up(NS_PER_S * Fraction(str(seconds)))


def _with_the_rest(made: _Task, task: Mapping[str, Any], run: Mapping[str, Any], cores: str) -> _Task:
    if cores in run:
        made.attributes["cores"] = run[cores]
    machines = run.get("machines") or ([run["machine"]] if "machine" in run else [])
    if machines:
        made.attributes["machine"] = machines[0]
    if task.get("name") not in (None, made.id):
        made.attributes["full_name"] = task["name"]
    return made


def _parents(tasks: list[_Task], given: Any, by_name: Mapping[str, str] | None = None) -> list[_Task]:
    """Add the order that is given without files, at either end."""
    names = by_name or {}
    known = {task.id: task for task in tasks}
    for made, task in zip(tasks, given, strict=True):
        made.before += [names.get(parent, parent) for parent in task.get("parents", [])]
        for child in task.get("children", []):
            child = names.get(child, child)
            if child not in known:
                raise GraphError(f"task {made.id!r} has the child {child!r}, which is not there")
            known[child].before.append(made.id)
    return tasks


def _build(name: str, tasks: list[_Task], sizes: Mapping[str, int]) -> Graph:
    if not tasks:
        raise GraphError(f"the workflow {name!r} has no task")
    writer: dict[str, tuple[str, int]] = {}
    for task in tasks:
        for k, file in enumerate(task.writes):
            if file in writer:
                raise GraphError(f"the file {file!r} is written by {writer[file][0]!r} and {task.id!r}")
            writer[file] = (task.id, k)
    builder = GraphBuilder(name)
    ids = {task.id for task in tasks}
    for file in dict.fromkeys(file for task in tasks for file in task.reads if file not in writer):
        builder.input(f"file {file}" if file in ids else file, sizes.get(file, 0))
    for task in tasks:
        before = {writer[file][0] for file in task.reads if file in writer}
        builder.op(
            task.id,
            kind=f"{task.kind} (program)" if task.kind in _OTHERWISE_MEANT else task.kind,
            inputs=list(_inputs(task, writer, ids)),
            after=[parent for parent in dict.fromkeys(task.before) if parent not in before],
            outputs=[sizes.get(file, 0) for file in task.writes],
            duration_ns=task.runtime_ns,
            attributes=task.attributes,
        )
    return builder.build()


def _inputs(task: _Task, writer: Mapping[str, tuple[str, int]], ids: set[str]) -> Iterator[str]:
    """Yield how the op refers to the files it reads; a file that it also writes is updated in place."""
    for file in dict.fromkeys(task.reads):
        if file not in writer:
            yield f"file {file}" if file in ids else file
        elif writer[file][0] != task.id:
            yield f"{writer[file][0]}:{writer[file][1]}"
