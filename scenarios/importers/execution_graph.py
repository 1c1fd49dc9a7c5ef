"""Execution graphs of PyTorch by themselves: the operators of a program, with their costs and tensors.

::

    aten::linear ─ aten::addmm          ──►   linear.12   gemm, 2 m n k flop, reads x, W, b of whoever wrote
    them
                 └ aten::t (a view)
    Optimizer.step ─ aten::_foreach_add_ ──►  _foreach_add_.70   no formula: bytes only, if that is said

Of nested calls the outermost counts that has a cost formula; of one that has none those inside count, and if
there are none the call itself. Views move nothing and are left out. An op waits for who wrote the storages
that it reads, and runs on ``gpu`` if any of its tensors is there. No time was recorded: the device's cost
model says how long an op takes. With a profiler's trace of the program, ``workload: {kineto: trace.json,
execution_graph: et.json}`` has the kernels that ran, and their times.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from scenarios.importers.execution_operators import (
    CostedOperator,
    Operator,
    bytes_of,
    is_view,
    known_cost,
    plain_name,
    read_operators,
    tensors,
)
from scenarios.importers.execution_operators import recognises as recognises
from scenarios.importers.files import choice, fixed_batch, in_file, stem
from scenarios.importers.tensor_flow import Storage, Tensor, Touch, tensor_flow
from scenarios.ops.op_costs import UNKNOWN_BYTES, without_formula
from sim.base.errors import InputError
from sim.base.files import StrPath
from sim.graph.builder import GraphBuilder
from sim.graph.graph import Graph


def load(path: StrPath, *, batch: int | None = None, unknown: Literal["error", "bytes"] = "error") -> Graph:
    """Return the graph of an execution graph's operators.

    Parameters
    ----------
    path : path
    batch : int, optional
        Not possible: shapes are those of one run.
    unknown : {"error", "bytes"}
        What to do about operators without a cost formula: refuse them, naming all, or count their bytes and
        no flop, with a warning that names them.

    Raises
    ------
    InputError
        No execution graph, one that names operators without a formula, or `batch` given.
    """
    fixed_batch(path, batch, "its shapes are those of one run")
    choice("unknown", unknown, ("error", "bytes"))
    operators = read_operators(path)
    chosen = list(_chosen(operators))
    if not chosen:
        raise InputError(f"{path}: no operator in it reads or writes a tensor")
    missing = Counter(operator.name for operator, known in chosen if known is None)
    way_out = (
        f"{UNKNOWN_BYTES}, or give times: kineto: TRACE with execution_graph: {stem(path, '.json')}.json"
    )
    without_formula(missing, unknown, way_out, f"{path}: ")
    with in_file(path):
        return _build(stem(path, ".json"), chosen)


def _chosen(operators: Sequence[Operator]) -> Iterator[tuple[Operator, CostedOperator | None]]:
    """Yield the calls that count, in order, with what they cost."""
    inside: Mapping[int, list[Operator]] = defaultdict(list)
    ids = {operator.id for operator in operators}
    for operator in operators:
        if operator.parent != operator.id:
            inside[operator.parent].append(operator)
    waiting = [one for one in reversed(operators) if one.parent == one.id or one.parent not in ids]
    while waiting:
        operator = waiting.pop()
        known = known_cost(operator)
        if known is not None:
            yield operator, known
        elif not is_view(operator):
            children = inside.get(operator.id, [])
            waiting.extend(reversed(children))
            if not children and (operator.reads or operator.writes) and operator.schema:
                yield operator, None


def _build(name: str, chosen: Sequence[tuple[Operator, CostedOperator | None]]) -> Graph:
    builder = GraphBuilder(name)
    names = [f"{plain_name(operator)}.{operator.id}" for operator, _ in chosen]
    flows = tensor_flow([Touch(one.id, one.reads, one.writes) for one, _ in chosen], host=True)
    given: dict[Storage, str] = {}
    written: set[Storage] = set()
    before: list[list[str]] = []
    for operator, _ in chosen:
        own = []
        for one in operator.reads:
            if one.storage not in written and one.nbytes:
                own.append(_external(builder, given, one))
        written |= {one.storage for one in operator.writes}
        before.append(list(dict.fromkeys(own)))
    for (operator, known), op, flow, externals in zip(chosen, names, flows, before, strict=True):
        cost = bytes_of(operator) if known is None else known.cost
        on_host = all(one.on_host for one in [*operator.reads, *operator.writes])
        builder.op(
            op,
            kind="op" if known is None else known.kind,
            inputs=[*(f"{names[n]}:{k}" for n, k in flow.inputs), *externals],
            after=[names[n] for n in flow.after],
            outputs=flow.outputs,
            flops=cost.flops,
            bytes_read=cost.bytes_read,
            bytes_written=cost.bytes_written,
            device="cpu" if on_host else "gpu",
            dtype=None if known is None else known.dtype,
            attributes={
                "aten": operator.name,
                "input_shapes": [list(one.shape) for one in tensors(operator.inputs)],
                "output_shapes": [list(one.shape) for one in tensors(operator.outputs)],
                **({} if known is None else known.attributes),
            },
        )
    return builder.build()


def _external(builder: GraphBuilder, given: dict[Storage, str], one: Tensor) -> str:
    """Return the name of what was there before the program began."""
    if one.storage not in given:
        device, number = one.storage
        given[one.storage] = builder.parameter(
            f"storage{number}@{device}", one.nbytes, device="cpu" if one.on_host else "gpu"
        )
    return given[one.storage]
