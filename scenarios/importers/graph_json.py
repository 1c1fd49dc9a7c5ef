"""Graph files (sim.graph/1): a whole `Graph` in JSON with one record per line, gzipped or not.

Other tools write this format for us, and `sim import` converts every other format to it::

    {"schema": "sim.graph/1", "name": "two ops",
     "tensors": [{"name": "x", "role": "input", "nbytes": 4096},
                 {"name": "w", "role": "parameter", "nbytes": 65536}],
     "ops": [{"name": "mm", "kind": "matmul", "inputs": ["x", "w"], "outputs": [4096], "flops": 2097152},
             {"name": "act", "kind": "relu", "inputs": ["mm"], "outputs": [4096], "after": ["mm"]}]}

* ``tensors`` are those that no op produces; ``outputs`` are the sizes in bytes of an op's outputs.
* An input is ``"op"`` (its first output), ``"op:1"`` (its second), a name in ``tensors``, or
  ``["op", d]`` for what it produced d iterations earlier; ``after`` holds control edges, likewise.
* Durations are whole nanoseconds: ``duration_ns`` anywhere, ``duration_by_kind_ns`` by kind of device.
* ``attributes`` holds what models and runtimes use: for control flow (``frame``, ``constant``,
  ``parallel_iterations``, ``outcome``, ``trips``), ``fails``, ``colocate`` (ops or labels), ``expensive`` (a
  flag), ``view_of`` (the number of the input whose storage output 0 shares), ``no_gradient`` (the numbers of
  inputs without a gradient in training), the shape of a product (``m``, ``n``, ``k``), and the operator's
  own. Tuples become lists.
* ``functions`` are for ops of kind ``call``, ``if`` and ``while``, which are inlined when the file is
  read (`scenarios.ops.inlining`): ``{"name": "f", "inputs": ["a"], "ops": [...], "results": ["b"]}``.
* Omitted values are absent or zero; ``bytes_read`` and ``bytes_written`` default to those of the tensors.
* ``devices`` holds facts of a recording about the devices that ops are pinned to, with the keys of a
  machine: ``{"gpu": {"gap": "1200ns"}}``. They are defaults for a scenario's machine.
* ``batch`` is the batch size of the numbers, and ``per_sample`` by how much each grows
  with one more sample; with both, `read_graph` gives the graph at any batch size, exactly.

The JSON Schema is ``scenarios/graph.schema.json``. Equal graphs give equal bytes.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from policies.rewrite.records import numbers_of, words_of
from scenarios.importers import graph_columns
from scenarios.importers.files import as_utf8, parse
from scenarios.importers.graph_columns import FILE, SCHEMA, GraphFileRecord
from scenarios.ops.inlining import Function, add_ops
from sim.base.arrays import UNSET, Csr, IntArray
from sim.base.errors import GraphError, InputError, in_file
from sim.base.files import StrPath, read_bytes, write_bytes
from sim.graph.builder import GraphBuilder
from sim.graph.graph import Graph, Role

# ----------------------------------------------------------------------------------------------------------
# One graph for any batch size: the numbers of a graph are linear in the batch.
#
# Activations grow by some bytes per sample, weights do not; the work of an op likewise. So the graph at
# one batch size and the slope of every number give the graph at any other, in whole numbers::
#
#     flops(batch) = flops(batch_0) + (batch - batch_0) * slope.flops
#
# The slope is not guessed: it is the difference between two imports (`slope_between`), and may be
# checked against a third (`is_straight`).

_LINEAR_COLUMNS = ("flops", "bytes_read", "bytes_written", "tensor_nbytes")
"""The columns that change with the batch; all others must not."""


class BatchSlope(NamedTuple):
    """Growth of each number of a graph with one more sample.

    Attributes
    ----------
    batch : int
        Batch size of the graph to which the slope belongs.
    flops, bytes_read, bytes_written : array of int64, one entry per op
    tensor_nbytes : array of int64, one entry per tensor
    attributes : mapping of int to dict
        op → growth of its growing attributes (the rows of a matrix product).
    """

    batch: int
    flops: IntArray
    bytes_read: IntArray
    bytes_written: IntArray
    tensor_nbytes: IntArray
    attributes: Mapping[int, Mapping[str, int]] = {}


def slope_between(graph: Graph, batch: int, following: Graph) -> BatchSlope:
    """Return by how much the numbers of `graph`, taken at `batch`, grow with each sample.

    Parameters
    ----------
    graph, following : Graph
        The same model at the batch size `batch`, and with one more sample.

    Raises
    ------
    GraphError
        The graphs differ in more than costs and sizes.
    """
    changing = (*_LINEAR_COLUMNS, "attributes")
    for name in (field.name for field in fields(Graph)):
        if name not in changing and not _is_equal(getattr(graph, name), getattr(following, name)):
            raise GraphError(
                f"graph {graph.name!r} has other {name} at batch {batch + 1} than at batch {batch}"
            )
    columns = {name: getattr(following, name) - getattr(graph, name) for name in _LINEAR_COLUMNS}
    return BatchSlope(batch, **columns, attributes=_attribute_slopes(graph, following))


def _attribute_slopes(graph: Graph, following: Graph) -> dict[int, dict[str, int]]:
    """Return the growth of the whole-number attributes that grow; raise if anything else differs."""
    slopes: dict[int, dict[str, int]] = {}
    for op in sorted(graph.attributes.keys() | following.attributes.keys()):
        before, after = graph.attributes.get(op, {}), following.attributes.get(op, {})
        for key in dict.fromkeys([*before, *after]):
            a, b = before.get(key), after.get(key)
            if a == b:
                continue
            if type(a) is not int or type(b) is not int:
                raise GraphError(
                    f"op {graph.op_names[op]!r}: its {key} is {a!r} at one batch and {b!r} at another"
                )
            slopes.setdefault(op, {})[key] = b - a
    return slopes


def at_batch(graph: Graph, slope: BatchSlope, batch: int) -> Graph:
    """Return `graph` at another batch size.

    Raises
    ------
    InputError
        `batch` is less than 1, or some op has a measured duration, which cannot be scaled.
    """
    if batch < 1:
        raise InputError(f"a batch has at least 1 sample, not {batch}")
    if batch == slope.batch:
        return graph
    # An op that takes no time, such as a switch or an enter, takes none at any batch size.
    timed = graph.longest_ns() > 0
    if timed.any():
        first = graph.op_names[int(np.argmax(timed))]
        raise InputError(
            f"graph {graph.name!r} has durations measured at batch {slope.batch} (op {first!r}, ...); "
            f"they say nothing about batch {batch}"
        )
    more = batch - slope.batch
    columns: dict[str, Any] = {}
    for name in _LINEAR_COLUMNS:
        values, growth = getattr(graph, name), getattr(slope, name)
        if (abs(values + float(more) * growth) >= 2**62).any():
            raise InputError(f"graph {graph.name!r}: a size or cost does not fit 64 bits at batch {batch}")
        columns[name] = values + more * growth
        if (columns[name] < 0).any():
            raise InputError(f"graph {graph.name!r}: a size or cost would be negative at batch {batch}")
    attributes = dict(graph.attributes)
    for op, slopes in slope.attributes.items():
        old = graph.attributes[op]
        attributes[op] = {**old, **{key: old[key] + more * growth for key, growth in slopes.items()}}
    return replace(graph, **columns, attributes=attributes)


def is_straight(graph: Graph, slope: BatchSlope, other: Graph, other_batch: int) -> bool:
    """Whether `other`, the same model at `other_batch`, lies on the line."""
    reached = at_batch(graph, slope, other_batch)
    columns = all(np.array_equal(getattr(reached, name), getattr(other, name)) for name in _LINEAR_COLUMNS)
    return columns and reached.attributes == other.attributes


def _is_equal(a: object, b: object) -> bool:
    """Whether two values of a field of `Graph` are equal."""
    if isinstance(a, Csr) and isinstance(b, Csr):
        return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return bool(np.array_equal(a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping) and a.keys() == b.keys():
        return all(_is_equal(a[key], b[key]) for key in a)
    return a == b


# ----------------------------------------------------------------------------------------------------------
# Write graph files (sim.graph/1); see `scenarios.importers.graph_json` for their content.


def write_graph(
    graph: Graph, path: StrPath, *, slope: BatchSlope | None = None, source: str | None = None
) -> None:
    """Write `graph` to `path`, atomically; gzipped if the name ends in ``.gz``.

    Parameters
    ----------
    graph : Graph
    path : path
    slope : BatchSlope, optional
        Growth of the numbers with the batch (`slope_between`); with it the
        file can be read at any batch size.
    source : str, optional
        Origin and licence of the graph, for readers of the file.

    Raises
    ------
    GraphError
        JSON cannot hold an attribute, or a name such as ``a:1`` is both that of an op or
        input and that of the second output of ``a``.
    InputError
        The file cannot be written.
    """
    head: dict[str, Any] = {"schema": SCHEMA, "name": graph.name}
    batch = None if slope is None else slope.batch
    head |= {"source": source, "batch": batch, "devices": graph.device_facts or None}
    head |= {"machine": graph.machine or None}
    try:
        lines = [f"{_json(key)}: {_json(value)},\n" for key, value in head.items() if value is not None]
        tensors = ",\n".join(map(_json, _tensors(graph, slope)))
        ops = ",\n".join(_ops(graph, slope))
        text = f'{{\n{"".join(lines)}"tensors": [\n{tensors}\n],\n"ops": [\n{ops}\n]\n}}\n'
        content = text.encode()
    except UnicodeEncodeError as error:
        raise GraphError(f"graph {graph.name!r} has a name that is no text: {error}") from None
    try:
        write_bytes(path, content)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _tensors(graph: Graph, slope: BatchSlope | None) -> Iterator[graph_columns.TensorRecord]:
    """Yield a record for every tensor that no op produces."""
    for t, name in enumerate(graph.external_names):
        role: Literal["input", "parameter"] = "input" if graph.tensor_role[t] == Role.INPUT else "parameter"
        record = graph_columns.TensorRecord(name=name, role=role, nbytes=int(graph.tensor_nbytes[t]))
        if graph.tensor_pin[t] != UNSET:
            record["device"] = graph.pins[graph.tensor_pin[t]]
        if slope is not None and slope.tensor_nbytes[t]:
            record["per_sample"] = {"nbytes": int(slope.tensor_nbytes[t])}
        yield record


def _ops(graph: Graph, slope: BatchSlope | None) -> Iterator[str]:
    """Yield the line of every op; absent or zero values are omitted."""
    columns = _columns(graph, slope)
    growth = _growth(graph, slope, columns)
    for i, name in enumerate(graph.op_names):
        record: dict[str, Any] = {"name": name}
        for key, values in columns.items():
            if values[i] is not None:
                record[key] = values[i]
        if i in graph.attributes:
            record["attributes"] = dict(graph.attributes[i])
        if growth[i]:
            record["per_sample"] = growth[i]
        try:
            yield _json(record)
        except (TypeError, ValueError) as error:
            raise GraphError(
                f"graph {graph.name!r}: op {name!r} has an attribute that JSON cannot hold: {error}"
            ) from None


def _columns(graph: Graph, slope: BatchSlope | None) -> dict[str, list[Any]]:
    """Return key -> one value per op, None if the key is omitted."""
    by_kind = {kind: column.tolist() for kind, column in graph.duration_by_kind.items()}
    times = [{kind: c[i] for kind, c in by_kind.items() if c[i] != UNSET} for i in range(len(graph))]
    sizes = Csr(graph.outputs.indptr, graph.tensor_nbytes[graph.outputs.indices]).lists()
    return {
        "kind": words_of(graph.kinds, graph.kind_code),
        "dtype": words_of(graph.dtypes, graph.dtype_code),
        "device": words_of(graph.pins, graph.pin_code),
        "inputs": _references(_tensor_names(graph), graph.inputs, graph.input_distance),
        "after": _references(graph.op_names, graph.after, graph.after_distance),
        "outputs": [row if row != [0] else None for row in sizes],
        "flops": numbers_of(np.where(graph.flops == 0, UNSET, graph.flops)),
        "bytes_read": numbers_of(_moved_bytes(graph, slope, "bytes_read", graph.inputs)),
        "bytes_written": numbers_of(_moved_bytes(graph, slope, "bytes_written", graph.outputs)),
        "duration_ns": numbers_of(graph.duration_ns),
        "duration_by_kind_ns": [row or None for row in times],
        "stage": numbers_of(graph.stage),
        "micro_batch": numbers_of(graph.micro_batch),
        "phase": words_of(graph.phases, graph.phase_code),
    }


def _growth(graph: Graph, slope: BatchSlope | None, columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Return the content of ``per_sample`` for every op."""
    if slope is None:
        return [{} for _ in graph.op_names]
    flops, read, written = (column.tolist() for column in slope[1:4])
    outputs = Csr(graph.outputs.indptr, slope.tensor_nbytes[graph.outputs.indices]).lists()
    moved = {"bytes_read": read, "bytes_written": written}
    rows: list[dict[str, Any]] = []
    for i, sizes in enumerate(outputs):
        row: dict[str, Any] = {"outputs": sizes} if any(sizes) else {}
        row |= {"flops": flops[i]} if flops[i] else {}
        row |= {key: more[i] for key, more in moved.items() if more[i] and columns[key][i] is not None}
        row |= {"attributes": dict(slope.attributes[i])} if i in slope.attributes else {}
        rows.append(row)
    return rows


