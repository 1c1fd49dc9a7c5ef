"""Profiler traces made up to be large: a training loop as PyTorch's profiler writes it, in the usual mix.

Of an operator there are two Python frames, four nested ``cpu_op``, an instant of memory, three calls of the
CUDA runtime with their flows, and a kernel: 15 events, some 4 kB. 200 operators run forward on the main
thread, 200 backward on autograd's, with an all-reduce after 100; then the host reads the loss::

    main thread       forward x 200 ─────────────────────────────────┬ copy ─ cudaStreamSynchronize
    autograd               backward x 100 ─ all_reduce ─ backward x 100 ┘
    stream 7          kernel kernel kernel ...                         copy
    stream 20                               nccl

Same arguments, same bytes.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

_OPERATORS: Final = 200

_KERNELS: Final = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "at::detail::Array<char*, 3>)",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float, "
    "c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, c10::BFloat16*)",
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, "
    "cutlass::bfloat16_t>, false, true, false, false, true, true, false>(pytorch_flash::Flash_fwd_params)",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false>(float*, "
    "float const*, int)",
)
_OPS: Final = ("aten::add", "aten::linear", "aten::layer_norm", "aten::attention", "aten::softmax")
_ALL_REDUCE: Final = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"


_SHAPES: Final = {
    "Input Dims": [[16, 512, 1024], [1024, 1024], [1024]],
    "Input type": ["c10::BFloat16", "c10::BFloat16", "Scalar"],
    "Input Strides": [[524288, 1024, 1], [1, 1024], [1]],
    "Concrete Inputs": ["", "", "1e-05"],
}
_FRAMES: Final = ("torch/nn/modules/module.py(1751): _wrapped_call_impl", "model.py(212): forward")
_MEMORY: Final = {"Total Reserved": 2**31, "Bytes": 65536, "Addr": 2**40, "Device Id": 0}
_LAUNCH: Final = {"registers per thread": 64, "shared memory": 49152, "blocks per SM": 1.5}
_LAUNCH_SIZES: Final = {"grid": [128, 4, 1], "block": [256, 1, 1], "est. achieved occupancy %": 38}


class _Recorder:
    """A process that runs on two threads and two streams, and whose profiler writes events."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.now = 1_700_000_000_000_000
        self.correlation = 0
        self.late = 10_000 * rank  # it comes later to collectives than the others
        self.wait = 10_000 * world_size
        self.free = {7: 0, 20: 0}
        self.pid = 4000 + rank
        self.drawn = 1

    def draw(self, below: int) -> int:
        """Return a number that looks random."""
        self.drawn = (self.drawn * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.drawn >> 33) % below

    def event(self, ph: str, cat: str, name: str, start: int, tid: int, **more: Any) -> dict[str, Any]:
        """Return an event, of the host or of a stream."""
        own = {"pid": self.pid if tid > 100 else 0, "tid": tid, "ts": start / 1000}
        return {"ph": ph, "cat": cat, "name": name, **own, **more}

    def slice(
        self, cat: str, name: str, start: int, ns: int, tid: int, args: dict[str, Any]
    ) -> dict[str, Any]:
        """Return an event that lasts."""
        return self.event("X", cat, name, start, tid, dur=ns / 1000, args=args)

    def call(self, name: str, tid: int, ns: int) -> Iterator[dict[str, Any]]:
        """Yield a call of the runtime and the end of its flow."""
        self.correlation += 1
        own = {"External id": self.correlation, "cbid": 211, "correlation": self.correlation}
        yield self.slice("cuda_runtime", name, self.now, ns, tid, own)
        yield self.event("f", "ac2g", "ac2g", self.now, tid, id=self.correlation, bp="e")
        self.now += ns + 500

    def task(
        self, name: str, cat: str, stream: int, ns: int, after: int = 0, **more: Any
    ) -> Iterator[dict[str, Any]]:
        """Yield what the last call launched, and the begin of its flow."""
        start = max(self.now + 3000, self.free[stream] + 800, after)
        own = {"External id": self.correlation, "device": 0, "context": 1, "stream": stream}
        yield self.slice(cat, name, start, ns, stream, own | {"correlation": self.correlation} | more)
        yield self.event("s", "ac2g", "ac2g", start, stream, id=self.correlation)
        self.free[stream] = start + ns

    def operator(self, k: int, number: int, tid: int, backward: bool) -> Iterator[dict[str, Any]]:
        """Yield the events of an operator with one kernel."""
        kind, begin = k % len(_OPS), self.now
        outer = f"autograd::engine::evaluate_function: {_OPS[kind]}Backward0" if backward else _OPS[kind]
        for depth, name in enumerate((outer, _OPS[kind], _OPS[kind] + "_impl", "aten::empty")):
            sequence = {"Sequence number": number, "Fwd thread id": int(backward)} if depth < 2 else {}
            own = {"External id": self.correlation + 3, "Record function id": 0, "Ev Idx": number}
            args = own | sequence | _SHAPES
            yield self.slice("cpu_op", name, begin + 100 * depth, 30_000 - 1000 * depth, tid, args)
        for depth, line in enumerate(_FRAMES):
            parent = {"Python parent id": number, "Python id": 2 * number + depth, "Ev Idx": number}
            name = f"/usr/local/lib/python3.12/site-packages/{line}"
            yield self.slice("python_function", name, begin, 30_000, tid, parent)
        memory = _MEMORY | {"Total Allocated": 2**30 + number}
        yield self.event("i", "cpu_instant_event", "[memory]", begin, tid, s="t", args=memory)
        self.now += 4000 + self.draw(4000)
        yield from self.call("cudaStreamIsCapturing", tid, 400)
        yield from self.call("cudaFuncSetAttribute", tid, 600)
        yield from self.call("cudaLaunchKernel", tid, 4000 + self.draw(1000))
        ns = 5000 + self.draw(20_000)
        yield from self.task(
            _KERNELS[kind], "kernel", 7, ns, **_LAUNCH, **_LAUNCH_SIZES, **{"warps per SM": 12.0}
        )

    def all_reduce(self, tid: int) -> Iterator[dict[str, Any]]:
        """Yield a collective on a stream of its own, which waits for the other one, and is waited for."""
        yield self.slice("cpu_op", "c10d::allreduce_", self.now, 40_000, tid, {"Ev Idx": 0})
        yield from self.call("cudaEventRecord", tid, 900)
        yield from self.call("cudaStreamWaitEvent", tid, 700)
        yield from self.call("cudaLaunchKernelExC", tid, 6000)
        came = max(self.now + 3000, self.free[7], self.free[20] + 800)
        end = came + self.wait + 60_000
        group = {"Process Group Name": "0", "Process Group Ranks": "[]", "Collective name": "allreduce"}
        yield from self.task(_ALL_REDUCE, "kernel", 20, end - came - self.late, came + self.late, **group)
        self.now += 40_000
        yield from self.call("cudaEventRecord", tid, 900)
        yield from self.call("cudaStreamWaitEvent", tid, 700)
        self.free[7] = max(self.free[7], self.free[20])

    def step(self, number: int) -> Iterator[dict[str, Any]]:
        """Yield the events of a training step."""
        for k in range(_OPERATORS):
            yield from self.operator(k, number * _OPERATORS + k, 4000, False)
        for k in reversed(range(_OPERATORS)):
            yield from self.operator(k, number * _OPERATORS + k, 4001, True)
            if k % 100 == 0:
                yield from self.all_reduce(4001)
        yield from self.call("cudaMemcpyAsync", 4000, 5000)
        yield from self.task("Memcpy DtoH (Device -> Pinned)", "gpu_memcpy", 7, 1200, bytes=4)
        yield from self.call("cudaStreamSynchronize", 4000, max(2000, self.free[7] + 2000 - self.now))


def write_recording(path: Path, steps: int, *, rank: int = 0, world_size: int = 1) -> int:
    """Write the trace of so many training steps, gzipped; return its number of events."""
    recorder, n = _Recorder(rank, world_size), 1
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size, "pg_count": 1},
    }
    with gzip.open(path, "wt", encoding="utf-8") as out:
        process = {"ph": "M", "ts": 0, "pid": recorder.pid, "tid": 0, "args": {"name": "python3"}}
        out.write(json.dumps(head)[:-1] + ',\n  "traceEvents": [\n')
        out.write(json.dumps({"name": "process_name", **process}))
        for event in (event for number in range(steps) for event in recorder.step(number)):
            out.write(",\n" + json.dumps(event))
            n += 1
        out.write('\n  ],\n  "traceName": "made.pt.trace.json"\n}\n')
    return n
