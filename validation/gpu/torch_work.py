"""Torch kernels of one graph with their matrices, on whatever stream is current.

Everything is allocated before a run, so that no run waits for an allocator. Results are filled with NaN
before each run: a consumer that does not wait for its producer computes NaN, which a serial run never does.

An op of several kernels is captured as one CUDA graph on the stream on which it will run::

    host      one launch per op, however many kernels: the cost of issuing does not depend on `repeat`
    queue     one place per op: the longest plan stays far below the depth of the launch queue
    context   kernels captured on a stream of a green context keep its SMs (partitions)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from sim.base.errors import RunError
from sim.graph.graph import Graph
from validation.real.measured_kernels import HOLDS_HOST, Kernel, MatrixWork

# --------------------------------------------------------------------------------------------------------
# CUDA graphs of the launches of a function; a failed capture must leave nothing behind.
#
# Torch tells its allocator of a capture before the driver begins it, and withdraws that only when the driver
# has ended it successfully (`capture_begin` and `capture_end` in PyTorch's aten/src/ATen/cuda/CUDAGraph.cpp).
# After a failure the allocator would assume a capture for ever; `torch.cuda.empty_cache` would always fail.

_FAILED: Final[list[Any]] = []
"""Graphs whose capture failed, kept because torch's allocator of page-locked memory still queries them."""


def captured(torch: Any, launch: Callable[[], Any], pool: Any) -> Any:
    """Return a CUDA graph of the work that `launch` puts on the current stream.

    Parameters
    ----------
    torch : module
    launch : callable
    pool : tuple of int
        From `torch.cuda.graph_pool_handle`. After a failure it cannot be used for another capture.

    Raises
    ------
    RunError
        It cannot be captured; the error names the first cause.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        graph.capture_begin(pool=pool)
        try:
            launch()
        finally:
            graph.capture_end()
    except RuntimeError as error:
        _FAILED.append(graph)
        _end(torch, pool)
        first = error.__context__ or error  # the error of `capture_end` only says that there was one
        raise RunError(str(first).partition("\n")[0] or type(first).__name__) from error
    return graph


def _end(torch: Any, pool: Any) -> None:
    """Make the allocator end a capture that it still assumes, and release the memory of its pool."""
    end = getattr(torch._C, "_cuda_endAllocateToPool", None)
    if end is None:  # before torch 2.8
        end = torch._C._cuda_endAllocateCurrentStreamToPool
    with suppress(RuntimeError):  # it already knows
        device = torch.cuda.current_device()
        end(device, pool)
        torch._C._cuda_releasePool(device, pool)


TOLERANCE = 0.05
"""Tolerance of results in bfloat16, relative to their norm: libraries may choose other kernels per stream."""


class TorchWork(MatrixWork):
    """Kernels of one graph.

    Parameters
    ----------
    torch : module
        Torch itself, or its substitute in tests.
    graph : Graph
        Ops as `validation.real.measured_kernels` describes them.
    dtype : str
        Torch's name of the data type of all matrices.

    Raises
    ------
    InputError, UnknownNameError
        See `validation.real.measured_kernels.MatrixWork`.
    """

    where = "a GPU"

    def __init__(self, torch: Any, graph: Graph, dtype: str = "bfloat16") -> None:
        super().__init__(graph)
        self.torch, self.dtype = torch, getattr(torch, dtype)
        torch.manual_seed(0)  # random data; zeros would save power and so run faster
        self.constants = {n: (self._random(n), self._random(n)) for n in self.sizes}
        moved = sorted({(k.kind, k.size) for k in self.kernels if k.kind.startswith("h2d")})
        self.sources = {(kind, n): self._on_host(n, kind) for kind, n in moved}
        for (_, n), source in self.sources.items():
            source.copy_(self.constants[n][0])
        self.results = [
            self._on_host(k.size, k.kind) if k.kind.startswith("d2h") else self._empty(k.size)
            for k in self.kernels
        ]
        self.scratch = [self._empty(kernel.size) for kernel in self.kernels]
        self.graphs: dict[int, Any] = {}
        self.pools: dict[int, Any] = {}
        self.not_captured = ""

    def _random(self, n: int) -> Any:
        return self.torch.randn(n, n, device="cuda", dtype=self.dtype) * n**-0.5

    def _empty(self, n: int) -> Any:
        return self.torch.full((n, n), float("nan"), device="cuda", dtype=self.dtype)

    def _on_host(self, n: int, kind: str) -> Any:
        """Return a matrix in host memory: pageable, or page-locked as needed for copies that overlap."""
        return self.torch.full((n, n), float("nan"), dtype=self.dtype, pin_memory=kind not in HOLDS_HOST)

    def reset(self) -> None:
        """Fill all results with NaN."""
        for result in self.results:
            result.fill_(float("nan"))

    def capture(self, op: int, stream: Any) -> None:
        """Capture an op of several kernels as a CUDA graph on the stream on which it will run.

        The kernels first run once on that stream: modules are loaded lazily and libraries allocate
        workspaces, per handle and stream, on first use, and neither may happen in a capture.
        If one cannot be captured (a driver may refuse streams of its green contexts), all ops of the graph
        are launched kernel by kernel, and `not_captured` gives the reason.
        """
        if op in self.graphs or _kernels(self.kernels[op]) == 1 or self.not_captured:
            return
        with self.torch.cuda.stream(stream):
            self.compute(op)
        self.torch.cuda.synchronize()
        # Ops of a stream run one after another and leave nothing in the pool, so they can share one. Not the
        # context manager `torch.cuda.graph`: it empties the allocator's cache, some ms for each of 128 ops.
        pool = self.pools.setdefault(stream.cuda_stream, self.torch.cuda.graph_pool_handle())
        with self.torch.cuda.stream(stream):
            try:
                self.graphs[op] = captured(self.torch, partial(self.compute, op), pool)
            except RunError as error:
                self.not_captured = str(error)
                self.graphs, self.pools = {}, {}

    def launch(self, op: int) -> None:
        """Launch one op on the current stream."""
        graph = self.graphs.get(op)
        if graph is not None:
            graph.replay()
        else:
            self.compute(op)

    def compute(self, op: int) -> None:
        """Launch the kernels of one op on the results of its producers."""
        kernel = self.kernels[op]
        if kernel.kind.startswith("h2d"):
            source = self.sources[kernel.kind, kernel.size]
            self.results[op].copy_(source, non_blocking=kernel.kind not in HOLDS_HOST)
            return
        _compute(self.torch, kernel, *self.inputs(op), self.results[op], self.scratch[op])

    @property
    def launches(self) -> int:
        """Approximate number of launches in one run."""
        return sum(1 if op in self.graphs else _kernels(kernel) for op, kernel in enumerate(self.kernels))

    def settled(self) -> list[Any]:
        """Return copies of all results in device memory, once they are complete.

        They are compared there: computing norms of copies in host memory takes a CPU half a minute.
        """
        self.torch.cuda.synchronize()
        copies = []
        for result in self.results:
            copies.append(self.torch.empty_like(result, device="cuda"))
            copies[-1].copy_(result)
        return copies

    def alike(self, mine: Any, right: Any) -> bool:
        """Return whether two results agree within bfloat16's accuracy; NaN never agrees."""
        return _norm(mine - right) <= TOLERANCE * _norm(right)


