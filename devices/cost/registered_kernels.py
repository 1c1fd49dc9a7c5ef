"""Kernels that a user registers: for a kind of op, a kind of device and some data types, what it costs.

::

    entry point of group sim.kernels ──► Kernel(op="conv", device="npu", dtypes=("int8",), cost_ns=...)

    machine: {devices: {npu0: {kind: npu, cost: [kernels, roofline]}}}
                                                 │        └► what no kernel covers
                                                 └► `KernelCost`: op kind × device kind × data type → ns

A device whose cost model is ``kernels`` alone runs what there is a kernel for, and nothing else: a placement
puts an op only where one exists, as TensorFlow's registry of kernels has it
(tensorflow/core/framework/op_kernel.h, ``REGISTER_KERNEL_BUILDER``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from devices.describe.field_types import dtype_name
from sim.base import plugins
from sim.base.arrays import UNSET, IntArray
from sim.base.errors import InputError
from sim.base.options import require_call, whole_numbers
from sim.graph.graph import Graph
from sim.machine.device import CostModel, Device


@dataclass(frozen=True)
class KernelFacts:
    """What a kernel's cost may depend on.

    Attributes
    ----------
    name, kind : str
    dtype : str or None
    flops, bytes_read, bytes_written : int
    attributes : mapping
        Shapes and whatever else the graph carries.
    """

    name: str
    kind: str
    dtype: str | None
    flops: int
    bytes_read: int
    bytes_written: int
    attributes: Mapping[str, Any]


CostFunction = Callable[[KernelFacts, Device], int]


@dataclass(frozen=True)
class Kernel:
    """An implementation of an op.

    Attributes
    ----------
    op : str
        Kind of op.
    device : str
        Kind of device.
    dtypes : tuple of str
        Data types that it computes in; empty: any.
    cost_ns : callable
        ``cost_ns(op, device)`` returns whole nanoseconds.
    """

    op: str
    device: str
    dtypes: tuple[str, ...]
    cost_ns: CostFunction


def kernel(op: str, device: str, dtypes: Iterable[str] = ()) -> Callable[[CostFunction], Kernel]:
    """Make a function a kernel; register it under an entry point of the group ``sim.kernels``.

    Parameters
    ----------
    op, device : str
        Kinds of op and device.
    dtypes : iterable of str
        Data types; none: any.

    Examples
    --------
    >>> @kernel("conv", "npu", ["int8"])
    ... def conv_int8(op: KernelFacts, device: Device) -> int:
    ...     return op.flops // 100_000
    >>> conv_int8.op, conv_int8.dtypes
    ('conv', ('int8',))
    """

    def decorate(function: CostFunction) -> Kernel:
        return Kernel(op, device, tuple(dtype_name(dtype) for dtype in dtypes), function)

    return decorate


def kernels(parameters: Any = None, values: Mapping[str, Any] | None = None) -> KernelCost:
    """Return the cost model ``kernels``: all that are registered, or ``{kernels: [NAME, ...]}``.

    Raises
    ------
    UnknownNameError
        A name that nobody registered.
    InputError
        Something that is no kernel, two kernels for the same op, device and data type.
    """
    names = plugins.names("sim.kernels") if parameters is None else parameters
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise InputError(f"cost: kernels takes a list of names, found {names!r}")
    found = []
    for name in names:
        one = plugins.lookup("sim.kernels", name)
        if not isinstance(one, Kernel):
            raise InputError(
                f"kernel {name!r} is a {type(one).__name__}; make one with "
                "@devices.cost.registered_kernels.kernel(...)"
            )
        require_call(f"kernel {name!r}", one.cost_ns, "op", "device")
        found.append(one)
    return KernelCost(tuple(found))


class KernelCost(CostModel):
    """Durations by kernels; an op that none covers is unknown to it.

    Parameters
    ----------
    registered : tuple of Kernel

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> relu = kernel("relu", "gpu")(lambda op, device: op.bytes_written)
    >>> b = GraphBuilder("two")
    >>> _ = b.op("a", kind="relu", outputs=7), b.op("b", kind="conv")
    >>> KernelCost((relu,)).durations_ns(b.build(), Device("gpu0")).tolist()
    [7, -1]
    """

    def __init__(self, registered: tuple[Kernel, ...]) -> None:
        self.by_key: dict[tuple[str, str, str], Kernel] = {}
        for one in registered:
            for dtype in one.dtypes or ("",):
                key = (one.op, one.device, dtype)
                if key in self.by_key:
                    kernel = f"{one.op} on {one.device}" + (f" in {dtype}" if dtype else "")
                    raise InputError(f"there are two kernels for {kernel}; name one: {{kernels: [...]}}")
                self.by_key[key] = one

    def durations_ns(self, graph: Graph, device: Device) -> IntArray:
        """Return one duration per op in ns; -1 where there is no kernel.

        Raises
        ------
        InputError
            A kernel that returns something else than a whole number >= 0.
        """
        duration_ns = np.full(len(graph), UNSET)
        covered = [any(kind == op and device.kind == d for op, d, _ in self.by_key) for kind in graph.kinds]
        for op in np.flatnonzero(np.array(covered, dtype=bool)[graph.kind_code]).tolist():
            code = int(graph.dtype_code[op])
            facts = KernelFacts(
                graph.op_names[op],
                graph.kind(op),
                None if code == UNSET else dtype_name(graph.dtypes[code]),
                int(graph.flops[op]),
                int(graph.bytes_read[op]),
                int(graph.bytes_written[op]),
                graph.attributes.get(op, {}),
            )
            one = self.by_key.get((facts.kind, device.kind, facts.dtype or ""))
            one = one or self.by_key.get((facts.kind, device.kind, ""))
            if one is not None:
                ns = one.cost_ns(facts, device)
                source = f"the kernel for {facts.kind} on {device.kind}"
                duration_ns[op] = whole_numbers([ns], source, of=[facts.name])[0]
        return duration_ns
