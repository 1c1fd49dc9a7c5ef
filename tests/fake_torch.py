"""A torch with a CUDA device that takes time without having any: streams, events, graphs and kernels.

Every stream has a clock in ms. A kernel advances the clock of the current stream by `KERNEL_MS` (a spin by
its cycles); an event remembers the clock of the stream it is recorded on; waiting for it advances the
waiter's. Matrices are numpy's, of 16 x 16 whatever is asked for, computed at once. What things cost is
`Cuda.kernel_ms` and `Cuda.spend`, which `fake_h200` replaces. Names that the real torch does not have would
not be noticed here: `test_real_cuda` compares them.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
from fake_allocator import FakeAllocator

from validation.gpu.partitions import SIGNATURES

KERNEL_MS = 0.1
CYCLES_PER_MS = 2_000_000
QUEUE_DEPTH = 1022

PARTS = 1_000_000
"""A stream of a part of the SMs has a handle of so much times the number of parts."""

HIGH = 1 << 40


class Tensor:
    """The few methods of a tensor that are used."""

    def __init__(self, values: Any, cuda: Cuda | None = None, n: int = 1, place: str = "cuda") -> None:
        self.values, self.cuda = np.array(values, dtype=np.float32), cuda
        self.n, self.where = n, place

    def fill_(self, value: float) -> Tensor:
        self.values[...] = value
        if self.cuda is not None:
            self.cuda.spend("fill", self)
        return self

    def random_(self) -> Tensor:
        return self.fill_(17)

    def copy_(self, other: Tensor, non_blocking: bool = False) -> Tensor:
        assert self.cuda is not None
        places = {self.where, other.where}
        kind = next((f"copy {place}" for place in ("pageable", "pinned") if place in places), "copy")
        self.cuda.launch(
            lambda: self.values.__setitem__(..., other.values), self.cuda.kernel_ms(kind, self.n)
        )
        if not non_blocking or "pageable" in places:
            self.cuda.host_ms = max(self.cuda.host_ms, self.cuda.now.ms)
        return self

    def float(self) -> Tensor:
        return self

    def clone(self) -> Tensor:
        return Tensor(self.values, self.cuda, self.n)

    def norm(self) -> Tensor:
        if self.cuda is not None:
            self.cuda.spend("norm", self)
        return Tensor(np.linalg.norm(self.values))

    def item(self) -> float:
        return self.values.item()

    def __sub__(self, other: Tensor) -> Tensor:
        return Tensor(self.values - other.values, self.cuda, self.n)

    def t(self) -> Tensor:
        view = Tensor(0)
        view.values = self.values.T
        return view

    def __mul__(self, factor: float) -> Tensor:
        return Tensor(self.values * factor, self.cuda, self.n)


class Stream:
    """A clock."""

    def __init__(self, handle: int = 0, slowdown: float = 1.0) -> None:
        self.handle = self.cuda_stream = handle
        self.slowdown = slowdown  # of kernels, on a part of the SMs
        self.ms = 0.0
        self.ends: list[float] = []  # of the kernels in its queue

    def wait_event(self, event: Event) -> None:
        assert event.ms is not None, "waits for an event that was not recorded"
        event.cuda.spend("event")
        self.ms = max(self.ms, event.ms)


class Event:
    """A time on a clock."""

    cuda: Cuda

    def __init__(self, enable_timing: bool = False) -> None:
        self.timing, self.ms = enable_timing, None

    def record(self, stream: Stream | None = None) -> None:
        self.cuda.spend("event")
        stream = stream or self.cuda.now
        stream.ms = self.ms = max(stream.ms, self.cuda.host_ms)  # an idle stream records at once

    def query(self) -> bool:
        """Answer as a device whose host waits a little between two questions."""
        self.cuda.host_ms += self.cuda.QUERY_MS
        return self.ms <= self.cuda.host_ms

    def synchronize(self) -> None:
        self.cuda.host_ms = max(self.cuda.host_ms, self.ms)

    def elapsed_time(self, end: Event) -> float:
        assert self.timing
        assert end.timing
        self.cuda.spend("event")
        return end.ms - self.ms


class Graph:
    """What was captured is a number of kernels."""

    cuda: Cuda

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.pool: Any = None

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """Tell the allocator, and then ask the driver, in torch's own order."""
        assert self.cuda.capturing is None, "one capture at a time"
        assert self.cuda.now is not self.cuda.default, "the default stream cannot be captured"
        assert pool not in self.cuda.spoilt, "a pool that a failed capture has used"
        self.pool = pool
        self.cuda.allocating.append(pool)
        if self.cuda.capture_fails == "begin":
            raise RuntimeError("operation not permitted when stream is capturing")
        self.cuda.capturing = self

    def capture_end(self) -> None:
        """End the capture; the allocator is told only when the driver has ended it well."""
        assert self.cuda.capturing is self
        self.cuda.capturing = None
        if self.cuda.capture_fails == "end":
            raise RuntimeError("operation failed due to a previous error during capture")
        self.cuda.allocating.remove(self.pool)

    def replay(self) -> None:
        """Run as one launch: a place in the queue, and all kernels behind it."""
        self.cuda.launch(lambda: None, ms=0.0)
        self.cuda.replaying = True
        for call in self.calls:
            call()
        self.cuda.replaying = False


