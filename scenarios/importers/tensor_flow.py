"""Find which task made what a task reads: true dependencies between kernels, from operators' tensors.

::

    operator   reads        writes     kernels            needs
    mm         A, B         C          k0 k1              k1 after k0
    add_       C            C          k2                 k2 reads C of k1
    all_reduce C            C          k3, on stream 20   k3 reads C of k2: so stream 20 waits

An operator's first kernel on a stream reads the operator's inputs, its last one there writes its
outputs, and each kernel between waits for the one before. A read gets what the last writer left. A writer
in place also waits for earlier readers of the storage. A storage that an operator only writes is
new memory, whatever was there: allocators reuse addresses.

PyTorch records of a tensor: id, id of its storage, offset, elements, bytes per element, device
(torch/csrc/profiler/standalone/execution_trace_observer.cpp).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scenarios.importers.files import parts

Storage = tuple[str, int]
"""Location of a tensor: device, and number of the storage."""


class Tensor(NamedTuple):
    """A tensor of an operator."""

    storage: Storage
    nbytes: int

    @property
    def on_host(self) -> bool:
        """Whether it is in the host's memory."""
        return self.storage[0].startswith(("cpu", "meta"))


class Touch(NamedTuple):
    """A task, and the tensors that its operator reads and writes.

    Attributes
    ----------
    operator : hashable or None
        Shared by the tasks of one call of an operator on one stream; None: unknown.
    reads, writes : sequence of Tensor
    """

    operator: Hashable
    reads: Sequence[Tensor] = ()
    writes: Sequence[Tensor] = ()


def written_arguments(schema: str) -> list[int]:
    """Return the positions of the arguments that an operator writes in place, by its schema.

    Examples
    --------
    >>> written_arguments("aten::_foreach_add_.List(Tensor(a!)[] self, Tensor[] other, *, Scalar c=1) -> ()")
    [0]
    """
    positions = [argument for argument in parts(schema.partition("(")[2]) if argument != "*"]
    return [i for i, argument in enumerate(positions) if "!)" in argument]


@dataclass
class TaskFlow:
    """Dependencies and outputs of a task.

    Attributes
    ----------
    inputs : list of (int, int)
        Task, and number of its output.
    after : list of int
        Tasks that read what this one overwrites.
    outputs : list of int
        Bytes of each tensor that a later task reads.
    """

    inputs: list[tuple[int, int]] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def renumber(self, tasks: Sequence[int]) -> TaskFlow:
        """Return the same with tasks renumbered."""
        inputs = [(tasks[n], k) for n, k in self.inputs]
        return TaskFlow(inputs, [tasks[n] for n in self.after], self.outputs)


def tensor_flow(tasks: Sequence[Touch]) -> list[TaskFlow]:
    """Return the dependencies of each task on earlier ones.

    Parameters
    ----------
    tasks : sequence of Touch
        In order of launch. Tensors in the host's memory do not count: tasks of a GPU
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
    last_write: dict[Storage, tuple[int, int]] = {}
    """The task that wrote what a storage holds, and its bytes."""
    numbers: dict[tuple[int, Storage], int] = {}
    """Of what a task wrote to a storage: the number of its output, if another task has read it."""
    readers: dict[Storage, list[int]] = defaultdict(list)
    """Tasks that have read a storage since it was written."""
    for i, task in enumerate(tasks):
        if task.operator is None:
            continue
        reads = {tensor.storage for tensor in task.reads if not tensor.on_host}
        if task.operator in before:
            flows[i].inputs.append((before[task.operator], len(flows[before[task.operator]].outputs)))
            flows[before[task.operator]].outputs.append(0)
        else:
            for storage in dict.fromkeys(tensor.storage for tensor in task.reads if tensor.storage in reads):
                if storage in last_write:
                    writer, nbytes = last_write[storage]
                    outputs = flows[writer].outputs
                    number = numbers.setdefault((writer, storage), len(outputs))
                    outputs += [nbytes] if number == len(outputs) else []
                    flows[i].inputs.append((writer, number))
                readers[storage].append(last[task.operator])
        before[task.operator] = i
        if last[task.operator] == i:
            sizes: dict[Storage, int] = {}
            for tensor in task.writes:
                if not tensor.on_host:
                    sizes[tensor.storage] = max(tensor.nbytes, sizes.get(tensor.storage, 0))
            for storage, nbytes in sizes.items():
                earlier = readers.pop(storage, [])
                if storage in reads:
                    flows[i].after += [reader for reader in earlier if reader < i]
                last_write[storage] = i, nbytes
    return flows
