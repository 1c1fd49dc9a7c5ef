"""The computation graph: immutable columns, with adjacency in compressed sparse rows both ways.

A graph is built once and read many times, so it is stored in numpy columns: one array per fact, one
row per op, and ``indptr``/``indices`` pairs for the edges (`Csr`). A million ops take a few hundred
megabytes and a few seconds; no op is a Python object.

::

    op 0 ──tensor 0──► op 1          outputs:   op     → its tensors      (Csr, contiguous)
      │ └──tensor 0──► op 2          inputs:    op     → tensors it reads (Csr, input order)
      └╌╌╌╌control╌╌╌► op 3          after:     op     → ops it follows   (Csr, control edges)
                                     consumers: tensor → ops that read it (Csr)
                                     successors, predecessors: op → ops   (Csr, data edges first)

The order of every row is the order in which the edges were added, because runtimes depend on it:
TensorFlow's executor, for example, activates data edges before control edges, each in that order.
"""

from __future__ import annotations

import copyreg
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sim.base.arrays import UNSET, BoolArray, Csr, IntArray, freeze, frozen_property
from sim.base.errors import GraphError, InputError, UnknownNameError
from sim.base.units import format_bytes, format_count, format_duration, format_flops
from sim.graph.walks import Dag, Edges, a_cycle, least_index_first
from sim.notebook import card, filled_columns

_DIGITS: Final = 20
"""Output numbers have fewer digits than this."""


def _read_only(mapping: Mapping[Any, Any]) -> MappingProxyType[Any, Any]:
    return mapping if isinstance(mapping, MappingProxyType) else MappingProxyType(mapping)


copyreg.pickle(MappingProxyType, lambda proxy: (_read_only, (dict(proxy),)))


def output_name(op: str, k: int) -> str:
    """Return the name of output `k` of an op: ``op`` for the first, ``op:1`` for the second.

    Examples
    --------
    >>> output_name("split", 0), output_name("split", 2)
    ('split', 'split:2')
    """
    return f"{op}:{k}" if k else op


def split_output(name: str) -> tuple[str, int] | None:
    """Return the op and output of ``op:k``; None for any other name.

    Examples
    --------
    >>> split_output("split:2"), split_output("split")
    (('split', 2), None)
    """
    op, colon, k = name.rpartition(":")
    return (op, int(k)) if colon and k.isdecimal() and len(k) < _DIGITS else None


class Role:
    """The role of a tensor (`Graph.tensor_role`): op outputs are activations."""

    ACTIVATION = 0
    INPUT = 1
    PARAMETER = 2


