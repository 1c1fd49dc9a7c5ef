"""Common subexpressions: one op where several compute the same from the same.

Two ops are the same when kind, inputs, control inputs, attributes, sizes, data type and device are; the
first in program order stays. An op with effects of its own is never merged. As
tensorflow/core/graph/optimizer_cse.cc; the operands of a commutative op may stand in any order.
"""

from __future__ import annotations

import json
from typing import Final

from policies.compile.records import Record, read, write
from sim import Graph

__all__ = ["CommonSubexpressions"]

COMMUTATIVE: Final = frozenset({"add", "mul", "maximum", "minimum"})


class CommonSubexpressions:
    """Merge equal ops."""

    def apply(self, graph: Graph) -> Graph:
        """Return the graph with one of each."""
        records = read(graph)
        first: dict[str, str] = {}
        moved: dict[str, str] = {}
        for op in graph.topological_order.tolist():
            record = records.ops[graph.op_names[op]]
            record.inputs = [(moved.get(tensor, tensor), d) for tensor, d in record.inputs]
            record.after = list(dict.fromkeys((moved.get(name, name), d) for name, d in record.after))
            if record.stateful:
                continue
            same = first.setdefault(_key(record), record.name)
            if same != record.name:
                for k in range(len(record.outputs)):
                    moved[record.tensor(k)] = records.ops[same].tensor(k)
        gone = [name for name in moved if name in records.ops]
        records.redirect(moved)
        for name in gone:
            del records.ops[name]
        return write(records)


def _key(record: Record) -> str:
    """Return all that decides whether two ops are the same, as text."""
    inputs = sorted(record.inputs) if record.kind in COMMUTATIVE else record.inputs
    facts = {**vars(record), "name": "", "inputs": inputs, "after": sorted(record.after)}
    return json.dumps(facts, sort_keys=True, default=repr)
