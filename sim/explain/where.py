"""The place and time of a question: ``gpu2``, its stream 1, from 3 ms to 4 ms."""

from __future__ import annotations

from typing import NamedTuple

from sim.base.errors import InputError
from sim.base.units import format_duration
from sim.machine.machine import Machine


class Where(NamedTuple):
    """A part of a run; by default the whole of it.

    Attributes
    ----------
    device : int or None
        Index of the only device that counts.
    lane : int or None
        The only lane of that device that counts: a stream, or a worker.
    from_ns, to_ns : int, int or None
        The time that counts; None: up to the makespan.
    """

    device: int | None = None
    lane: int | None = None
    from_ns: int = 0
    to_ns: int | None = None

    @classmethod
    def named(
        cls,
        machine: Machine,
        makespan_ns: int,
        *,
        device: str | None = None,
        stream: int | None = None,
        from_ns: int = 0,
        to_ns: int | None = None,
    ) -> Where:
        """Return a place given by name, checked against the run.

        Parameters
        ----------
        machine : Machine
        makespan_ns : int
        device : str, optional
        stream : int, optional
            Number of a stream, or of a worker, of that device.
        from_ns, to_ns : int
            The time range; the end is optional.

        Raises
        ------
        UnknownNameError
            There is no such device.
        InputError
            The device has no such stream, a stream is given without a device, or the time range is empty.
        """
        end = makespan_ns if to_ns is None else min(to_ns, makespan_ns)
        if from_ns >= end and makespan_ns:
            told = f"from {format_duration(from_ns)} to {format_duration(end if to_ns is None else to_ns)}"
            raise InputError(f"{told} there is no time; the run lasts {format_duration(makespan_ns)}")
        if device is None:
            if stream is not None:
                raise InputError(f"stream {stream}: of which device?")
            return cls(from_ns=from_ns, to_ns=end)
        index = machine.device_index(device)
        lanes = machine.devices[index].lanes
        if stream is None:
            return cls(index, None, from_ns, end)
        if not 0 <= stream < lanes:
            raise InputError(f"{device} has no stream {stream}; its streams are 0 to {lanes - 1}")
        return cls(index, machine.first_stream[index] + stream, from_ns, end)


EVERYWHERE = Where()
"""The whole run."""