@dataclass(frozen=True, eq=False)
class Graph:
    """A computation graph; build one with `sim.GraphBuilder`.

    Every array has one entry per op unless it says otherwise; -1 (`UNSET`) means "not given".

    Attributes
    ----------
    name : str
        The name of the graph.
    op_names : tuple of str
        Unique names.
    kinds, kind_code : tuple of str, array
        Vocabulary of op kinds (``"matmul"``, ...) and the code of each op in it.
    dtypes, dtype_code : tuple of str, array
        The same for the data type the op computes in; -1 when not given.
    pins, pin_code : tuple of str, array
        The same for the device name, or device kind, an op is pinned to; -1 when free.
    flops, bytes_read, bytes_written : array of int64
        Cost facts. Bytes not given default to the sizes of the tensors read and written.
    duration_ns : array of int64
        Explicit duration, or -1: the device's cost model gives it.
    duration_by_kind : mapping of str to array of int64
        Explicit durations for a kind of device (``{"cpu": ...}``), or for the device of that name; -1 where
        not given.
    stage, micro_batch : array of int64
        Pipeline stage and micro-batch, or -1.
    phases, phase_code : tuple of str, array
        Pipeline phase letters (F, B, I, W, R) and the code of each op, or -1.
    outputs : Csr
        op → its output tensors; every op has at least one, of 0 bytes if none was declared.
    inputs, input_distance : Csr, array
        op → tensors it reads, and per entry how many iterations earlier they were produced.
    after, after_distance : Csr, array
        op → ops it follows by a control edge, and the distance of each edge.
    tensor_producer, tensor_nbytes, tensor_role, tensor_pin : arrays, one entry per tensor
        Producing op (-1: a graph input or parameter), size, `Role`, and for an input the code
        in `pins` of the device that holds it before time 0 (-1: wherever it is read).
    external_names : tuple of str
        Names of the tensors without a producer, which come first in the tensor columns.
    attributes : mapping of int to dict
        op → further attributes, for the ops that have any.
    device_facts : mapping of str to mapping
        Pin → what the source of the graph knows about that device, in the terms of a machine description:
        ``{"gpu": {"gap": "1200ns"}}`` for a recording.
    machine : mapping
        The machine to run on, if the source specifies one, in the terms of a machine description.
    """

    name: str
    op_names: Sequence[str]
    kinds: tuple[str, ...]
    kind_code: IntArray
    dtypes: tuple[str, ...]
    dtype_code: IntArray
    pins: tuple[str, ...]
    pin_code: IntArray
    flops: IntArray
    bytes_read: IntArray
    bytes_written: IntArray
    duration_ns: IntArray
    duration_by_kind: Mapping[str, IntArray]
    stage: IntArray
    micro_batch: IntArray
    phases: tuple[str, ...]
    phase_code: IntArray
    outputs: Csr
    inputs: Csr
    input_distance: IntArray
    after: Csr
    after_distance: IntArray
    tensor_producer: IntArray
    tensor_nbytes: IntArray
    tensor_role: IntArray
    tensor_pin: IntArray
    external_names: Sequence[str]
    attributes: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    device_facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make everything read-only: later runs share it."""
        freeze(*vars(self).values(), *self.duration_by_kind.values())
        if not isinstance(self.attributes, MappingProxyType):  # those of another graph are read-only
            frozen = {id(mapping): _read_only(mapping) for mapping in self.attributes.values()}
            attributes = _read_only({op: frozen[id(mapping)] for op, mapping in self.attributes.items()})
            object.__setattr__(self, "attributes", attributes)
        for names in ("op_names", "external_names"):
            object.__setattr__(self, names, tuple(getattr(self, names)))

    def __len__(self) -> int:
        """Return the number of ops."""
        return len(self.op_names)

    def __repr__(self) -> str:
        """Return the name and the sizes."""
        return f"<Graph {self.name!r}: {self._sizes}>"

    @property
    def _sizes(self) -> str:
        counts = {"op": len(self), "tensor": self.n_tensors, "edge": self.n_edges}
        return ", ".join(format_count(n, noun) for noun, n in counts.items())

    def _repr_html_(self) -> str:
        """Return the notebook display: sizes, and the ops of each kind, the most frequent first."""
        parameters = int(self.tensor_nbytes[self.tensor_role == Role.PARAMETER].sum())
        nbytes = self.outputs.sums(self.tensor_nbytes)

        def of_kind(code: int) -> dict[str, str]:
            ops = self.kind_code == code
            flops, size, ns = (int(col[ops].clip(0).sum()) for col in (self.flops, nbytes, self.duration_ns))
            return {
                "kind": self.kinds[code],
                "ops": f"{ops.sum():,}",
                "flops": format_flops(flops) if flops else "",
                "outputs": format_bytes(size) if size else "",
                "duration": format_duration(ns) if ns else "",
            }

        count = np.bincount(self.kind_code, minlength=len(self.kinds))
        rows = [of_kind(code) for code in np.argsort(-count, kind="stable").tolist() if count[code]]
        suffix = f", {format_bytes(parameters)} of parameters" if parameters else ""
        return card(f"Graph {self.name}", [self._sizes + suffix], filled_columns(rows))

    @property
    def n_tensors(self) -> int:
        """Number of tensors, including graph inputs and parameters."""
        return len(self.tensor_nbytes)

    @property
    def n_edges(self) -> int:
        """Number of edges between ops, data and control."""
        return len(self.edges.producer)

    # -- names ------------------------------------------------------------------------------

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.op_names)}

    def index(self, name: str) -> int:
        """Return the index of the op called `name`.

        Raises
        ------
        UnknownNameError
            There is none; the message has the nearest name.
        """
        try:
            return self._index[name]
        except KeyError:
            raise UnknownNameError("op", name, self.op_names) from None

    def kind(self, op: int) -> str:
        """Return the kind of op `op`."""
        return self.kinds[int(self.kind_code[op])]

    def fault(self, op: int, message: str, attribute: str | None = None) -> GraphError:
        """Return the error that something is wrong with an op, or with one of its attributes."""
        name = self.op_names[op]
        return GraphError(f"{self.kind(op)} {name!r} {message}").about(name, attribute)

    def given_ns(self, kind: str, name: str) -> IntArray:
        """Return each op's explicit duration on a device: by its name, else its kind, else any; -1: none."""
        ns = self.duration_ns
        for word in (kind, name):
            if (specific := self.duration_by_kind.get(word)) is not None:
                ns = np.where(specific == UNSET, ns, specific)
        return ns

    def longest_ns(self) -> IntArray:
        """Return each op's longest explicit duration on any device; -1: none."""
        longest: IntArray = np.maximum.reduce([self.duration_ns, *self.duration_by_kind.values()])
        return longest

    def is_kind(self, *kinds: str) -> BoolArray:
        """Return a mask of the ops of the given kinds."""
        return np.array([kind in kinds for kind in self.kinds], bool)[self.kind_code]

    def tensor_name(self, tensor: int) -> str:
        """Return ``op`` for an op's first output, ``op:k`` for the others, or the name of an input."""
        producer = int(self.tensor_producer[tensor])
        if producer < 0:
            return self.external_names[tensor]
        return output_name(self.op_names[producer], tensor - int(self.first_output[producer]))

    def tensor_names(self) -> list[str]:
        """Return the `tensor_name` of each tensor: inputs first, then the outputs of each op."""
        outputs = zip(self.op_names, self.outputs.counts().tolist(), strict=True)
        return [*self.external_names, *(output_name(op, k) for op, count in outputs for k in range(count))]

    @frozen_property
    def first_output(self) -> IntArray:
        """The tensor that is output 0 of each op; the other outputs have the next numbers."""
        return self.outputs.indices[self.outputs.indptr[:-1]]

    @cached_property
    def in_communicators(self) -> list[int]:
        """The ops that name a communicator."""
        return [*self.attribute("communicator")]

    def attribute(self, name: str) -> Mapping[int, Any]:
        """Return an attribute of the ops that have it, in op order.

        Examples
        --------
        >>> from sim import GraphBuilder
        >>> b = GraphBuilder("one of two")
        >>> _ = b.op("a"), b.op("b", attributes={"cores": 2})
        >>> dict(b.build().attribute("cores"))
        {1: 2}
        """
        if name not in self._attribute_names:
            return {}
        if name not in self._attribute_cache:
            values = ((op, attrs[name]) for op, attrs in self.attributes.items() if name in attrs)
            self._attribute_cache[name] = MappingProxyType(dict(sorted(values, key=itemgetter(0))))
        return self._attribute_cache[name]

    @cached_property
    def _attribute_names(self) -> set[str]:
        """The names of all attributes in use; ops may share their mapping."""
        return set().union(*{id(mapping): mapping for mapping in self.attributes.values()}.values())

    def column(self, name: str, otherwise: Any = 0) -> npt.NDArray[Any]:
        """Return a numeric attribute as one value per op, with `otherwise` for ops that lack it.

        Parameters
        ----------
        name : str
            A key of the ops' `attributes`, not a column of the graph such as `flops`.
        otherwise : number or array
            One default for all ops, or one per op.

        Raises
        ------
        InputError
            No op has such an attribute, and a column of the graph is called so.

        Examples
        --------
        >>> from sim import GraphBuilder
        >>> b = GraphBuilder("one of two")
        >>> _ = b.op("a"), b.op("b", attributes={"cores": 2})
        >>> b.build().column("cores", 1).tolist()
        [1, 2]
        """
        column, values = np.array(np.broadcast_to(otherwise, len(self))), self.attribute(name)
        if not values and name in self.__dataclass_fields__:
            raise InputError(f"no op has an attribute {name!r}: read the graph's own column, graph.{name}")
        column[[*values]] = [*values.values()]
        return column

    @cached_property
    def _attribute_cache(self) -> dict[str, Mapping[int, Any]]:
        """Cache of the attributes already requested, by name."""
        return {}

    # -- edges ------------------------------------------------------------------------------

    @frozen_property
    def edges(self) -> Edges:
        """All edges between ops: data edges, then control edges, each in the order added."""
        consumer = self.inputs.rows()
        producer = self.tensor_producer[self.inputs.indices]
        of_ops = producer.min(initial=0) >= 0
        if of_ops and not len(self.after.indices):
            return Edges(producer, consumer, self.input_distance, self.inputs.indices)
        data = slice(None) if of_ops else producer >= 0
        follower = self.after.rows()
        return Edges(
            np.concatenate((producer[data], self.after.indices)),
            np.concatenate((consumer[data], follower)),
            np.concatenate((self.input_distance[data], self.after_distance)),
            np.concatenate((self.inputs.indices[data], np.full(len(follower), UNSET))),
        )

    @frozen_property
    def successors(self) -> Csr:
        """op → consumers, data edges first; a consumer that reads two tensors of the op appears twice."""
        return Csr.group(self.edges.producer, self.edges.consumer, len(self))

    @frozen_property
    def predecessors(self) -> Csr:
        """op → producers, data edges first."""
        return Csr.group(self.edges.consumer, self.edges.producer, len(self))

    @frozen_property
    def consumers(self) -> Csr:
        """tensor → ops that read it; an op that reads it twice appears twice."""
        return Csr.group(self.inputs.indices, self.inputs.rows(), self.n_tensors)

    @frozen_property
    def topological_order(self) -> IntArray:
        """One topological order (edges of distance 0).

        Among the ops whose producers are all placed, the one with the least index comes first.
        """
        order = least_index_first(self.edges, len(self))
        if order is None:
            raise _cycle_error(self)
        return order

    def dag(self) -> Dag:
        """Return the edges of distance 0 as plain lists."""
        return Dag.of(self.edges, len(self))


