"""What a static planner is told: what a device's memory sees when its ops run in program order."""

from __future__ import annotations

from devices.memory.buffers import Buffers, make_buffers
from devices.memory.events import MemoryEvent
from sim.job import Job
from sim.transfers import Flow, make_flow

__all__ = ["events_in_order", "program_events"]


def program_events(job: Job, device: int, flow: Flow | None = None) -> list[MemoryEvent]:
    """Return what a device's memory sees when its ops run strictly in program order.

    This is what a static planner plans: an op's outputs are taken before its inputs are released.

    Parameters
    ----------
    job : Job
    device : int
        Index of the device.
    flow : Flow, optional
        The job's flow, when it is there already.
    """
    flow = flow or make_flow(job)
    buffers = make_buffers(job, flow)
    return events_in_order(buffers, job, flow, device)


def events_in_order(buffers: Buffers, job: Job, flow: Flow, device: int) -> list[MemoryEvent]:
    """Return the events of `program_events` for buffers that are there already."""
    left = buffers.uses(1)[0].tolist()
    name = buffers.names(job, flow)
    events: list[MemoryEvent] = []
    for op in job.order[job.device_of[job.order] == device].tolist():
        made = buffers.writes.row(op).tolist()
        for b in made:
            events.append(MemoryEvent("alloc", name[b], int(buffers.nbytes[b])))
        for b in buffers.reads.row(op).tolist():
            if b >= 0 and buffers.device[b] == device:  # below 0: of an earlier iteration
                left[b] -= 1
                if not left[b]:
                    events.append(MemoryEvent("free", name[b]))
        for b in made:
            if not left[b]:
                events.append(MemoryEvent("free", name[b]))
    return events
