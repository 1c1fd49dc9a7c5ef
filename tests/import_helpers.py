"""What the tests of the importers share."""

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from scenarios.importers import load_graph
from sim import Graph, GraphBuilder

REPOSITORY = Path(__file__).parent.parent
DATA = Path(os.environ.get("SIM_DATA", REPOSITORY.parent / "shared" / "data"))


def recorded(name: str) -> Path:
    """Return a recorded input, or skip the test that needs it."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path} is not there (set SIM_DATA to the folder of recorded inputs)")
    return path


@cache
def recorded_graph(name: str) -> Graph:
    """Return the graph of a recorded input, which all tests share, or skip."""
    return load_graph(recorded(name))


def chain():
    """Return two ops, one after the other."""
    builder = GraphBuilder("chain")
    builder.input("x", 10)
    builder.op("a", inputs=["x"], outputs=20, flops=5)
    builder.op("b", inputs=["a"], outputs=[1, 2], attributes={"expensive": False, "colocate_with": "a"})
    return builder.build()


_NUMBERS = [
    *["flops", "bytes_read", "bytes_written", "duration_ns", "stage", "micro_batch", "input_distance"],
    *["after_distance", "tensor_producer", "tensor_nbytes", "tensor_role", "topological_order"],
]


def spelled(vocabulary, codes):
    """Codes as words: two graphs may number the same words differently."""
    return [vocabulary[code] if code >= 0 else None for code in codes.tolist()]


def columns(graph: Graph) -> dict:
    """Return every fact of a graph in a form that == compares."""
    return {
        "name": graph.name,
        "op_names": list(graph.op_names),
        "external_names": list(graph.external_names),
        "kind": spelled(graph.kinds, graph.kind_code),
        "dtype": spelled(graph.dtypes, graph.dtype_code),
        "pin": spelled(graph.pins, graph.pin_code),
        "phase": spelled(graph.phases, graph.phase_code),
        "tensor_pin": spelled(graph.pins, graph.tensor_pin),
        "duration_by_kind": {
            k: v.tolist() for k, v in sorted(graph.duration_by_kind.items()) if (v >= 0).any()
        },
        "attributes": {op: dict(found) for op, found in graph.attributes.items() if found},
        **{csr: getattr(graph, csr).lists() for csr in ("outputs", "inputs", "after")},
        **{column: np.asarray(getattr(graph, column)).tolist() for column in _NUMBERS},
    }
