"""What the ops of a recorded graph are: tasks of a GPU, calls of the host, copies, collectives.

By attributes that importers of recordings write: ``stream`` for what ran on a GPU, ``thread`` for what the
host did. A ``delay`` on either is neither: it stands for idle time that nothing explains.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from sim.explain.facts.communication import COMMUNICATION, moving_kinds
from sim.graph.graph import Graph
from sim.words.arrays import BoolArray

__all__ = [
    "COLLECTIVES",
    "collectives",
    "has_key",
    "host_ops",
    "kernels",
    "launches",
    "pinned_to",
    "recorded",
    "tasks",
    "transfers",
]

COLLECTIVES: Final = frozenset(
    {"all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter",
     "barrier", "send", "recv", "collective"}
)  # fmt: skip
"""Kinds of op that communicate between ranks, where they are a communicator's, or a library's kernels."""

_BETWEEN: Final = re.compile(
    r"Memcpy (?!DtoD)|Device -> (Pinned|Pageable|Host)|(Pinned|Pageable|Host) -> Device"
    r"|Copy(DeviceToHost|HostToDevice)"
)
_NCCL: Final = re.compile(r"(nccl|rccl|c10d::)", re.IGNORECASE)


def has_key(graph: Graph, key: str) -> BoolArray:
    """Return which ops have an attribute."""
    found = np.zeros(len(graph), np.bool_)
    found[[*graph.attribute(key)]] = True
    return found


def tasks(graph: Graph) -> BoolArray:
    """Return which ops ran on a GPU; of a graph that is no recording all."""
    on_gpu = has_key(graph, "stream") if recorded(graph) else np.ones(len(graph), np.bool_)
    return on_gpu & ~graph.is_kind("delay")


def recorded(graph: Graph) -> bool:
    """Whether a graph is a recording."""
    return bool((has_key(graph, "stream") | has_key(graph, "thread")).any())


def host_ops(graph: Graph) -> BoolArray:
    """Return which ops are the host's own work; what it did before its recording began is unknown."""
    return has_key(graph, "thread") & ~graph.is_kind("before", "delay")


def launches(graph: Graph) -> BoolArray:
    """Return which ops are calls that launch."""
    return has_key(graph, "thread") & graph.is_kind("launch")


def kernels(graph: Graph) -> BoolArray:
    """Return which ops of a GPU compute: kernels that copy, cast or concatenate, too, and no memcpy."""
    return tasks(graph) & ~moving_kinds(graph) & ~collectives(graph)


def collectives(graph: Graph) -> BoolArray:
    """Return which ops communicate: those of a communicator, and kernels of NCCL (or RCCL).

    Of a graph that is no recording the kind tells, too.
    """
    found = has_key(graph, "communicator") | has_key(graph, "comm_type")
    if not recorded(graph):
        found |= graph.is_kind(*COMMUNICATION - {"copy", "transfer"})
    for op, own in graph.attributes.items():
        found[op] |= "stream" in own and _NCCL.match(str(own.get("kernel", graph.op_names[op]))) is not None
    return found


def transfers(graph: Graph) -> BoolArray:
    """Return which ops copy between host and device, or between devices."""
    found = np.zeros(len(graph), np.bool_)
    copies = graph.is_kind("copy")
    for op, own in graph.attributes.items():
        text = str(own.get("kernel", own.get("full_name", "")))
        found[op] = bool(copies[op]) and _BETWEEN.search(text) is not None
    return found


def pinned_to(graph: Graph, device: str) -> BoolArray:
    """Return which ops are pinned to a device, or to a device of a kind (``gpu``)."""
    known = [pin == device or pin.rstrip("0123456789") == device for pin in graph.pins]
    return np.array([*known, False], np.bool_)[graph.pin_code]
