"""Graph files (sim.graph/1): everything a `Graph` holds, in JSON with one record a line, maybe gzipped.

It is the file that other tools write for us, and that `sim import` writes from every other format::

    {"schema": "sim.graph/1", "name": "two ops",
     "tensors": [{"name": "x", "role": "input", "nbytes": 4096},
                 {"name": "w", "role": "parameter", "nbytes": 65536}],
     "ops": [{"name": "mm", "kind": "matmul", "inputs": ["x", "w"], "outputs": [4096], "flops": 2097152},
             {"name": "act", "kind": "relu", "inputs": ["mm"], "outputs": [4096], "after": ["mm"]}]}

* ``tensors`` are those that no op produces; ``outputs`` are the sizes in bytes of those an op produces.
* An input is ``"op"`` (its first output), ``"op:1"`` (its second), a name in ``tensors``, or
  ``["op", d]`` for what it produced d iterations earlier; ``after`` holds control edges, likewise.
* Durations are whole nanoseconds: ``duration_ns`` anywhere, ``duration_by_kind_ns`` by kind of device.
* ``attributes`` is for what models and runtimes know about: of control flow (``frame``, ``constant``,
  ``parallel_iterations``, ``outcome``, ``trips``), ``fails``, ``colocate`` (ops or labels), ``expensive`` (a
  flag), ``view_of`` (the number of the input whose storage output 0 shares), the shape of a product (``m``,
  ``n``, ``k``), and the operator's own. Tuples come back as lists.
* ``functions`` are for ops of kind ``call``, ``if`` and ``while``, which are written out when the file is
  read (`scenarios.ops.functions`): ``{"name": "f", "inputs": ["a"], "ops": [...], "results": ["b"]}``.
* What is left out is absent or zero; ``bytes_read`` and ``bytes_written`` are then those of the tensors.
* ``devices`` says of devices that ops are pinned to what a recording knows, in the words of a machine's
  description: ``{"gpu": {"gap": "1200ns"}}``. A scenario's machine has it where it says nothing else.
* ``batch`` says at which batch size the numbers were taken, and ``per_sample`` by how much each grows
  with one more sample; with both, `read_graph` gives the graph at any batch size, exactly.

The JSON Schema is ``scenarios/graph.schema.json``. Equal graphs give equal bytes.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from scenarios.importers.batching import BatchSlope, at_batch
from scenarios.importers.files import StrPath, read_bytes
from scenarios.importers.neutral.graph_columns import read_columns
from scenarios.importers.neutral.graph_file import FunctionRecord, GraphFile, OpRecord, OpSlope, parse
from scenarios.importers.neutral.graph_write import write_graph
from scenarios.ops.functions import Function
from scenarios.ops.inlining import add_ops
from sim.graph.builder import GraphBuilder
from sim.graph.csr import Csr
from sim.graph.graph import Graph
from sim.words.arrays import IntArray
from sim.words.errors import GraphError, InputError

__all__ = ["load", "own_batch", "read_graph", "recognises", "write_graph"]


def recognises(name: str, head: bytes) -> bool:
    """Whether `head`, the beginning of a file, is that of a graph file of any version."""
    return re.search(rb'"schema"\s*:\s*"sim\.graph/', head) is not None


def read_graph(path: StrPath, *, batch: int | None = None) -> Graph:
    """Read a graph file.

    Parameters
    ----------
    path : path
        JSON, gzipped or not.
    batch : int, optional
        Batch size wanted; by default that of the file.

    Raises
    ------
    InputError
        No such file, not JSON, wrong in some place (named), or `batch` given for a file that does not
        say how its numbers grow with the batch.
    GraphError
        A cycle, an unknown input, a duplicate name.

    Examples
    --------
    >>> read_graph("scenarios/examples/graphs/inception_v1.json.gz", batch=32)
    <Graph 'inception_v1': 143 ops, 260 tensors, 169 edges>
    """
    content = read_bytes(path)
    read = read_columns(content) if batch is None else None
    file = parse(content, path) if read is None else read[0]
    del content
    builder = GraphBuilder(file["name"])
    try:
        for tensor in file.get("tensors", []):
            add = builder.input if tensor["role"] == "input" else builder.parameter
            add(tensor["name"], tensor.get("nbytes", 0), device=tensor.get("device"))
        if read is not None:
            builder.extend(**read[1])
            del read
            return _with_facts(builder.build(), file)
        functions = [_function(record) for record in file.get("functions", [])]
        add_ops(builder, [_arguments(op) for op in file["ops"]], {f.name: f for f in functions})
        graph = _with_facts(builder.build(), file)
        if batch is not None and len(graph) != len(file["ops"]):
            raise InputError("its functions have no 'per_sample', so the batch cannot be set")
        return graph if batch is None else at_batch(graph, _slope(file, graph, path), batch)
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _with_facts(graph: Graph, file: GraphFile) -> Graph:
    """Return the graph with what its file says of devices."""
    return replace(graph, device_facts=file["devices"]) if "devices" in file else graph


load = read_graph


def own_batch(path: StrPath) -> int | None:
    """Return the batch size of the numbers in a file, when it says so."""
    return parse(read_bytes(path), path).get("batch")


def _function(record: FunctionRecord) -> Function:
    ops = tuple(_arguments(op) for op in record["ops"])
    return Function(record["name"], tuple(record.get("inputs", [])), ops, tuple(record["results"]))


def _arguments(op: OpRecord) -> dict[str, Any]:
    """Return the arguments of `GraphBuilder.op` for a record."""
    if "duration_by_kind_ns" not in op and "per_sample" not in op:
        return op  # type: ignore[return-value]
    arguments: dict[str, Any] = {key: value for key, value in op.items() if key != "per_sample"}
    arguments["duration_by_kind"] = arguments.pop("duration_by_kind_ns", None)
    return arguments


def _slope(file: GraphFile, graph: Graph, path: StrPath) -> BatchSlope:
    """Return by how much the numbers in `file` grow with each sample."""
    if "batch" not in file:
        raise InputError(
            "its numbers are for one batch size only (there is no 'batch' and 'per_sample' in it), so the "
            "batch cannot be set; import the model itself at that batch size"
        )
    slopes = [op.get("per_sample", OpSlope()) for op in file["ops"]]
    sizes = [tensor.get("per_sample", {"nbytes": 0})["nbytes"] for tensor in file.get("tensors", [])]
    for i, (slope, n_outputs) in enumerate(zip(slopes, graph.outputs.counts().tolist(), strict=True)):
        outputs = slope.get("outputs", [0] * n_outputs)
        if len(outputs) != n_outputs:
            raise InputError(
                f"ops[{i}] ({graph.op_names[i]}).per_sample.outputs: {len(outputs)} sizes for "
                f"{n_outputs} output(s)"
            )
        sizes.extend(outputs)
        for key in slope.get("attributes", {}):
            if type(graph.attributes.get(i, {}).get(key)) is not int:
                raise InputError(
                    f"ops[{i}] ({graph.op_names[i]}).per_sample.attributes.{key}: it is no whole number"
                )
    nbytes = np.array(sizes, dtype=np.int64)

    def moved(key: Literal["bytes_read", "bytes_written"], rows: Csr) -> IntArray:
        sums = rows.sums(nbytes).tolist()
        triples = zip(file["ops"], slopes, sums, strict=True)
        return np.array([more.get(key, 0 if key in op else total) for op, more, total in triples])

    return BatchSlope(
        file["batch"],
        np.array([slope.get("flops", 0) for slope in slopes], dtype=np.int64),
        moved("bytes_read", graph.inputs),
        moved("bytes_written", graph.outputs),
        nbytes,
        {i: slope["attributes"] for i, slope in enumerate(slopes) if "attributes" in slope},
    )
