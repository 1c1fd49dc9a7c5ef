"""Apply an execution graph to the kernels of a trace: what they read, write, compute and move.

An operator with a formula shares its flop and bytes among the kernels launched inside it, in proportion to
their durations. Without a formula, the next enclosing operator that has one counts (``aten::conv2d`` around
``aten::cudnn_convolution``); if none has, the kernels get the bytes of its tensors and no flop.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

from scenarios.importers import execution_graph
from scenarios.importers.execution_graph import CostedOperator, Operator
from scenarios.importers.files import items
from scenarios.importers.kineto.event_columns import operator_thread, whole_ns
from scenarios.importers.kineto.gradients import Operators
from scenarios.importers.kineto.kernel_names import kind_of
from scenarios.importers.kineto.kineto_rows import Calls, GpuTask, RecordedTrace, Thread
from scenarios.importers.tensor_flow import TaskFlow, Touch, tensor_flow
from sim.base.arrays import LATEST_NS, Codes, group_pairs
from sim.base.errors import InputError
from sim.base.files import StrPath
from sim.graph.attributes import SIZES

_MAX_DEPTH: Final = 64
"""Maximum number of enclosing operators considered."""


class KernelNotes(NamedTuple):
    """Known properties of a task.

    Attributes
    ----------
    flow : TaskFlow
    facts : dict
        Flop, bytes and data type.
    attributes : dict
        Shapes, and the inputs of the formula.
    """

    flow: TaskFlow
    facts: dict[str, Any]
    attributes: dict[str, Any]

    def added_to(self, op: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """Return the record of a task's op with these notes; a copy keeps its own bytes."""
        facts = self.facts if kind_of(op["attributes"]["kernel"]) not in ("copy", "fill") else {}
        return {
            **op,
            **facts,
            "inputs": [f"{names[n]}:{k}" for n, k in self.flow.inputs],
            "outputs": self.flow.outputs,
            "after": list(dict.fromkeys([*op["after"], *(names[n] for n in self.flow.after)])),
            "attributes": op["attributes"] | self.attributes,
        }


def notes_of(path: StrPath, graph: StrPath, trace: RecordedTrace) -> list[KernelNotes]:
    """Return what an execution graph adds to each task of a trace.

    Raises
    ------
    InputError
        The file is not an execution graph, or is of another program.
    """
    operators = execution_graph.read_operators(graph)
    by_id = {operator.id: operator for operator in operators}
    origins = _operators_of_launches(path, graph, operators, trace)
    starts = {call.correlation: call.start_ns for call in trace.calls}
    numbers = sorted(
        range(len(trace.tasks)),
        key=lambda i: (starts.get(trace.tasks[i].correlation, 0), trace.tasks[i].correlation),
    )
    tasks = [trace.tasks[i] for i in numbers]  # in order of launch
    launched = [origins.get(task.correlation, (None, 0)) for task in tasks]
    touched = [
        next((op for op in _walk_outward(operator, by_id) if op.reads or op.writes), None)
        for operator, _ in launched
    ]
    touches = []
    for task, operator, (_, step) in zip(tasks, touched, launched, strict=True):
        if operator is None:
            touches.append(Touch(None))
            continue
        in_place = task.communicates and not operator.writes  # as a collective without outputs works
        key = operator.id, step, task.device, task.stream
        touches.append(Touch(key, operator.reads, operator.reads if in_place else operator.writes))
    notes = [KernelNotes(flow.renumber(numbers), {}, {}) for flow in tensor_flow(touches)]
    _share_facts(notes, tasks, launched, touched, by_id)
    return [note for _, note in sorted(zip(numbers, notes, strict=True), key=itemgetter(0))]


def _walk_outward(operator: Operator | None, by_id: Mapping[int, Operator]) -> Iterator[Operator]:
    """Yield an operator and its enclosing operators, from the inside."""
    for _ in range(_MAX_DEPTH):
        if operator is None:
            break
        yield operator
        operator = by_id.get(operator.parent) if operator.parent != operator.id else None


