"""Writing graph files (sim.graph/1); `scenarios.importers.neutral.graph_json` says what they hold."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from scenarios.importers.batching import BatchSlope
from scenarios.importers.files import StrPath
from scenarios.importers.neutral.graph_file import SCHEMA, TensorRecord
from sim.files.atomic_files import write_bytes
from sim.graph.csr import Csr
from sim.graph.graph import Graph, Role
from sim.words.arrays import UNSET, IntArray
from sim.words.errors import GraphError, InputError

__all__ = ["write_graph"]


def write_graph(
    graph: Graph, path: StrPath, *, slope: BatchSlope | None = None, source: str | None = None
) -> None:
    """Write `graph` to `path`, gzipped when the name ends in ``.gz``; whole or not at all.

    Parameters
    ----------
    graph : Graph
    path : path
    slope : BatchSlope, optional
        How the numbers grow with the batch (`scenarios.importers.batching.slope_between`); with it the
        file can be read at any batch size.
    source : str, optional
        Where the graph comes from and its licence, for who reads the file.

    Raises
    ------
    GraphError
        An attribute that JSON cannot hold, or a name such as ``a:1`` that is both that of an op or
        input and that of the second output of ``a``.
    InputError
        The file cannot be written.
    """
    head: dict[str, Any] = {"schema": SCHEMA, "name": graph.name}
    if source is not None:
        head["source"] = source
    if slope is not None:
        head["batch"] = slope.batch
    if graph.device_facts:
        head["devices"] = graph.device_facts
    try:
        lines = [f"{_json(key)}: {_json(value)},\n" for key, value in head.items()]
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


def _tensors(graph: Graph, slope: BatchSlope | None) -> Iterator[TensorRecord]:
    """Yield a record for every tensor that no op produces."""
    for t, name in enumerate(graph.external_names):
        role: Literal["input", "parameter"] = "input" if graph.tensor_role[t] == Role.INPUT else "parameter"
        record = TensorRecord(name=name, role=role, nbytes=int(graph.tensor_nbytes[t]))
        if graph.tensor_pin[t] != UNSET:
            record["device"] = graph.pins[graph.tensor_pin[t]]
        if slope is not None and slope.tensor_nbytes[t]:
            record["per_sample"] = {"nbytes": int(slope.tensor_nbytes[t])}
        yield record


def _ops(graph: Graph, slope: BatchSlope | None) -> Iterator[str]:
    """Yield the line of every op; what is absent or zero is left out."""
    columns = _columns(graph, slope)
    growth = _growth(graph, slope, columns)
    for i, name in enumerate(graph.op_names):
        record: dict[str, Any] = {"name": name}
        for key, values in columns.items():
            if values[i] is not None:
                record[key] = values[i]
        if i in graph.attributes:
            record["attributes"] = graph.attributes[i]
        if growth[i]:
            record["per_sample"] = growth[i]
        try:
            yield _json(record)
        except (TypeError, ValueError) as error:
            raise GraphError(
                f"graph {graph.name!r}: op {name!r} has an attribute that JSON cannot hold: {error}"
            ) from None


def _columns(graph: Graph, slope: BatchSlope | None) -> dict[str, list[Any]]:
    """Return key -> one value an op, None where the key is left out."""
    by_kind = {kind: column.tolist() for kind, column in graph.duration_by_kind.items()}
    times = [{kind: c[i] for kind, c in by_kind.items() if c[i] != UNSET} for i in range(len(graph))]
    sizes = Csr(graph.outputs.indptr, graph.tensor_nbytes[graph.outputs.indices]).lists()
    return {
        "kind": _words(graph.kinds, graph.kind_code),
        "dtype": _words(graph.dtypes, graph.dtype_code),
        "device": _words(graph.pins, graph.pin_code),
        "inputs": _references(_tensor_names(graph), graph.inputs, graph.input_distance),
        "after": _references(graph.op_names, graph.after, graph.after_distance),
        "outputs": [row if row != [0] else None for row in sizes],
        "flops": _numbers(graph.flops, graph.flops == 0),
        "bytes_read": _numbers(graph.bytes_read, _derived(graph, slope, "bytes_read", graph.inputs)),
        "bytes_written": _numbers(
            graph.bytes_written, _derived(graph, slope, "bytes_written", graph.outputs)
        ),
        "duration_ns": _numbers(graph.duration_ns, graph.duration_ns == UNSET),
        "duration_by_kind_ns": [row or None for row in times],
        "stage": _numbers(graph.stage, graph.stage == UNSET),
        "micro_batch": _numbers(graph.micro_batch, graph.micro_batch == UNSET),
        "phase": _words(graph.phases, graph.phase_code),
    }


def _growth(graph: Graph, slope: BatchSlope | None, columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Return what ``per_sample`` holds for every op."""
    if slope is None:
        return [{} for _ in graph.op_names]
    flops, read, written = (column.tolist() for column in slope[1:4])
    outputs = Csr(graph.outputs.indptr, slope.tensor_nbytes[graph.outputs.indices]).lists()
    told = {"bytes_read": read, "bytes_written": written}
    rows: list[dict[str, Any]] = []
    for i, sizes in enumerate(outputs):
        row: dict[str, Any] = {"outputs": sizes} if any(sizes) else {}
        row |= {"flops": flops[i]} if flops[i] else {}
        row |= {key: more[i] for key, more in told.items() if more[i] and columns[key][i] is not None}
        row |= {"attributes": dict(slope.attributes[i])} if i in slope.attributes else {}
        rows.append(row)
    return rows


def _words(vocabulary: tuple[str, ...], codes: IntArray) -> list[str | None]:
    return [vocabulary[code] if code != UNSET else None for code in codes.tolist()]


def _numbers(column: IntArray, left_out: npt.NDArray[np.bool_]) -> list[int | None]:
    pairs = zip(column.tolist(), left_out.tolist(), strict=True)
    return [None if absent else value for value, absent in pairs]


def _derived(
    graph: Graph, slope: BatchSlope | None, name: Literal["bytes_read", "bytes_written"], rows: Csr
) -> npt.NDArray[np.bool_]:
    """Where the bytes of an op are those of its tensors, at every batch size."""
    same: npt.NDArray[np.bool_] = getattr(graph, name) == rows.sums(graph.tensor_nbytes)
    if slope is not None:
        same &= getattr(slope, name) == rows.sums(slope.tensor_nbytes)
    return same


def _references(names: list[str], rows: Csr, distance: IntArray) -> list[list[str | list[Any]] | None]:
    """Return each row as names, or [name, distance] where the distance is not 0; None for an empty row."""
    flat: list[str | list[Any]] = [
        names[entry] if d == 0 else [names[entry], d]
        for entry, d in zip(rows.indices.tolist(), distance.tolist(), strict=True)
    ]
    return [flat[a:b] or None for a, b in itertools.pairwise(rows.indptr.tolist())]


def _tensor_names(graph: Graph) -> list[str]:
    """Return how an input refers to each tensor."""
    names = list(graph.external_names)
    taken = {*graph.op_names, *names}
    for op, count in zip(graph.op_names, graph.outputs.counts().tolist(), strict=True):
        names.append(op)
        for k in range(1, count):
            if f"{op}:{k}" in taken:
                raise GraphError(
                    f"graph {graph.name!r}: {op}:{k} means output {k} of {op!r} and is a name of its own"
                )
            names.append(f"{op}:{k}")
    return names
