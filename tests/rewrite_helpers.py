"""Graphs for the tests of rewrites, and what is in them."""

from __future__ import annotations

from typing import Any

from policies.rewrite.records import read
from sim import Graph, GraphBuilder


def graph(ops: dict[str, dict[str, Any]], inputs: tuple[str, ...] = ("x",)) -> Graph:
    builder = GraphBuilder("test")
    for name in inputs:
        builder.input(name, 1000)
    for name, fields in ops.items():
        builder.op(name, **{"outputs": 1000, **fields})
    return builder.build()


def shape(g: Graph) -> dict[str, tuple[str, list[str]]]:
    """Return {op: (kind, inputs)}."""
    return {r.name: (r.kind, [t for t, _ in r.inputs]) for r in read(g).ops.values()}


def ancestors(g: Graph, op: str) -> set[str]:
    """Return all ops that come before one."""
    seen: set[int] = set()
    stack = [g.index(op)]
    while stack:
        for p in g.predecessors.row(stack.pop()).tolist():
            if p not in seen:
                seen.add(p)
                stack.append(p)
    return {g.op_names[p] for p in seen}