def _share_facts(
    notes: Sequence[KernelNotes],
    tasks: Sequence[GpuTask],
    launched: Sequence[tuple[Operator | None, int]],
    touched: Sequence[Operator | None],
    by_id: Mapping[int, Operator],
) -> None:
    """Note facts and attributes of each task, of which an operator's tasks have their shares."""
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)

    @cache
    def cost_of(number: int) -> CostedOperator | None:
        return execution_graph.known_cost(by_id[number])

    for i, (task, nearest, (operator, step)) in enumerate(zip(tasks, touched, launched, strict=True)):
        if task.communicates and nearest is not None:
            read = sum(tensor.nbytes for tensor in nearest.reads)
            written = sum(tensor.nbytes for tensor in nearest.writes) or read
            notes[i].facts.update(bytes_read=read, bytes_written=written)
        elif nearest is not None:
            costed = (op for op in _walk_outward(operator, by_id) if cost_of(op.id) is not None)
            groups[next(costed, nearest).id, step].append(i)
    for (number, _), members in groups.items():
        operator, formula = by_id[number], cost_of(number)
        cost = execution_graph.bytes_of(operator) if formula is None else formula.cost
        durations_ns = [tasks[i].duration_ns for i in members]
        shares = zip(*(_split(total, durations_ns) for total in cost), strict=True)
        main = max(members, key=lambda i: tasks[i].duration_ns)  # it has the sizes of the operator
        for i, (flops, read, written) in zip(members, shares, strict=True):
            sizes = {} if formula is None else formula.attributes
            notes[i].facts.update(flops=flops, bytes_read=read, bytes_written=written)
            if formula is not None and formula.dtype is not None:
                notes[i].facts["dtype"] = formula.dtype
            notes[i].attributes.update(
                operator=operator.name,
                input_shapes=[list(tensor.shape) for tensor in execution_graph.tensors(operator.inputs)],
                output_shapes=[list(tensor.shape) for tensor in execution_graph.tensors(operator.outputs)],
                **{key: value for key, value in sizes.items() if i == main or key not in SIZES},
            )