def _moved_bytes(
    graph: Graph, slope: BatchSlope | None, name: Literal["bytes_read", "bytes_written"], rows: Csr
) -> IntArray:
    """Return the bytes that ops move, unset where they are those of the tensors at every batch size."""
    implied = getattr(graph, name) == rows.sums(graph.tensor_nbytes)
    if slope is not None:
        implied &= getattr(slope, name) == rows.sums(slope.tensor_nbytes)
    return np.where(implied, UNSET, getattr(graph, name))


def _references(names: Sequence[str], rows: Csr, distance: IntArray) -> list[list[str | list[Any]] | None]:
    """Return each row as names, or [name, distance] if the distance is not 0; None for an empty row."""
    flat: list[str | list[Any]] = [
        names[entry] if d == 0 else [names[entry], d]
        for entry, d in zip(rows.indices.tolist(), distance.tolist(), strict=True)
    ]
    return [flat[a:b] or None for a, b in itertools.pairwise(rows.indptr.tolist())]


def _tensor_names(graph: Graph) -> list[str]:
    """Return the name by which inputs refer to each tensor."""
    names = graph.tensor_names()
    if len({*names}) < len(names):
        twice = next(name for name, n in Counter(names).items() if n > 1)
        op, _, k = twice.rpartition(":")
        raise GraphError(f"graph {graph.name!r}: {twice} means output {k} of {op!r} and is a name of its own")
    return names


