"""The streams that a recorded program used: an imported trace launches its kernels as it did.

::

    recorded    stream 7   [gemm][gemm]      [gemm]          attribute ``stream`` of the ops: 7, 20
                stream 20        [all_reduce]
    simulated   gpu0/0     [gemm][gemm]      [gemm]          lanes, in the order of first use: 7 -> 0,
                gpu0/1           [all_reduce]                20 -> 1

The numbers of a CUDA runtime are names and not positions (7 is the default stream of a PyTorch
process), so each device numbers the streams it meets in the order of the graph. Importers of traces
write the attribute (`scenarios.importers.traces.kineto`, `scenarios.importers.traces.chakra`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sim import Job
from sim.words.errors import InputError

__all__ = ["Recorded"]


class Recorded:
    """One stream for each value of the attribute ``stream``, in order of first use; other ops on the first.

    So the number is a name, not a position: `stream_priorities` and partitions go by the order of first use.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("recorded")
    >>> for name, stream in {"a": 7, "b": 20, "c": 7}.items():
    ...     _ = b.op(name, attributes={"stream": stream})
    >>> Recorded().assign(make_job(b.build(), Machine((Device("gpu0", streams=2),))))
    [0, 1, 0]
    """

    def assign(self, job: Job) -> Sequence[int]:
        """Return one stream number per op, counted within the op's device.

        Raises
        ------
        InputError
            Ops name more streams than their device has, which says how many it has.
        """
        devices, device_of = job.machine.devices, job.device_of.tolist()
        lanes: list[dict[object, int]] = [{} for _ in devices]  # per device: recorded stream -> lane
        stream = [0] * len(job.graph)
        for op, recorded in job.graph.attribute("stream").items():
            if not devices[d := device_of[op]].workers:  # workers have no streams
                stream[op] = lanes[d].setdefault(recorded, len(lanes[d]))
        for device, used in zip(devices, lanes, strict=True):
            if len(used) > device.lanes and device.for_streams is None:
                key, more = "streams", f", or say streams: {len(used)}"
                if device.kind == "npu":
                    key, more = "queues_per_core", ""
                raise InputError(
                    f"the ops of {device.name} name {len(used)} streams ({', '.join(map(str, used))}), and "
                    f"it has {device.lanes}; leave out its {key}, and it has as many as they name{more}"
                )
        return stream
