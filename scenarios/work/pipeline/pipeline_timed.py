"""What the devices of a pipeline are asked to time before there are stages: a graph, or kernels of a model.

Warnings about costs count these, as the tasks of a pipeline have durations by then.
"""

from __future__ import annotations

from scenarios.file.document import Document
from scenarios.work.pipeline.pipeline_fields import ModelFields, PipelineFields
from sim.graph.builder import GraphBuilder
from sim.graph.graph import Graph

__all__ = ["graph_of", "timed_graph"]

_BYTES = 2
"""A number of 16 bit."""


def graph_of(fields: PipelineFields, document: Document) -> Graph:
    """Return the graph of a forward pass that stages are cut from, with the batch of a micro-batch."""
    from scenarios.importers import load_graph

    assert fields.graph is not None
    batch = None if fields.batch is None else -(-fields.batch // fields.micro_batches)
    return load_graph(document.file(fields.graph), batch=batch)


def timed_graph(fields: PipelineFields, document: Document) -> Graph | None:
    """Return the graph, or the products and attention of a model's layers; None: there is neither."""
    if fields.graph is not None:
        return graph_of(fields, document)
    return None if fields.model is None else _kernels(fields.model)


def _kernels(model: ModelFields) -> Graph:
    """Return products with weights and attention of each layer, and the output layer, of a forward."""
    tokens, h, t = model.micro_batch * model.sequence, model.hidden, model.tensor_parallel
    builder = GraphBuilder("kernels of a forward")

    def product(name: str, k: int, n: int) -> None:
        read, written = _BYTES * (tokens * k + k * n), _BYTES * tokens * n
        flops = 2 * tokens * k * n
        builder.op(
            name, kind="matmul", dtype=model.dtype, flops=flops, bytes_read=read, bytes_written=written
        )

    for layer in range(model.layers):
        product(f"{layer}.qkv", h, 3 * h // t)
        builder.op(
            f"{layer}.attention",
            kind="attention",
            dtype=model.dtype,
            flops=4 * tokens * model.sequence * h // t,
            bytes_read=3 * _BYTES * tokens * h // t,
            bytes_written=_BYTES * tokens * h // t,
        )
        product(f"{layer}.projection", h // t, h)
        product(f"{layer}.up", h, 4 * h // t)
        product(f"{layer}.down", 4 * h // t, h)
    if model.vocabulary:
        product("output", h, model.vocabulary // t)
    return builder.build()