# ----------------------------------------------------------------------------------------------------------


def recognises(name: str, head: bytes) -> bool:
    """Whether `head` is the beginning of a graph file of any version."""
    return re.search(rb'"schema"\s*:\s*"sim\.graph/', head) is not None


def read_graph(path: StrPath, *, batch: int | None = None) -> Graph:
    """Read a graph file.

    Parameters
    ----------
    path : path
        JSON, gzipped or not.
    batch : int, optional
        Batch size wanted; default: that of the file.

    Raises
    ------
    InputError
        There is no such file, it is not JSON, it has an error (with its position), or `batch` is given for a
        file that does not say how its numbers grow with the batch.
    GraphError
        There is a cycle, an unknown input, or a duplicate name.

    Examples
    --------
    >>> read_graph("scenarios/examples/graphs/inception_v1.json.gz", batch=32)
    <Graph 'inception_v1': 143 ops, 260 tensors, 169 edges>
    """
    content = as_utf8(read_bytes(path))
    read = graph_columns.read_columns(content) if batch is None else None
    file = parse(FILE, content, path) if read is None else read[0]
    del content
    builder = GraphBuilder(file["name"])
    with in_file(path):
        for tensor in file.get("tensors", []):
            add = builder.input if tensor["role"] == "input" else builder.parameter
            add(tensor["name"], tensor.get("nbytes", 0), device=tensor.get("device"))
        if read is not None:
            builder.extend(**read[1])
            del read
        else:
            functions = [_function(record) for record in file.get("functions", [])]
            add_ops(builder, [_arguments(op) for op in file["ops"]], {f.name: f for f in functions})
        graph = replace(
            builder.build(), device_facts=file.get("devices", {}), machine=file.get("machine", {})
        )
        if batch is not None and len(graph) != len(file["ops"]):
            raise InputError("its functions have no 'per_sample', so the batch cannot be set")
        return graph if batch is None else at_batch(graph, _slope(file, graph), batch)


