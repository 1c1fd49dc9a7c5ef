"""Stream assignments: which stream of its device each op runs on, decided before the run.

Each is a class with `assign(job)`, which returns one stream number per op. Its docstring states the rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

from policies.option_checks import one_of, whole
from sim import Device, Job
from sim.base.errors import InputError
from sim.base.options import need_names


class SingleStream:
    """All ops of a device on one stream, the one with the given number.

    Parameters
    ----------
    stream : int
        Stream number within the device, counted from 0.

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
            If a device that ops are launched on lacks this stream.
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


class RoundRobinStreams:
    """The k-th op of a device, in program order, on stream k modulo the number of its streams.

    Round robin: the streams of a device in turn, regardless of dependencies.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("three")
    >>> for name in "abc":
    ...     _ = b.op(name, duration_ns=1)
    >>> RoundRobinStreams().assign(make_job(b.build(), Machine((Device("gpu0", streams=2),))))
    [0, 1, 0]
    """

    def assign(self, job: Job) -> Sequence[int]:
        """Return one stream number per op, counted within the op's device."""
        turns = [cycle(range(device.lanes)) for device in job.machine.devices]
        device_of = job.device_of.tolist()
        stream = [0] * len(device_of)
        for op in job.order.tolist():
            stream[op] = next(turns[device_of[op]])
        return stream


class PerBranch:
    """Chains of dependent ops, each on one stream.

    One stream per branch: dependent ops share a stream, independent ones do not.

    ::

            a ── b ── c ──┐           stream 0:  a  b  c  f        a chain needs no event,
            └─── d ── e ──┴─ f        stream 1:     d  e           a fork and a join one each

    The graph is cut into chains. In program order, an op continues the stream of its first producer
    whose stream no op has continued yet; an op without such a producer begins a new chain. Nimble (Kwon et
    al. 2020, "Nimble: lightweight and parallel GPU task scheduling for deep learning", NeurIPS) maps graphs
    to CUDA streams this way but finds the fewest chains by matching; this cover is greedy, in linear time.

    Parameters
    ----------
    spread : str
        Stream on which a chain begins. ``"least-loaded"``: the device's stream with the least work so
        far, in known durations (ties: the fewest chains, then the first). ``"next"``: the streams in
        turn. Either way no stream gets a second chain before every stream has one.

    Raises
    ------
    InputError
        If `spread` is any other word.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("fork and join")
    >>> ops = {"a": [], "b": ["a"], "c": ["b"], "d": ["a"], "e": ["d"], "f": ["c", "e"]}
    >>> for name, inputs in ops.items():
    ...     _ = b.op(name, inputs=inputs, duration_ns=10)
    >>> PerBranch().assign(make_job(b.build(), Machine((Device("gpu0", streams=4),))))
    [0, 0, 0, 1, 1, 0]
    """

    def __init__(self, spread: str = "least-loaded") -> None:
        self.spread = one_of("per-branch", "spread", spread, ("least-loaded", "next"))

    def assign(self, job: Job) -> Sequence[int]:
        """Return one stream number per op, counted within the op's device."""
        producers = job.graph.dag().predecessors
        device_of, known_ns = job.device_of.tolist(), job.known_ns.tolist()
        work = [[0] * device.lanes for device in job.machine.devices]
        chains = [[0] * device.lanes for device in job.machine.devices]
        continued = bytearray(len(device_of))
        stream = [0] * len(device_of)
        for op in job.order.tolist():
            d = device_of[op]
            for p in producers[op]:
                if device_of[p] == d and not continued[p]:
                    continued[p] = 1
                    stream[op] = stream[p]
                    break
            else:
                stream[op] = self._begin(work[d], chains[d])
                chains[d][stream[op]] += 1
            work[d][stream[op]] += known_ns[op]
        return stream

    def _begin(self, work: list[int], chains: list[int]) -> int:
        """Return the stream for a new chain."""
        first = work if self.spread == "least-loaded" else chains
        return min(range(len(work)), key=lambda s: (first[s], chains[s]))


class PerKind:
    """Ops of one kind on one stream.

    One stream per kind of op, so that computation, copies and collectives do not queue behind one another.

    Parameters
    ----------
    streams : mapping of str to int, optional
        Stream of each kind of op (``{"all_reduce": 1, "copy": 2}``); kinds not named go on stream 0.
        By default every kind has its own stream: kinds are numbered in program order on each device,
        starting again at 0 when the device has no more streams.

    Raises
    ------
    InputError
        If a stream is not a whole number of at least 0.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("two kinds")
    >>> for name, kind in {"w": "copy", "x": "matmul", "y": "copy"}.items():
    ...     _ = b.op(name, kind=kind, duration_ns=1)
    >>> job = make_job(b.build(), Machine((Device("gpu0", streams=2),)))
    >>> PerKind().assign(job), PerKind({"copy": 1}).assign(job)
    ([0, 1, 0], [1, 0, 1])
    """

    def __init__(self, streams: Mapping[str, int] | None = None) -> None:
        self.streams = streams
        need_names(streams or (), "per-kind: streams")
        for kind, stream in (streams or {}).items():
            whole("per-kind", f"streams[{kind}]", stream, least=0)

    def assign(self, job: Job) -> Sequence[int]:
        """Return one stream number per op, counted within the op's device.

        Raises
        ------
        InputError
            If a device lacks a stream.
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
        if device.workers:  # workers have no streams
            return 0
        if stream >= device.lanes and device.for_streams is None:
            raise InputError(
                f"per-kind: {kind!r} is to be on stream {stream}, but {device.name} has {device.lanes}, "
                "counted from 0"
            )
        return stream


class Recorded:
    """One stream per value of the attribute ``stream``, in order of first use; other ops on the first.

    The streams that a recorded program used, so that an imported trace launches its kernels as recorded.

    ::

        recorded    stream 7   [gemm][gemm]      [gemm]          attribute ``stream`` of the ops: 7, 20
                    stream 20        [all_reduce]
        simulated   gpu0/0     [gemm][gemm]      [gemm]          lanes, in the order of first use: 7 -> 0,
                    gpu0/1           [all_reduce]                20 -> 1

    Stream numbers of a CUDA runtime are names, not positions (7 is the default stream of a PyTorch
    process), so each device numbers the streams it meets in graph order. Trace importers write the
    attribute (`scenarios.importers.kineto.kineto`, `scenarios.importers.chakra`).

    Stream priorities and partitions therefore follow the order of first use.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("recorded")
    >>> for name, stream in {"a": 7, "b": 20, "c": 7}.items():
    ...     _ = b.op(name, duration_ns=1, attributes={"stream": stream})
    >>> Recorded().assign(make_job(b.build(), Machine((Device("gpu0", streams=2),))))
    [0, 1, 0]
    """

    def assign(self, job: Job) -> Sequence[int]:
        """Return one stream number per op, counted within the op's device.

        Raises
        ------
        InputError
            If ops name more streams than their device declares.
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