def _kernels(kernel: Kernel) -> int:
    """Return the approximate number of kernels of an op; a copy from or to a host is one, never captured."""
    if kernel.kind.startswith(("h2d", "d2h")):
        return 1
    return {"softmax": 2, "attention": 4, "block": 10}.get(kernel.kind, 1) * kernel.repeat


def _norm(matrix: Any) -> float:
    return float(matrix.float().norm().item())


def _compute(torch: Any, kernel: Kernel, x: Any, y: Any, out: Any, scratch: Any) -> None:
    if kernel.kind == "matmul":
        there, other = (out, scratch) if kernel.repeat % 2 else (scratch, out)
        torch.mm(x, y, out=there)
        for _ in range(kernel.repeat - 1):
            torch.mm(there, y, out=other)
            there, other = other, there
    elif kernel.kind == "elementwise":
        source = x
        for _ in range(kernel.repeat):
            torch.lerp(source, y, 0.5, out=out)
            source = out
    elif kernel.kind in ("copy", "d2h", "d2h-pageable"):
        for _ in range(kernel.repeat):
            out.copy_(x, non_blocking=kernel.kind not in HOLDS_HOST)
    elif kernel.kind == "softmax":
        for _ in range(kernel.repeat):
            out.copy_(torch.softmax(x, 1), non_blocking=True)
    elif kernel.kind == "attention":
        for _ in range(kernel.repeat):
            _attend(torch, kernel, x, y, out, scratch)
    else:
        for _ in range(kernel.repeat):
            _block(torch, kernel, x, y, out, scratch)


def _attend(torch: Any, kernel: Kernel, x: Any, y: Any, out: Any, scratch: Any) -> None:
    torch.mm(x, y.t(), out=scratch)
    torch.mul(scratch, kernel.size**-0.5, out=scratch)
    torch.mm(torch.softmax(scratch, 1), y, out=out)


def _block(torch: Any, kernel: Kernel, x: Any, y: Any, out: Any, scratch: Any) -> None:
    """Attention and a two-layer network with residual sums: products and memory traffic of a block."""
    _attend(torch, kernel, x, y, out, scratch)
    torch.lerp(out, x, 0.5, out=out)
    torch.mm(out, y, out=scratch)
    torch.mm(torch.relu(scratch), y.t(), out=scratch)
    torch.lerp(out, scratch, 0.5, out=out)
