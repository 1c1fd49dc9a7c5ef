"""Everything on one stream of its device, as a framework does that never asks for another."""

from __future__ import annotations

from collections.abc import Sequence

from policies.option_checks import whole
from sim import Job
from sim.words.errors import InputError

__all__ = ["Single"]


class Single:
    """All ops of a device on one stream, the one with the given number.

    Parameters
    ----------
    stream : int
        Number within the device, from 0.

    Raises
    ------
    InputError
        A negative number.
    """

    def __init__(self, stream: int = 0) -> None:
        self.stream = whole("single", "stream", stream, least=0)

    def assign(self, job: Job) -> Sequence[int]:
        """Return one stream number per op, counted within the op's device.

        Raises
        ------
        InputError
            A device that ops are launched on has no such stream.
        """
        for d in sorted(set(job.device_of.tolist())):
            device = job.machine.devices[d]
            if not device.workers and self.stream >= device.streams:
                raise InputError(
                    f"single: {device.name} has {device.streams} stream(s), counted from 0; "
                    f"found stream {self.stream}"
                )
        lanes = [device.lanes for device in job.machine.devices]
        return [min(self.stream, lanes[d] - 1) for d in job.device_of.tolist()]
