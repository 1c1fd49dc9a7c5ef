"""Who made what a task reads: true dependencies between kernels, from the storages of operators' tensors.

::

    operator   reads        writes     kernels            needs
    mm         A, B         C          k0 k1              k1 after k0
    add_       C            C          k2                 k2 reads C of k1
    all_reduce C            C          k3, on stream 20   k3 reads C of k2: so stream 20 waits

An operator's first kernel on a stream reads what the operator reads, its last one there writes what it
writes, and each kernel between waits for the one before. A storage is read as its last writer left it. Who
writes a storage in place also waits for those that read it before. A storage that an operator only writes is
new memory, whatever was there: allocators use addresses again.

What PyTorch records of a tensor: id, id of its storage, offset, elements, bytes of an element, device
(torch/csrc/profiler/standalone/execution_trace_observer.cpp).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scenarios.importers.files import parts

Storage = tuple[str, int]
"""Where a tensor lies: device, and the number of the storage."""


class Tensor(NamedTuple):
    """A tensor of an operator."""

    storage: Storage
    nbytes: int

    @property
    def on_host(self) -> bool:
        """Whether it lies in the host's memory."""
        return self.storage[0].startswith(("cpu", "meta"))


class Touch(NamedTuple):
    """A task, and what its operator touches.

    Attributes
    ----------
    operator : hashable or None
        Tasks of one call of an operator have the same, if they are on one stream; None: unknown.
    reads, writes : sequence of Tensor
    """

    operator: Hashable
    reads: Sequence[Tensor] = ()
    writes: Sequence[Tensor] = ()


def written_arguments(schema: str) -> list[int]:
    """Return which arguments an operator writes in place, by its schema.

    Examples
    --------
    >>> written_arguments("aten::_foreach_add_.List(Tensor(a!)[] self, Tensor[] other, *, Scalar c=1) -> ()")
    [0]
    """
    positions = [argument for argument in parts(schema.partition("(")[2]) if argument != "*"]
    return [i for i, argument in enumerate(positions) if "!)" in argument]


@dataclass
class TaskFlow:
    """What a task needs and makes.

    Attributes
    ----------
    inputs : list of (int, int)
        Task, and which of its outputs.
    after : list of int
        Tasks that read what this one writes over.
    outputs : list of int
        Bytes of each tensor that a later task reads.
    """

    inputs: list[tuple[int, int]] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def numbered(self, tasks: Sequence[int]) -> TaskFlow:
        """Return it with other numbers of tasks."""
        inputs = [(tasks[n], k) for n, k in self.inputs]
        return TaskFlow(inputs, [tasks[n] for n in self.after], self.outputs)


@dataclass
class _Content:
    """What a storage holds: the task that wrote it, and which of its outputs it is."""

    task: int
    nbytes: int
    output: int = -1


def tensor_flow(tasks: Sequence[Touch]) -> list[TaskFlow]:
    """Return what each task needs of the others; only earlier ones are needed.

    Parameters
    ----------
    tasks : sequence of Touch
        In the order in which they were launched. Tensors in the host's memory do not count: tasks of a GPU
        do not wait for them.

    Examples
    --------
    >>> c = Tensor(("cuda:0", 1), 64)
    >>> tensor_flow([Touch("mm", [], [c]), Touch("mm", [], [c]), Touch("add", [c], [])])[2].inputs
    [(1, 0)]
    """
    flows = [TaskFlow() for _ in tasks]
    last = {task.operator: i for i, task in enumerate(tasks)}
    before: dict[Hashable, int] = {}
    held: dict[Storage, _Content] = {}
    readers: dict[Storage, list[int]] = defaultdict(list)
    """Who has read a storage since it was written."""
    for i, task in enumerate(tasks):
        if task.operator is None:
            continue
        reads = {one.storage for one in task.reads if not one.on_host}
        if task.operator in before:
            flows[i].inputs.append((before[task.operator], len(flows[before[task.operator]].outputs)))
            flows[before[task.operator]].outputs.append(0)
        else:
            for storage in dict.fromkeys(one.storage for one in task.reads if one.storage in reads):
                if (content := held.get(storage)) is not None:
                    flows[i].inputs.append(_read(flows, content))
                readers[storage].append(last[task.operator])
        before[task.operator] = i
        if last[task.operator] == i:
            sizes: dict[Storage, int] = {}
            for one in task.writes:
                if not one.on_host:
                    sizes[one.storage] = max(one.nbytes, sizes.get(one.storage, 0))
            for storage, nbytes in sizes.items():
                before_it = readers.pop(storage, [])
                if storage in reads:
                    flows[i].after += [reader for reader in before_it if reader < i]
                held[storage] = _Content(i, nbytes)
    return flows


def _read(flows: Sequence[TaskFlow], content: _Content) -> tuple[int, int]:
    """Return where a content comes from, an output of its task from now on."""
    outputs = flows[content.task].outputs
    if content.output < 0:
        content.output = len(outputs)
        outputs.append(content.nbytes)
    return content.task, content.output
