"""What a Chakra trace leaves out: the order on each stream and thread, and waits between them.

Its dependencies say who launched a kernel, not what the kernel had to wait for on the GPU; by them alone
every collective runs at once (https://github.com/mlcommons/chakra/pull/126, issue 215)::

    thread 1    mm ──► all_reduce ──► item ──────────► add     in order; after what is read back
                │          │            │               ▲
    stream 7    └► k0 ─ ─ ┐└──┐         └► copy to host ┘      in order
    stream 20             └ ─ ┴► nccl                          after what its thread launched before

* **Order** is that of recorded starts, where all nodes have one; else of ids, which the PyTorch observer
  gives
  out as operators begin. A kernel counts when the host's op begins that launched it: of those that it depends
  on, the last. No op comes before what it depends on.
* **A stream, a thread** runs its ops in that order.
* **A collective of PyTorch** waits for the kernel that its thread launched last: its stream waits for an
  event
  on the thread's current stream (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp,
  ``syncStream``).
* **Who reads a tensor** waits for the kernel that wrote it, on whatever stream (`tensor_flow`). Written are
  an operator's outputs, the arguments that its schema marks so (``Tensor(a!)``), and what a collective reads:
  this is how the optimizer waits for the gradients' all-reduce, as the trace does not say where the program
  called ``wait``.
* **What reads back**: the host's next op waits for a copy to pageable memory, or of ``.item()``. The op that
  launches it was recorded with that wait in it. It keeps what launching ops of the trace take, in the median.
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

from scenarios.importers.chakra.chakra_nodes import Node, arguments
from scenarios.importers.execution_graph.tensor_flow import (
    Flow,
    Tensor,
    Touch,
    tensor_flow,
    written_arguments,
)

__all__ = ["Order"]

_BACK: Final = re.compile(r"(DtoH|DeviceToHost).*Pageable", re.I)
_TO_HOST: Final = re.compile(r"DtoH|DeviceToHost", re.I)
_ITEM: Final = re.compile(r"_local_scalar_dense|aten::item\b")
_COMMUNICATES: Final = frozenset({"collective", "send", "recv"})


class Order:
    """The order of the nodes of a trace.

    Parameters
    ----------
    nodes : sequence of Node
    needs : sequence of sequence of int
        What each depends on by the trace.
    pytorch : bool
        Whether PyTorch was recorded.

    Attributes
    ----------
    lanes : list
        Device, and stream or thread, of each node; None: unknown.
    launcher : list of int or None
        Which op of the host launched a kernel.
    """

    def __init__(self, nodes: Sequence[Node], needs: Sequence[Sequence[int]], pytorch: bool) -> None:
        self._nodes, self._needs, self._pytorch = nodes, needs, pytorch
        self._timed = all(node.start_ns is not None for node in nodes)
        self.lanes = [_lane(node) for node in nodes]
        self.launcher: list[int | None] = [
            None
            if _on_host(node)
            else max((d for d in own if _on_host(nodes[d])), key=self._began, default=None)
            for node, own in zip(nodes, needs, strict=True)
        ]

    def _began(self, i: int) -> int:
        node = self._nodes[i]
        return node.start_ns if self._timed and node.start_ns is not None else node.id

    @cached_property
    def issued(self) -> list[int]:
        """The nodes in order; those that depend on themselves have no place in it."""
        nodes, launcher = self._nodes, self.launcher

        def key(i: int) -> tuple[int, int, int]:
            launched = launcher[i]
            began = self._began(i if self._timed or launched is None else launched)
            return began, launched is not None, nodes[i].id

        waiting = [len(set(own)) for own in self._needs]
        followers: dict[int, list[int]] = defaultdict(list)
        for i, own in enumerate(self._needs):
            for other in set(own):
                followers[other].append(i)
        ready = [(key(i), i) for i, left in enumerate(waiting) if not left]
        heapq.heapify(ready)
        order = []
        while ready:
            _, i = heapq.heappop(ready)
            order.append(i)
            for follower in followers[i]:
                waiting[follower] -= 1
                if not waiting[follower]:
                    heapq.heappush(ready, (key(follower), follower))
        return order

    @cached_property
    def before(self) -> list[list[int]]:
        """What each node waits for that the trace does not say."""
        found: list[list[int]] = [[] for _ in self._nodes]
        if len(self.issued) < len(self._nodes):  # a cycle: nothing is added to what the trace says
            return found
        last: dict[Hashable, int] = {}
        computing: dict[Hashable, int] = {}
        awaited: dict[Hashable, list[int]] = defaultdict(list)
        for i in self.issued:
            lane = self.lanes[i]
            if lane is not None:
                found[i] += [last[lane]] if lane in last else []
                last[lane] = i
            launched = self.launcher[i]
            thread = lane if launched is None else self.lanes[launched]
            if _on_host(self._nodes[i]):
                found[i] += awaited.pop(thread, [])
            elif self._nodes[i].type in _COMMUNICATES:
                if self._pytorch and thread in computing and self.lanes[computing[thread]] != lane:
                    found[i].append(computing[thread])
            elif launched is not None:
                computing[thread] = i
                if self.reads_back(i):
                    awaited[thread].append(i)
        return found

    def reads_back(self, i: int) -> bool:
        """Whether a task is a copy that the host waits for."""
        name, launched = self._nodes[i].name, self.launcher[i]
        if launched is None or not self._pytorch:
            return False
        return bool(
            _BACK.search(name) or (_TO_HOST.search(name) and _ITEM.search(self._nodes[launched].name))
        )

    @cached_property
    def flows(self) -> Mapping[int, Flow]:
        """What kernels need of one another, by the tensors of their operators; counted as nodes."""
        if not self._pytorch or len(self.issued) < len(self._nodes):
            return {}
        kernels = [i for i in self.issued if not _on_host(self._nodes[i])]
        touches = [Touch(self._operator(i), self._nodes[i].reads, self._writes(i)) for i in kernels]
        flows = tensor_flow(touches)
        return {
            i: Flow(
                [(kernels[task], k) for task, k in flow.inputs],
                [kernels[k] for k in flow.after],
                flow.outputs,
            )
            for i, flow in zip(kernels, flows, strict=True)
        }

    def _writes(self, i: int) -> list[Tensor]:
        """Return the recorded outputs of a task, and what it writes in place."""
        node, launched = self._nodes[i], self.launcher[i]
        if node.type in _COMMUNICATES and not node.writes:
            return node.reads
        schemas = (self._nodes[k].attributes.get("op_schema", "") for k in (i, launched) if k is not None)
        schema = next((text for text in schemas if text), "")
        if "!)" not in schema:
            return node.writes
        given = arguments(node.values)
        return [*node.writes, *(one for k in written_arguments(schema) if k < len(given) for one in given[k])]

    def _operator(self, i: int) -> Hashable:
        """Return which call of an operator launched a task, and on which stream."""
        launched = self.launcher[i]
        for node in (i, launched):
            if node is not None and (number := self._nodes[node].attributes.get("rf_id")):
                return "rf", number, self.lanes[i]
        return None if launched is None else ("id", launched, self.lanes[i])

    def durations_ns(self) -> Iterator[tuple[int, int, int]]:
        """Yield the ops of the host that waited: which, what they take themselves, and what they waited."""
        launching = {launched for i, launched in enumerate(self.launcher) if launched is not None}
        waiting = {self.launcher[i] for i in range(len(self._nodes)) if self.reads_back(i)}
        own = sorted(self._nodes[i].duration_ns for i in launching - waiting)
        usual = own[len(own) // 2] if own else 0
        for i in sorted(launching & waiting):
            recorded = self._nodes[i].duration_ns
            yield i, min(usual, recorded), max(0, recorded - usual)


def _on_host(node: Node) -> bool:
    return bool(node.attributes.get("is_cpu_op", False))


def _lane(node: Node) -> tuple[str, int] | None:
    """Return where a node runs: the converter writes the thread of the launch beside a kernel's stream."""
    names = ("tid",) if _on_host(node) else ("stream", "tid")
    number = next((node.attributes[name] for name in names if name in node.attributes), None)
    return None if not isinstance(number, int) else ("thread" if _on_host(node) else "stream", number)
