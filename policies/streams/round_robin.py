"""Round robin: the streams of a device in turn, whatever depends on what."""

from __future__ import annotations

from collections.abc import Sequence

from sim import Job

__all__ = ["RoundRobin"]


class RoundRobin:
    """The k-th op of a device, in program order, on stream k modulo the number of its streams.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("three")
    >>> _ = b.op("a"), b.op("b"), b.op("c")
    >>> RoundRobin().assign(make_job(b.build(), Machine((Device("gpu0", streams=2),))))
    [0, 1, 0]
    """

    def assign(self, job: Job) -> Sequence[int]:
        """Return one stream number per op, counted within the op's device."""
        lanes = [device.lanes for device in job.machine.devices]
        turn = [0] * len(lanes)
        device_of = job.device_of.tolist()
        stream = [0] * len(device_of)
        for op in job.order.tolist():
            d = device_of[op]
            stream[op] = turn[d]
            turn[d] = (turn[d] + 1) % lanes[d]
        return stream