def _cycle_error(graph: Graph) -> GraphError:
    """Return an error that names one cycle of `graph` (which must have one).

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("loop")
    >>> _ = b.op("a", inputs=["b"]); _ = b.op("b", inputs=["a"])
    >>> b.build()
    Traceback (most recent call last):
        ...
    sim.base.errors.GraphError: graph 'loop' has a cycle: a -> b -> a
    """
    names = [graph.op_names[i] for i in a_cycle(dict(enumerate(graph.dag().predecessors)))]
    if len(names) > 12:
        names = [*names[:6], f"... {len(names) - 11} more ...", *names[-5:]]
    return GraphError(f"graph {graph.name!r} has a cycle: " + " -> ".join(names)).about(names[0])


def longest_path_ns(graph: Graph, duration_ns: Sequence[int] | IntArray) -> IntArray:
    """Return for each op the length of the longest path from it to the end, including its own duration.

    This is the *bottom level* of list scheduling; only edges of distance 0 count, without delay.

    Parameters
    ----------
    graph : Graph
    duration_ns : sequence of int
        One duration per op.

    Returns
    -------
    array of int64
        Bottom level of every op, in ns.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("v")
    >>> for name, inputs in {"a": [], "b": ["a"], "c": ["a"]}.items():
    ...     _ = b.op(name, inputs=inputs)
    >>> longest_path_ns(b.build(), [1, 5, 2]).tolist()
    [6, 5, 2]
    """
    edges = graph.edges.within_iteration()
    succ = Csr.group(edges.producer, edges.consumer, len(graph)).lists()
    durations = np.asarray(duration_ns).tolist()
    level = [0] * len(durations)
    for op in reversed(graph.topological_order.tolist()):
        level[op] = durations[op] + max([level[s] for s in succ[op]], default=0)
    return np.array(level, dtype=np.int64)
