"""How long kernels take on one kind of GPU: peak rates, efficiencies, bandwidths, measured shapes.

::

    Product     flop / (peak · efficiency)  +  bytes / (memory · efficiency)  +  gap      a smooth roofline
                flop / (peak · measured)    +  gap                                where its shape was measured
    Attention   the same, with efficiencies of its own forward and backward
    Pass        bytes / (memory · efficiency)  +  gap
    Collective  contention · what `devices.collectives.groups` says of it alone

    all of it   / sustained                 clock under a long load / clock of the short measurements

A calibration is a YAML or JSON file in these fields, a preset, or the system file of SimuMax
(`scenarios.workloads.calibrations`). The cost model of a device can stand in the place of the formulas of
kernels (`scenarios.builders.builder`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from devices.collectives.groups import CollectiveKind, GroupCollectives, NodeFabrics, RankGroup
from scenarios.builders.train.kernels import Attention, Collective, Pass, Product
from sim.base.units import NS_PER_S

KernelTime = Callable[[Product | Attention | Pass], float]
"""``time(kernel)`` in ns, gap included: what the cost model of a device offers."""


@dataclass(frozen=True)
class TrainingCalibration:
    """What one kind of GPU reaches.

    Attributes
    ----------
    name : str
    peak : float
        In flop/s, of the precision of the products.
    memory_bandwidth : float
        In bytes/s.
    memory : int or None
        Bytes that a rank may use.
    product, attention_forward, attention_backward : float
        Efficiency of what was not measured.
    pass_efficiency : mapping
        Part of the memory's bandwidth, by what a pass is for; ``elementwise`` for the others.
    gap_ns : float
        Between two kernels, and for the first one to fill the GPU.
    sustained : float
        Rate of products and attention under a long load / that of the measurements.
    contention : float
        Time of a collective among the kernels of a step / time of the collective alone.
    hiding : float
        The part of a collective that passes unnoticed while a kernel runs beside it; the rest slows both.
    collectives : GroupCollectives
        How long a collective alone takes.
    measured : mapping
        Efficiency of single shapes.
    kernel : callable, optional
        Replaces the formulas of kernels: see `KernelTime`.
    """

    name: str
    peak: float
    memory_bandwidth: float
    collectives: GroupCollectives = field(default_factory=NodeFabrics)
    memory: int | None = None
    product: float = 1.0
    attention_forward: float = 1.0
    attention_backward: float = 1.0
    pass_efficiency: Mapping[str, float] = field(default_factory=dict)
    gap_ns: float = 0.0
    sustained: float = 1.0
    contention: float = 1.0
    hiding: float = 1.0
    measured: Mapping[Product | Attention, float] = field(default_factory=dict)
    roofline: bool = True
    kernel: KernelTime | None = None

    def kernel_ns(self, kernel: Product | Attention | Pass) -> float:
        """Return the time of a kernel."""
        if self.kernel is not None:
            return self.kernel(kernel)
        if isinstance(kernel, Pass):
            return self.pass_ns(kernel.nbytes, kernel.of)
        found = self.measured.get(kernel)
        if found is not None:
            return kernel.flops / (self.peak * found * self.sustained) * NS_PER_S + self.gap_ns
        if isinstance(kernel, Product):
            efficiency, nbytes = self.product, 2 * kernel.elements
        else:
            efficiency = self.attention_backward if kernel.backward else self.attention_forward
            rows = kernel.batch * kernel.sequence // kernel.parts
            nbytes = 4 * rows * (kernel.heads + kernel.kv_heads) * kernel.query_head * (1 + kernel.backward)
        moved = (
            nbytes / (self.memory_bandwidth * self._pass_efficiency("elementwise")) if self.roofline else 0.0
        )
        return (kernel.flops / (self.peak * efficiency * self.sustained) + moved) * NS_PER_S + self.gap_ns

    def _pass_efficiency(self, of: str) -> float:
        return self.pass_efficiency.get(of, self.pass_efficiency.get("elementwise", 1.0))

    def pass_ns(self, nbytes: int, of: str = "elementwise") -> float:
        """Return the time of reading and writing so many bytes."""
        if self.kernel is not None:
            return self.kernel(Pass(nbytes, of))
        return nbytes / (self.memory_bandwidth * self._pass_efficiency(of)) * NS_PER_S + self.gap_ns

    def collective_ns(self, kind: CollectiveKind, nbytes: int, group: RankGroup) -> float:
        """Return the time of a collective of a group."""
        if group.size == 1 or not nbytes:
            return 0.0
        return self.contention * self.collectives.time_ns(kind, nbytes, group)

    def exposed_ns(self, kernel: Collective, group: RankGroup) -> tuple[float, float]:
        """Return the time of a collective, and how much of it no kernel hides."""
        whole = self.collective_ns(kernel.kind, kernel.nbytes, group)
        if kernel.hidden_by is None:
            return whole, whole
        return whole, whole - self.hiding * min(whole, self.kernel_ns(kernel.hidden_by))