class Cuda:
    """The namespace ``torch.cuda``."""

    QUERY_MS = 0.01
    HELD_UP_S = 0.002
    """So long the real host waits in a full queue, as a program that reads a clock sees."""

    def __init__(self, available: bool = True) -> None:
        self.available = available
        self.default = self.now = Stream()
        self.host_ms = 0.0
        self.streams = [self.default]
        self.capturing: Graph | None = None
        self.replaying = False
        self.capture_fails = ""  # "begin" or "end"
        self.pools = 0
        self.allocating: list[Any] = []  # pools of captures that the allocator believes in
        self.spoilt: list[Any] = []  # pools of captures that failed
        self.launches = 0
        self.allocator = FakeAllocator()

        class BoundEvent(Event):
            cuda = self

        self.Event = BoundEvent

        class BoundGraph(Graph):
            cuda = self

        self.CUDAGraph = BoundGraph

    def is_available(self) -> bool:
        return self.available

    def Stream(self) -> Stream:
        self.streams.append(Stream(1000 + len(self.streams)))
        return self.streams[-1]

    def ExternalStream(self, handle: int) -> Stream:
        self.streams.append(Stream(handle, slowdown=handle // PARTS or 1))
        return self.streams[-1]

    def current_device(self) -> int:
        return 0

    def current_stream(self) -> Stream:
        return self.now

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.now = self.now, stream
        try:
            yield
        finally:
            self.now = before

    def graph_pool_handle(self) -> tuple[int, int]:
        self.pools += 1
        return (0, self.pools)

    def synchronize(self) -> None:
        assert self.capturing is None, "nobody waits in a capture"
        latest = self.host_ms
        for stream in self.streams:
            if stream.ms > latest:
                latest = stream.ms
        for stream in self.streams:
            stream.ms = latest
        self.host_ms = latest

    def _sleep(self, cycles: int) -> None:
        self.launch(lambda: None, cycles / CYCLES_PER_MS)

    def kernel_ms(self, kind: str, n: int) -> float:
        """Return how long a kernel on n x n matrices takes."""
        return KERNEL_MS

    def spend(self, what: str, tensor: Tensor | None = None) -> None:
        """Spend what a call costs the host."""

    def launch(self, compute: Any, ms: float = KERNEL_MS) -> None:
        def kernel() -> None:
            compute()
            if not self.replaying:
                self.launches += 1
                self.spend("launch")
                self.wait_for_a_place(self.now)
                self.now.ends.append(0.0)
            self.now.ms = max(self.now.ms, self.host_ms) + ms
            self.now.ends[-1] = self.now.ms

        if self.capturing is not None:
            self.capturing.calls.append(kernel)
        else:
            kernel()

    def wait_for_a_place(self, stream: Stream) -> None:
        """Hold the host up until the queue of a stream has room for one more."""
        if len(stream.ends) >= QUEUE_DEPTH:
            stream.ends = [end for end in stream.ends if end > self.host_ms]
        if len(stream.ends) >= QUEUE_DEPTH:
            time.sleep(self.HELD_UP_S)
            self.host_ms = stream.ends.pop(0)

    def memory_allocated(self) -> int:
        return self.allocator.allocated

    def memory_reserved(self) -> int:
        return self.allocator.reserved

    def memory_snapshot(self) -> list[dict[str, int]]:
        return [{"stream": segment.stream} for segment in self.allocator.segments]

    def empty_cache(self) -> None:
        if self.allocating:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")
        self.allocator.empty_cache()

    def get_device_name(self, index: int) -> str:
        return "Fake GPU"

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(multi_processor_count=132, total_memory=1 << 37, L2_cache_size=1 << 22)


class Torch:
    """The namespace ``torch``."""

    __version__ = "2.13.0"
    bfloat16, float16, float32 = "bfloat16", "float16", "float32"
    uint8 = "uint8"
    version = SimpleNamespace(cuda="13.0")

    def __init__(self, available: bool = True) -> None:
        self.cuda = Cuda(available)
        self.rng = np.random.default_rng(0)

    @property
    def _C(self) -> Any:
        """What torch calls behind its own doors."""

        def end(device: int, pool: Any) -> None:
            if pool not in self.cuda.allocating:
                raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
            self.cuda.allocating.remove(pool)

        return SimpleNamespace(
            _cuda_endAllocateToPool=end,
            _cuda_releasePool=lambda device, pool: self.cuda.spoilt.append(pool),
        )

    def manual_seed(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def randn(self, *shape: int, device: str, dtype: str) -> Tensor:
        return Tensor(self.rng.normal(size=[min(n, 16) for n in shape]), self.cuda, shape[0])

    def empty(self, n: int, dtype: str, device: str = "cpu", pin_memory: bool = False) -> Tensor:
        place = "cuda" if device == "cuda" else "pinned" if pin_memory else "pageable"
        tensor = Tensor(np.zeros(1), self.cuda, int((n / 2) ** 0.5), place)
        if device == "cuda":
            tensor.place = self.cuda.allocator.alloc(n, self.cuda.now.handle)
        return tensor

    def empty_like(self, other: Tensor, device: str) -> Tensor:
        return Tensor(np.zeros_like(other.values), self.cuda, other.n)

    def full(
        self, shape: tuple[int, ...], value: float, dtype: str, device: str = "cpu", pin_memory: bool = False
    ) -> Tensor:
        assert not (device == "cuda" and pin_memory)
        place = "cuda" if device == "cuda" else "pinned" if pin_memory else "pageable"
        tensor = Tensor(np.full([min(n, 16) for n in shape], value), self.cuda, shape[0], place)
        self.cuda.spend("allocation", tensor)
        return tensor

    def _run(self, kind: str, out: Tensor, compute: Any) -> None:
        ms = self.cuda.kernel_ms(kind, out.n) * self.cuda.now.slowdown
        self.cuda.launch(lambda: out.values.__setitem__(..., compute()), ms)

    def mm(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        self._run("mm", out, lambda: a.values @ b.values)

    def lerp(self, a: Tensor, b: Tensor, weight: float, out: Tensor) -> None:
        self._run("lerp", out, lambda: a.values + weight * (b.values - a.values))

    def mul(self, a: Tensor, factor: float, out: Tensor) -> None:
        self._run("mul", out, lambda: a.values * factor)

    def softmax(self, x: Tensor, dim: int) -> Tensor:
        out = Tensor(x.values, self.cuda, x.n)

        def compute() -> Any:
            powers = np.exp(x.values - x.values.max(axis=dim, keepdims=True))
            return powers / powers.sum(axis=dim, keepdims=True)

        self._run("softmax", out, compute)
        return out

    def relu(self, x: Tensor) -> Tensor:
        out = Tensor(x.values, self.cuda, x.n)
        self._run("relu", out, lambda: np.maximum(x.values, 0))
        return out


class Driver:
    """The calls of the driver's library that split SMs: real function pointers, with C's own arguments.

    Handles of descriptions and contexts are beyond 32 bits, as pointers are.
    """

    def __init__(self, sms: int = 132, *, binds: bool = True, room: int = 1 << 30, lacks: str = "") -> None:
        """`room`: the most groups of 16 SMs or more; what lies in a corner is left over."""
        self.sms, self.binds, self.room, self.splits, self.handle = sms, binds, room, 0, 100
        calls = (self._device, self._resource, self._split, self._describe, self._create, self._stream)
        for (name, signature), call in zip(SIGNATURES.items(), calls, strict=True):
            if name != lacks:
                setattr(self, name, ctypes.CFUNCTYPE(ctypes.c_int, *signature)(call))

    def _device(self, device: Any, index: int) -> int:
        device[0] = index
        return 0

    def _resource(self, device: int, resource: Any, kind: int) -> int:
        resource[0].type, resource[0].sm.smCount = kind, self.sms
        return 0

    def _split(self, groups: Any, made: Any, whole: Any, remaining: Any, flags: int, least: int) -> int:
        assert whole[0].sm.smCount == self.sms
        self.splits += 1
        made[0] = min(made[0], self.sms // least, self.room if least >= 16 else made[0])
        for k in range(made[0]):
            groups[k].type, groups[k].sm.smCount = 1, least
        return 0

    def _describe(self, described: Any, groups: Any, n: int) -> int:
        assert n == 1
        described[0] = HIGH + groups[0].sm.smCount
        return 0

    def _create(self, context: Any, described: int, device: int, flags: int) -> int:
        context[0] = described + HIGH
        return 0

    def _stream(self, handle: Any, context: int, flags: int, priority: int) -> int:
        self.handle += 1
        handle[0] = self.handle + (PARTS * (self.sms // (context - 2 * HIGH)) if self.binds else 0)
        return 0
