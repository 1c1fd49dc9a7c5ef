"""One stream per kind of op: computation, copies and collectives that do not queue behind one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from policies.option_checks import whole
from sim import Device, Job
from sim.words.errors import InputError

__all__ = ["PerKind"]


class PerKind:
    """Ops of one kind on one stream.

    Parameters
    ----------
    streams : mapping of str to int, optional
        Stream of each kind of op (``{"all_reduce": 1, "copy": 2}``); kinds that are not named go on
        stream 0. By default every kind has its own: they are numbered in program order on each
        device, and begin again at 0 when a device has no more streams.

    Raises
    ------
    InputError
        A stream that is no whole number from 0.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("two kinds")
    >>> _ = b.op("w", kind="copy"), b.op("x", kind="matmul"), b.op("y", kind="copy")
    >>> job = make_job(b.build(), Machine((Device("gpu0", streams=2),)))
    >>> PerKind().assign(job), PerKind({"copy": 1}).assign(job)
    ([0, 1, 0], [1, 0, 1])
    """

    def __init__(self, streams: Mapping[str, int] | None = None) -> None:
        if streams is not None and not isinstance(streams, Mapping):
            raise InputError(
                f"per-kind: streams must map kinds of op to stream numbers, found {streams!r}",
                path=("streams",),
            )
        self.streams = streams
        for kind, stream in (streams or {}).items():
            whole("per-kind", f"streams[{kind}]", stream, least=0)

    def assign(self, job: Job) -> Sequence[int]:
        """Return one stream number per op, counted within the op's device.

        Raises
        ------
        InputError
            A stream that a device does not have.
        """
        kinds, devices = job.graph.kinds, job.machine.devices
        kind_code, device_of = job.graph.kind_code.tolist(), job.device_of.tolist()
        table: list[dict[int, int]] = [{} for _ in devices]  # per device: kind → stream
        stream = [0] * len(device_of)
        for op in job.order.tolist():
            code, d = kind_code[op], device_of[op]
            if code not in table[d]:
                table[d][code] = self._stream(kinds[code], devices[d], len(table[d]))
            stream[op] = table[d][code]
        return stream

    def _stream(self, kind: str, device: Device, others: int) -> int:
        if self.streams is None:
            return others % device.lanes
        stream = self.streams.get(kind, 0)
        if device.workers:  # they have no streams
            return 0
        if stream >= device.lanes and device.for_streams is None:
            raise InputError(
                f"per-kind: {kind!r} is to be on stream {stream}, but {device.name} has {device.lanes}, "
                "counted from 0"
            )
        return stream
