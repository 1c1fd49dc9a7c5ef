"""One graph, any batch size: the numbers of a graph are straight lines in the batch.

Activations grow by so many bytes a sample, weights do not; the work of an op likewise. So the graph at
one batch size and the slope of every number give the graph at any other, in whole numbers::

    flops(batch) = flops(batch_0) + (batch - batch_0) * slope.flops

The slope is not guessed: it is the difference between two imports (`slope_between`), and whoever takes
it may check it against a third (`is_straight`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sim.base.arrays import Csr, IntArray
from sim.base.errors import GraphError, InputError
from sim.graph.graph import Graph

_STRAIGHT = ("flops", "bytes_read", "bytes_written", "tensor_nbytes")
"""The columns that change with the batch; all others must not."""


class BatchSlope(NamedTuple):
    """How much each number of a graph grows with one more sample.

    Attributes
    ----------
    batch : int
        The batch size of the graph that this belongs to.
    flops, bytes_read, bytes_written : array of int64, one entry per op
    tensor_nbytes : array of int64, one entry per tensor
    attributes : mapping of int to dict
        op → growth of those of its attributes that grow (the rows of a matrix product).
    """

    batch: int
    flops: IntArray
    bytes_read: IntArray
    bytes_written: IntArray
    tensor_nbytes: IntArray
    attributes: Mapping[int, Mapping[str, int]] = {}


def slope_between(at: Graph, batch: int, other: Graph, other_batch: int) -> BatchSlope:
    """Return by how much the numbers of `at`, taken at `batch`, grow with each sample.

    Parameters
    ----------
    at, other : Graph
        The same model at the batch sizes `batch` and `other_batch`.

    Raises
    ------
    GraphError
        The two differ in more than their costs and sizes, or by no whole number a sample.
    """
    changing = (*_STRAIGHT, "attributes")
    for name in (field.name for field in dataclasses.fields(Graph)):
        if name not in changing and not _same(getattr(at, name), getattr(other, name)):
            raise GraphError(
                f"graph {at.name!r} has other {name} at batch {other_batch} than at batch {batch}"
            )
    step = other_batch - batch
    columns: dict[str, Any] = {}
    for name in _STRAIGHT:
        difference = getattr(other, name) - getattr(at, name)
        if (difference % step).any():
            raise GraphError(f"graph {at.name!r}: {name} do not grow by a whole number with each sample")
        columns[name] = difference // step
    return BatchSlope(batch, **columns, attributes=_attribute_slopes(at, other, step))


def _attribute_slopes(at: Graph, other: Graph, step: int) -> dict[int, dict[str, int]]:
    """Return the growth of the whole-number attributes that grow; nothing else may differ."""
    slopes: dict[int, dict[str, int]] = {}
    for op in sorted(at.attributes.keys() | other.attributes.keys()):
        one, two = at.attributes.get(op, {}), other.attributes.get(op, {})
        for key in dict.fromkeys([*one, *two]):
            a, b = one.get(key), two.get(key)
            if a == b:
                continue
            if type(a) is not int or type(b) is not int or (b - a) % step:
                raise GraphError(
                    f"op {at.op_names[op]!r}: its {key} is {a!r} at one batch and {b!r} at another"
                )
            slopes.setdefault(op, {})[key] = (b - a) // step
    return slopes


def at_batch(graph: Graph, slope: BatchSlope, batch: int) -> Graph:
    """Return `graph` at another batch size.

    Raises
    ------
    InputError
        `batch` is less than 1, or some op has a measured duration, for which there is no rule.
    """
    if batch < 1:
        raise InputError(f"a batch has at least 1 sample, not {batch}")
    if batch == slope.batch:
        return graph
    # What takes no time, as a switch or an enter, takes none at any batch.
    timed = (graph.duration_ns > 0) | np.any(
        [np.zeros(len(graph), bool), *(column > 0 for column in graph.duration_by_kind.values())], axis=0
    )
    if timed.any():
        first = graph.op_names[int(np.argmax(timed))]
        raise InputError(
            f"graph {graph.name!r} has durations measured at batch {slope.batch} (op {first!r}, ...); "
            f"they say nothing about batch {batch}"
        )
    more = batch - slope.batch
    steepest = max(float(abs(getattr(slope, name)).max(initial=0)) for name in _STRAIGHT)
    if (
        abs(more) * steepest >= 2**62
        or max(getattr(graph, name).max(initial=0) for name in _STRAIGHT) >= 2**62
    ):
        raise InputError(f"graph {graph.name!r}: a size or cost does not fit 64 bits at batch {batch}")
    columns: dict[str, Any] = {name: getattr(graph, name) + more * getattr(slope, name) for name in _STRAIGHT}
    if min(int(column.min(initial=0)) for column in columns.values()) < 0:
        raise InputError(f"graph {graph.name!r}: a size or cost would be negative at batch {batch}")
    attributes = dict(graph.attributes)
    for op, slopes in slope.attributes.items():
        own = graph.attributes[op]
        attributes[op] = {**own, **{key: own[key] + more * growth for key, growth in slopes.items()}}
    return dataclasses.replace(graph, **columns, attributes=attributes)


def is_straight(graph: Graph, slope: BatchSlope, other: Graph, other_batch: int) -> bool:
    """Whether `other`, the same model at `other_batch`, lies on the line."""
    reached = at_batch(graph, slope, other_batch)
    columns = all(np.array_equal(getattr(reached, name), getattr(other, name)) for name in _STRAIGHT)
    return columns and reached.attributes == other.attributes


def _same(a: object, b: object) -> bool:
    """Compare what a field of `Graph` may hold."""
    if isinstance(a, Csr) and isinstance(b, Csr):
        return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return bool(np.array_equal(a, b))
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return all(_same(a[key], b[key]) for key in a)
    return a == b
