"""Select the ops that a what-if is about, by one word::

gemm                     all matrix products           transfers    copies between host and device
kernels                  all kernels that compute      collectives  what communicates between ranks
matmul, copy, launch     a kind of op
gpu, gpu3, cpu           the ops of a device, or of all devices of a kind; not idle time (`delay`), nor
                         the time `before` a recording
aten::addmm              ops launched by an operator, and the host's time until each launch
Layer, Layer_3           the same for all modules of a class, for one module, or for a range of the program
DtoH, DtoH.17            kernels of a name, one op
*softmax*, rank3/*       a pattern for any of these; also for a kernel's full name
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import numpy as np

from sim.base.arrays import BoolArray, group_pairs
from sim.base.errors import InputError, UnknownNameError, error_path
from sim.explain.communication import COMMUNICATION, moving_kinds
from sim.explain.narration import names_around
from sim.graph.graph import Graph

# ----------------------------------------------------------------------------------------------------------
# Roles of the ops of a recorded graph: tasks of a GPU, calls of the host, copies, collectives.
#
# Importers of recordings mark them by attributes: ``stream`` for tasks of a GPU, ``thread`` for ops of the
# host. A ``delay`` on either is neither: it stands for unexplained idle time.

_HOST_COPY: Final = re.compile(
    r"Memcpy (?!DtoD)|Device -> (Pinned|Pageable|Host)|(Pinned|Pageable|Host) -> Device"
    r"|Copy(DeviceToHost|HostToDevice)"
)
_NCCL: Final = re.compile(r"(nccl|rccl|c10d::)", re.IGNORECASE)


def has_key(graph: Graph, key: str) -> BoolArray:
    """Return which ops have an attribute."""
    mask = np.zeros(len(graph), np.bool_)
    mask[[*graph.attribute(key)]] = True
    return mask


def tasks(graph: Graph) -> BoolArray:
    """Return which ops ran on a GPU; all ops if the graph is not a recording.

    An op with neither stream nor thread ran there if other ops on devices of its name (``gpu`` for ``gpu3``)
    have streams.
    """
    streams, threads = has_key(graph, "stream"), has_key(graph, "thread")
    pins = [pin.rstrip("0123456789") for pin in graph.pins] + [""]  # the last one: no device
    gpu_pins = {pins[code] for code in np.unique(graph.pin_code[streams]).tolist()}
    if not threads.any():
        gpu_pins |= {""} if streams.any() else set(pins)
    on_gpu = np.array([pin in gpu_pins for pin in pins], np.bool_)[graph.pin_code]
    return (streams | (on_gpu & ~threads)) & ~graph.is_kind("delay")


def is_recording(graph: Graph) -> bool:
    """Whether a graph is a recording."""
    return bool((has_key(graph, "stream") | has_key(graph, "thread")).any())


def host_ops(graph: Graph) -> BoolArray:
    """Return which ops are the host's own work; its work before its recording began is unknown."""
    return has_key(graph, "thread") & ~graph.is_kind("before", "delay")


def launches(graph: Graph) -> BoolArray:
    """Return which ops are launch calls."""
    return has_key(graph, "thread") & graph.is_kind("launch")


def kernels(graph: Graph) -> BoolArray:
    """Return which ops of a GPU compute, including kernels that copy, cast or concatenate, but no memcpy."""
    return tasks(graph) & ~moving_kinds(graph) & ~collectives(graph)


def collectives(graph: Graph) -> BoolArray:
    """Return which ops communicate: those with a communicator, and kernels of NCCL (or RCCL).

    If the graph is not a recording, the kind of an op counts, too.
    """
    mask = has_key(graph, "communicator") | has_key(graph, "comm_type")
    if not is_recording(graph):
        mask |= graph.is_kind(*COMMUNICATION - {"copy", "transfer"})
    for op, facts in graph.attributes.items():
        mask[op] |= "stream" in facts and bool(_NCCL.match(str(facts.get("kernel", graph.op_names[op]))))
    return mask