def _split(total: int, weights: Sequence[int]) -> list[int]:
    """Split a whole into parts in proportion to the weights that add up to it.

    Examples
    --------
    >>> _split(10, [1, 1, 1]), _split(5, [0, 0])
    ([3, 3, 4], [2, 3])
    """
    if not any(weights):
        weights = [1] * len(weights)
    ends, so_far = [], 0
    for weight in weights:
        so_far += weight
        ends.append(total * so_far // sum(weights))
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


# ----------------------------------------------------------------------------------------------------------
# Which operator call launched a kernel: a trace of the profiler together with an execution graph.
#
#     trace     aten::linear  [ aten::addmm [ cudaLaunchKernel, correlation 7 ] ]        kernel, correlation 7
#                                  │ Record function id 12 (older: External id)
#     graph     aten::linear ► aten::addmm, rf_id 12: tensors, shapes, schema
#
# The innermost operator around a launch in the trace is looked up by its number, as in Chakra's trace linker
# and Holistic Trace Analysis, if names agree. Numbers of another recording are useless; then operators are
# matched by name: the n-th of a name on a thread is the n-th of that name on the most similar thread of
# the graph. A trace of several steps cycles through a graph of one.
#
# Sources: chakra, src/trace_link/trace_linker.py; hta/common/execution_trace.py.

_OPERATORS: Final = frozenset({"cpu_op", "operator", "user_annotation"})
_MIN_AGREEMENT: Final = 0.9
"""Minimum share of operators with a number in the graph whose names must agree."""

Origin = tuple[Operator, int]
"""Origin of a launch: an operator of the graph, and the number of the step in the trace."""


class _Slice(NamedTuple):
    """An operator in the trace."""

    thread: int
    start_ns: int
    end_ns: int
    name: str
    number: int | None


def _operators_of_launches(
    trace: StrPath, graph: StrPath, operators: Sequence[Operator], recorded: RecordedTrace
) -> dict[int, Origin]:
    """Return the operator of each launch, by correlation; unknown ones are omitted.

    Warns
    -----
    UserWarning
        Operators were matched by name, or some launches are not in the graph.
    """
    launched, threads = {*recorded.correlation.tolist()}, Codes[Thread]()
    slices = _read_slices(trace, threads)
    match = _match_by_number(slices, operators)
    if match is None:
        match = _match_by_name(slices, operators)
        message = f"{graph}: its numbers are those of another recording than {trace}"
        warnings.warn(f"{message}; operators are told by thread, name and order", stacklevel=5)
    ops = Operators()
    thread, start_ns, end_ns = np.array([slices[i][:3] for i in match], np.int64).reshape(-1, 3).T
    ops.add(thread, start_ns, end_ns, (slices[i].name for i in match), np.array([*match], np.int64))
    launches = [call for call in recorded.calls if call.correlation in launched]
    code = threads.of(call.thread for call in launches)
    numbers, begins, ends = np.array([call[3:] for call in launches], np.int64).reshape(-1, 3).T
    outer = ops.around(Calls([""], np.zeros_like(code), code, numbers, begins, ends), np.arange(len(code)))
    origins = {correlation: match[i] for correlation, (_, i) in outer.items()}
    coverage = f"the operators of {len(origins)} of {len(launched)} GPU tasks"
    if 2 * len(origins) < len(launched):
        raise InputError(f"{graph}: is of another program than {trace}, or of fewer steps: it has {coverage}")
    if len(origins) < len(launched):
        warnings.warn(f"{graph}: has {coverage}; others get no tensors", stacklevel=5)
    return origins


def _read_slices(path: StrPath, threads: Codes[Thread]) -> list[_Slice]:
    """Return the operators of each thread in order."""
    slices: list[_Slice] = []
    for index, event in enumerate(items(path, "a trace", "traceEvents", {})):
        kind = str(event.get("cat", "")).lower() if isinstance(event, dict) else ""
        if kind not in _OPERATORS or event.get("ph") != "X":
            continue
        try:
            args = event.get("args", {})
            number = args.get("Record function id", args.get("External id"))
            start, length = (whole_ns(event[key], key) for key in ("ts", "dur"))
            thread = threads[operator_thread(event.get("pid"), event.get("tid"))]
            begin_ns, end_ns = min(start, LATEST_NS), min(start + length, LATEST_NS)
            slices.append(_Slice(thread, begin_ns, end_ns, str(event["name"]), number))
        except ValueError:
            continue  # it has no end, and is left out where the trace is read, too
        except (AttributeError, KeyError, TypeError) as error:
            raise InputError(f"{path}: traceEvents[{index}]: {error}") from None
    # Stable: of two that begin at the same time the outer was written first.
    return sorted(slices, key=lambda s: (s.thread, s.start_ns, -s.end_ns))


def _match_by_number(slices: Sequence[_Slice], operators: Sequence[Operator]) -> dict[int, Origin] | None:
    """Return operators by number; None if the numbers are of another recording."""
    by_rf_id = {operator.rf_id: operator for operator in operators if operator.rf_id}
    numbered = {i: by_rf_id[s.number] for i, s in enumerate(slices) if s.number in by_rf_id}
    agreeing = {i: (operator, 0) for i, operator in numbered.items() if operator.name == slices[i].name}
    return agreeing if numbered and len(agreeing) >= _MIN_AGREEMENT * len(numbered) else None


def _match_by_name(slices: Sequence[_Slice], operators: Sequence[Operator]) -> dict[int, Origin]:
    """Return operators by thread, name and order."""
    of_thread = group_pairs((operator.thread, operator) for operator in operators)
    threads = [group_pairs((operator.name, operator) for operator in ops) for ops in of_thread.values()]
    matched: dict[int, Origin] = {}
    for _, ops in groupby(enumerate(slices), key=lambda pair: pair[1].thread):
        named = group_pairs((s.name, i) for i, s in ops)
        best = max(threads, key=lambda names: _count_alike(named, names), default={})
        for name, places in named.items():
            peers = best.get(name, ())
            if peers and len(places) % len(peers) == 0:
                matched |= {i: (peers[n % len(peers)], n // len(peers)) for n, i in enumerate(places)}
    return matched


def _count_alike(places: Mapping[str, Sequence[int]], named: Mapping[str, Sequence[Operator]]) -> int:
    """Return how many operators of a graph's thread have names whose count divides that in the trace."""
    return sum(
        len(ops) for name, ops in named.items() if name in places and len(places[name]) % len(ops) == 0
    )
