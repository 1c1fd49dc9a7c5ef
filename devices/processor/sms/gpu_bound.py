"""The least time that a GPU needs for all its kernels, whatever their order and streams.

::

    SMs    ▇▇▇▇▇▇▇▇▇▇▇▇   sum of loads x block time / number of SMs
    DRAM   ▇▇▇▇▇▇▇▇       sum of bytes / bandwidth

A kernel that fills the device counts with its whole duration, which is never less than flops / peak or
bytes / bandwidth of its op; one of a few blocks counts with the part of the SMs that it takes.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from devices.processor.sms.kernel_demand import demands, sms_in_use
from sim.job.job import Job
from sim.machine.device import Device
from sim.words.arrays import IntArray

__all__ = ["least_ns"]


def least_ns(device: Device, job: Job, duration_ns: IntArray, runs: IntArray) -> int:
    """Return a lower bound of the makespan, in ns: the work of `device` over what it can do at once.

    Parameters
    ----------
    device : Device
        Whose kernels share SMs.
    job : Job
    duration_ns : array of int64
        Of each op, alone on the device.
    runs : array of int64
        How often each op runs.
    """
    sms = sms_in_use(device)
    bandwidth = device.details.dram_bytes_per_s
    sm_ns, drawn = Fraction(0), Fraction(0)  # drawn: bytes * 10**9
    work: dict[int, int] = {}  # by waves: loads * ns, so that fractions are few
    traffic: dict[int, int] = {}
    for op, asked in demands(device, job, bandwidth).items():
        loads, waves, length = asked.lasting(int(duration_ns[op]))
        busy = loads * length * int(runs[op])
        work[waves] = work.get(waves, 0) + busy
        traffic[waves] = traffic.get(waves, 0) + busy * asked.load_bytes_per_s
    for waves in work:
        sm_ns += Fraction(work[waves], waves)
        drawn += Fraction(traffic[waves], waves)
    return max(ceil(sm_ns / sms), ceil(drawn / bandwidth) if bandwidth else 0)