def transfers(graph: Graph) -> BoolArray:
    """Return which ops copy between host and device, or between devices."""
    mask = np.zeros(len(graph), np.bool_)
    copies = graph.is_kind("copy")
    for op, facts in graph.attributes.items():
        text = str(facts.get("kernel", facts.get("full_name", "")))
        mask[op] = bool(copies[op]) and _HOST_COPY.search(text) is not None
    return mask


def pinned_to(graph: Graph, device: str) -> BoolArray:
    """Return which ops are pinned to a device, or to any device of a kind (``gpu``)."""
    matches = [pin == device or pin.rstrip("0123456789") == device for pin in graph.pins]
    return np.array([*matches, False], np.bool_)[graph.pin_code]


# ----------------------------------------------------------------------------------------------------------

GROUPS: Final[Mapping[str, Callable[[Graph], BoolArray]]] = {
    "gemm": lambda graph: graph.is_kind("matmul", "gemm"),
    "kernels": kernels,
    "transfers": transfers,
    "collectives": collectives,
}
"""Words for groups that no single attribute defines."""


class Names:
    """The names by which ops of a graph can be selected.

    Parameters
    ----------
    graph : Graph

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("two")
    >>> _ = b.op("mm.0", kind="matmul", attributes={"operator": "aten::mm"}); _ = b.op("add.1", kind="add")
    >>> Names(b.build()).find("*mm").tolist(), Names(b.build()).find("add").tolist()
    ([True, False], [False, True])
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        # Name → ops, except for kinds, devices and names of single ops.
        self._ops_by_name = group_pairs((_strip_number(name), op) for op, name in enumerate(graph.op_names))
        full = ("operator", "kernel", "full_name", "module")
        self._ops_by_full_name = group_pairs(
            (str(value), op) for key in full for op, value in graph.attribute(key).items()
        )
        for key in ("operator", "module"):
            for op, path in graph.attribute(key).items():
                for name in {*names_around(str(path)), *str(path).split("/")}:
                    self._ops_by_name.setdefault(name, []).append(op)

    def find(self, word: str) -> BoolArray:
        """Return which ops a word matches.

        Raises
        ------
        UnknownNameError
            No op matches; the message has the nearest name.
        InputError
            A pattern matches nothing, or a group is empty.
        """
        graph, mask = self._graph, np.zeros(len(self._graph), np.bool_)
        fits = re.compile(".*".join(".".join(map(re.escape, part.split("?"))) for part in word.split("*")))
        for names in (self._ops_by_name, self._ops_by_full_name):
            for name, ops in names.items():
                if fits.fullmatch(name):
                    mask[ops] = True
        mask[[op for op, name in enumerate(graph.op_names) if fits.fullmatch(name)]] = True
        mask |= graph.is_kind(*(kind for kind in graph.kinds if fits.fullmatch(kind)))
        mask |= pinned_to(graph, word) & ~graph.is_kind("before", "delay")
        if word in GROUPS:
            mask |= GROUPS[word](graph)
        if mask.any():
            return mask
        if "*" in word or "?" in word:
            raise InputError(f"no op, kernel, operator or kind fits the pattern {word!r}")
        if word in GROUPS:
            raise InputError(f"the recording has no {word}")
        groups = (name for name, ops_of in GROUPS.items() if ops_of(graph).any())
        choices = [*graph.kinds, *graph.pins, *self._ops_by_name, *groups]
        raise UnknownNameError("op, kind, kernel, operator or device", word, dict.fromkeys(choices))

    def find_each(self, words: Iterable[str]) -> Iterator[BoolArray]:
        """Yield which ops each word matches; an error has the number of its word as path."""
        for n, word in enumerate(words):
            with error_path(n):
                yield self.find(word)


def _strip_number(name: str) -> str:
    """Return the name that numbered ops share: ``gemm`` for ``rank3/gemm.17``."""
    return re.sub(r"^rank\d+/|[.#]\d+$", "", name)
