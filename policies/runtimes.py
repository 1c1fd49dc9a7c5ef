"""Runtimes: sets of policy decisions, each named after a framework.

A scenario could write out each of them under ``policy:``; further keys override single decisions::

    policy: {runtime: pytorch-eager, streams: per-branch}

A runtime decides; the machine sets the cost of its decisions (issue cost, launch latency, workers). So
``pytorch-eager`` has no Python overhead of its own: the ``issue_cost`` of a preset is the driver call alone
(medians of 3.5 to 6 us in profiler traces); add there what Python and the dispatcher take between two
launches, for example ``issue_cost: 10us``. The policies named state their rules and sources.

A runtime also names its allocator for each kind of device; ``memory: {allocator: runtime}`` in a scenario
selects it. On other kinds of device bytes are only counted: on a CPU, PyTorch and TensorFlow allocate each
tensor separately (``c10/core/CPUAllocator.cpp``, ``tsl/framework/cpu_allocator_impl.cc``). Sources:

- TensorFlow: ``GPUBFCAllocator``, with garbage collection unless an environment variable disables it
  (``tensorflow/core/common_runtime/gpu/gpu_bfc_allocator.h``).
- PyTorch: ``c10/cuda/CUDACachingAllocator.cpp``.
- TVM: ``GraphPlanMemory`` of Relay, ``StaticPlanBlockMemory`` of Relax: a pool of tokens.
- ONNX Runtime, sequential: memory patterns, offsets for all tensors of a run
  (``onnxruntime/core/framework/mem_pattern_planner.h``), here packed greedily by size. In parallel mode it
  has no pattern, and its arena is not modelled.

Their names, with dashes, are defined only in the entry points ``sim.runtimes``.
"""

from __future__ import annotations

from typing import Any, Final


class Runtime(dict[str, Any]):
    """A named set of decisions; ``sim runtimes`` shows its docstring."""

    def __init__(self, doc: str, **choices: Any) -> None:
        super().__init__(choices)
        self.__doc__ = doc


_BFC: Final = {"gpu": {"name": "bfc", "garbage_collection": True}}
_CACHING: Final = {"gpu": {"name": "caching"}}


def _planned_memory(planner: str) -> dict[str, dict[str, Any]]:
    return {kind: {"name": "planned", "planner": planner} for kind in ("cpu", "gpu", "npu")}


def _on_one_stream(doc: str, **choices: Any) -> Runtime:
    return Runtime(doc, **choices, streams="single")


tensorflow: Final = _on_one_stream(
    "TensorFlow's executor: ready ops inline or to a work-stealing pool; a GPU kernel is done once enqueued",
    name="tensorflow-executor",
    allocator=_BFC,
)
tensorflow_caller_thread: Final = _on_one_stream(
    "TensorFlow with only the calling thread (an inter-op pool of -1): breadth first",
    name="tensorflow-executor",
    allocator=_BFC,
    inter_op_parallelism_threads=-1,
)
tvm_graph_executor: Final = _on_one_stream(
    "TVM's graph executor: the nodes in order, strictly one after another",
    name="sequential",
    linearize="topological",
    allocator=_planned_memory("relay"),
)
tvm_vm: Final = _on_one_stream(
    "TVM's and Relax's virtual machine: a linear program with jumps; GPU kernels are only enqueued",
    name="sequential",
    linearize="depth-first",
    allocator=_planned_memory("relax"),
)
onnxruntime: Final = _on_one_stream(
    "ONNX Runtime, sequential, default order: reverse depth first from the outputs",
    name="sequential",
    linearize="reverse-depth-first",
    runs="in-turn",
    allocator=_planned_memory("greedy"),
)
onnxruntime_priority: Final = _on_one_stream(
    "ONNX Runtime, sequential, priority order: Kahn with the least index",
    name="sequential",
    linearize="priority",
    runs="in-turn",
    allocator=_planned_memory("greedy"),
)
onnxruntime_parallel: Final = _on_one_stream(
    "ONNX Runtime up to 1.13, parallel: a thread keeps the first consumer it made ready, queues the others",
    name="onnxruntime-parallel",
    linearize="reverse-depth-first",
)
tfrt: Final = _on_one_stream(
    "TFRT: ready kernels of the thread's own stream on its stack, the others to the work queue",
    name="tfrt",
)
pytorch_eager: Final = _on_one_stream(
    "PyTorch eager: a thread launches op after op on one stream; Python's time per op belongs in issue_cost",
    name="sequential",
    linearize="topological",
    allocator=_CACHING,
)
pytorch_distributed: Final = Runtime(
    "PyTorch, one process a GPU: each launches its program in order, on the streams that its ops name",
    name="in-order",
    synchronisation="issue",
    linearize="topological",
    streams="recorded",
    allocator=_CACHING,
)
cuda_streams: Final = Runtime(
    "CUDA streams: asynchronous launches in program order, branches on streams of their own, events between",
    name="sequential",
    linearize="topological",
    streams="per-branch",
)
cuda_graph: Final = Runtime(
    "CUDA graph: the ops of a device are captured, branches on streams of their own, and launched as one",
    name="in-order",
    synchronisation="issue",
    linearize="topological",
    streams="per-branch",
    cuda_graph=True,
)


torchgpipe: Final = Runtime(
    "torchgpipe: GPipe, backward passes last in, first out, all but the last micro-batch recomputed",
    name="gpipe",
    order="lifo",
    checkpoint="except_last",
    allocator=_CACHING,
)


pipedream: Final = Runtime(
    "PipeDream: asynchronous 1F1B with stashed weights, no recomputation",
    name="pipedream",
    checkpoint="never",
    allocator=_CACHING,
)
