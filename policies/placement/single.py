"""Everything on one device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim import Graph, Machine
from sim.job.job import Placement
from sim.job.pins import allowed_devices
from sim.words.arrays import UNSET, IntArray

__all__ = ["Single"]


class Single(Placement):
    """All ops on one device, except those pinned to another.

    Parameters
    ----------
    device : str, optional
        Its name; the first of the machine by default.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, simulate
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("two")
    >>> _ = b.op("a"), b.op("b")
    >>> machine = Machine((Device("gpu0"), Device("gpu1")))
    >>> make_job(b.build(), machine, placement=Single("gpu1")).device_of.tolist()
    [1, 1]
    """

    def __init__(self, device: str | None = None) -> None:
        self.device = device

    def place(self, graph: Graph, machine: Machine, cost_ns: Sequence[IntArray]) -> Sequence[int]:
        """Return one device index per op (see `sim.job.job.Placement`).

        Raises
        ------
        UnknownNameError
            The machine has no such device.
        """
        chosen = 0 if self.device is None else machine.device_index(self.device)
        allowed = allowed_devices(graph, machine)
        able = allowed & (np.array(cost_ns) != UNSET)
        return np.where(allowed[chosen], chosen, able.argmax(axis=0)).tolist()  # type: ignore[no-any-return]
