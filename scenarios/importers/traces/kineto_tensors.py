"""Tensors of recorded tasks: a profiler's trace with the execution graph of the same program."""

from __future__ import annotations

from collections.abc import Sequence

from scenarios.importers.execution_graph.kernels import Kernel, Told, told
from scenarios.importers.execution_graph.linking import operators_of_launches
from scenarios.importers.execution_graph.operators import read_operators
from scenarios.importers.execution_graph.tensor_flow import Flow
from scenarios.importers.files import StrPath
from scenarios.importers.traces.kernel_names import kind_of
from scenarios.importers.traces.kineto_host import Record
from scenarios.importers.traces.trace_events.kineto_rows import Trace

__all__ = ["add_told", "told_of"]


def told_of(path: StrPath, graph: StrPath, trace: Trace) -> list[Told]:
    """Return what an execution graph tells of each task of a trace.

    Raises
    ------
    InputError
        It is no execution graph, or of another program.
    """
    operators = read_operators(graph)
    made = operators_of_launches(path, graph, operators, [task.correlation for task in trace.tasks])
    began = {call.correlation: call.start_ns for call in trace.calls}
    launched = sorted(
        range(len(trace.tasks)),
        key=lambda i: (began.get(trace.tasks[i].correlation, 0), trace.tasks[i].correlation),
    )
    kernels = []
    for i in launched:
        task = trace.tasks[i]
        operator, step = made.get(task.correlation, (None, 0))
        kernels.append(
            Kernel(operator, step, (task.device, task.stream), task.duration_ns, task.communicates)
        )
    found = zip(launched, told(kernels, {operator.id: operator for operator in operators}), strict=True)
    return [_numbered(one, launched) for _, one in sorted(found, key=lambda pair: pair[0])]


def _numbered(one: Told, tasks: Sequence[int]) -> Told:
    """Return what is told, with the numbers of tasks instead of launches."""
    flow = one.flow
    return one._replace(
        flow=Flow([(tasks[n], k) for n, k in flow.inputs], [tasks[n] for n in flow.after], flow.outputs)
    )


def add_told(op: Record, one: Told, names: Sequence[str]) -> Record:
    """Return an op with what is told of it; a copy keeps its own bytes."""
    facts = one.facts if kind_of(op["attributes"]["kernel"]) not in ("copy", "fill") else {}
    return {
        **op,
        **facts,
        "inputs": [f"{names[n]}:{k}" for n, k in one.flow.inputs],
        "outputs": one.flow.outputs,
        "after": list(dict.fromkeys([*op["after"], *(names[n] for n in one.flow.after)])),
        "attributes": op["attributes"] | one.attributes,
    }
