"""What the devices of a pipeline are asked to time before there are stages: a graph, or kernels of a model.

Warnings about costs count these, as the tasks of a pipeline have durations by then.
"""

from __future__ import annotations

from functools import lru_cache

from scenarios.build.device_times import kernels_graph
from scenarios.build.train.kernels import Attention, Product
from scenarios.file.document import Document
from scenarios.work.pipeline.pipeline_fields import PipelineFields
from scenarios.work.pipeline.pipeline_model import forward_kernels
from sim.graph.graph import Graph

__all__ = ["graph_of", "timed_graph"]


def graph_of(fields: PipelineFields, document: Document) -> Graph:
    """Return the graph of a forward pass that stages are cut from, with the batch of a micro-batch."""
    from scenarios.importers import load_graph

    assert fields.graph is not None
    batch = None if fields.batch is None else -(-fields.batch // fields.micro_batches)
    return load_graph(document.file(fields.graph), batch=batch)


def timed_graph(fields: PipelineFields, document: Document) -> Graph | None:
    """Return the graph, or the kernels of a model's forward; None: there is neither."""
    if fields.graph is not None:
        return graph_of(fields, document)
    return None if fields.model is None else _kernels(tuple(forward_kernels(fields)), fields.model.dtype)


@lru_cache(maxsize=1)
def _kernels(kernels: tuple[Product | Attention, ...], dtype: str) -> Graph:
    """Return the graph of some kernels, the same for all schedules and points of a sweep that have them."""
    return kernels_graph(kernels, dtype)