load = read_graph


def own_batch(path: StrPath) -> int | None:
    """Return the batch size of the numbers in a file, if given."""
    return parse(FILE, as_utf8(read_bytes(path)), path).get("batch")


def _function(record: graph_columns.FunctionRecord) -> Function:
    ops = tuple(_arguments(op) for op in record["ops"])
    return Function(record["name"], tuple(record.get("inputs", [])), ops, tuple(record["results"]))


def _arguments(op: graph_columns.OpRecord) -> dict[str, Any]:
    """Return the arguments of `GraphBuilder.op` for a record."""
    if "duration_by_kind_ns" not in op and "per_sample" not in op:
        return op  # type: ignore[return-value]
    arguments: dict[str, Any] = {key: value for key, value in op.items() if key != "per_sample"}
    arguments["duration_by_kind"] = arguments.pop("duration_by_kind_ns", None)
    return arguments


def _slope(file: GraphFileRecord, graph: Graph) -> BatchSlope:
    """Return by how much the numbers in `file` grow with each sample."""
    if "batch" not in file:
        only = "its numbers are for one batch size only (there is no 'batch' and 'per_sample' in it)"
        raise InputError(f"{only}; import the model itself at the batch size wanted")
    slopes = [op.get("per_sample", graph_columns.OpSlope()) for op in file["ops"]]
    sizes = [tensor.get("per_sample", {"nbytes": 0})["nbytes"] for tensor in file.get("tensors", [])]
    for i, (slope, n_outputs) in enumerate(zip(slopes, graph.outputs.counts().tolist(), strict=True)):
        where, outputs = f"ops[{i}] ({graph.op_names[i]}).per_sample", slope.get("outputs", [0] * n_outputs)
        if len(outputs) != n_outputs:
            raise InputError(f"{where}.outputs: {len(outputs)} sizes for {n_outputs} output(s)")
        sizes.extend(outputs)
        for key in slope.get("attributes", {}):
            if type(graph.attributes.get(i, {}).get(key)) is not int:
                raise InputError(f"{where}.attributes.{key}: it is no whole number")
    nbytes = np.array(sizes, dtype=np.int64)

    def column_of(key: Literal["bytes_read", "bytes_written"], rows: Csr) -> IntArray:
        sums = rows.sums(nbytes).tolist()
        triples = zip(file["ops"], slopes, sums, strict=True)
        return np.array([more.get(key, 0 if key in op else total) for op, more, total in triples])

    return BatchSlope(
        file["batch"],
        np.array([slope.get("flops", 0) for slope in slopes], dtype=np.int64),
        column_of("bytes_read", graph.inputs),
        column_of("bytes_written", graph.outputs),
        nbytes,
        {i: slope["attributes"] for i, slope in enumerate(slopes) if "attributes" in slope},
    )
