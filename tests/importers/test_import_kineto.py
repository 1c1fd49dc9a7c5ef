"""Profiler traces: the recorded ones are reproduced, and small ones made here are worked by hand."""

import json
from contextlib import nullcontext

import pytest
from import_helpers import recorded

from scenarios.importers import load_graph
from scenarios.importers.kineto.kernel_names import kind_of
from scenarios.importers.kineto.kineto import load
from scenarios.recorded.select import Names
from scenarios.recorded.setup import run_recorded
from sim.base.errors import InputError
from sim.explain.derived import DerivedColumns
from sim.explain.makespan_breakdown import breakdown_line
from sim.explain.narration import explain_text, host_time

LARGE = "a100_training_rank3"
RECORDED = {
    # file: (GPU tasks, no launch in the trace)
    LARGE: (9450, 0),
    "h100_bert_small": (61, 0),
    "h100_vit": (156, 0),
    "h100_qwen_0_5b": (1707, 509),
    "v100_dlrm_8_ranks/rank0": (261, 0),
    "v100_dlrm_8_ranks/rank4": (273, 0),
}


def earliest(graph):
    """Start and end of every op when it starts as soon as its edges allow."""
    start, end = [0] * len(graph), [0] * len(graph)
    predecessors, duration = graph.predecessors.lists(), graph.duration_ns.tolist()
    for op in graph.topological_order.tolist():
        start[op] = max((end[p] for p in predecessors[op]), default=0)
        end[op] = start[op] + duration[op]
    return start, end


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == LARGE else ()) for name in RECORDED]
)
def test_edges_hold_no_task_longer_than_it_was_held(name):
    """By its edges alone, without gaps and latencies, no task may start later than recorded."""
    tasks, missing = RECORDED[name]
    path = recorded(f"kineto/{name}.json.gz")
    warns = pytest.warns(UserWarning, match=f"{missing} of {tasks} GPU tasks have no launch in the trace")
    with warns if missing else nullcontext():
        graph = load_graph(path)
    start, _ = earliest(graph)
    found = {op: a["recorded_start_ns"] for op, a in graph.attributes.items() if "kernel" in a}
    assert len(found) == tasks
    assert all(start[op] <= recorded_start for op, recorded_start in found.items())


@pytest.mark.slow
def test_tasks_alone():
    graph = load(recorded(f"kineto/{LARGE}.json.gz"), host="none")
    assert len(graph) == 9450
    assert graph.pins == ("gpu",)
    streams = {a["stream"] for a in graph.attributes.values()}
    assert streams == {7, 20, 21, 22}
    kinds = [graph.kind(op) for op in range(len(graph))]
    assert (kinds.count("all_reduce"), kinds.count("all_to_all")) == (18, 42)


# -- small traces ---------------------------------------------------------------------------------


def host(name, correlation, ts, dur, tid=1):
    args = {"correlation": correlation, "External id": correlation}
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": name,
        "pid": 9,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def gpu(name, correlation, ts, dur, stream=7, device=0, category="kernel", **more):
    args = {
        "correlation": correlation,
        "stream": stream,
        "device": device,
        "External id": correlation,
        **more,
    }
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def operator(name, ts, dur, tid=1, number=None):
    args = {} if number is None else {"External id": number}
    event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": dur}
    return {**event, "args": args}


@pytest.fixture
def trace(tmp_path):
    def write(*events, **options):
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": list(events)}))
        return load(path, **options)

    return write


def edges(graph):
    return {
        (graph.op_names[a], graph.op_names[b])
        for a, b in zip(graph.edges.producer.tolist(), graph.edges.consumer.tolist(), strict=True)
    }


def test_operators_and_modules_of_host_and_kernels(trace):
    """Two layers; the host's time begins with the first call, and what comes before a call counts with it."""

    def inside(name, ts, dur, category="python_function"):
        return operator(name, ts, dur) | {"cat": category}

    graph = trace(
        inside("ProfilerStep#3", 0, 100, "user_annotation"),
        inside("forward", 0, 60, "user_annotation"),
        inside("nn.Module: Net_0", 0, 60),
        inside("nn.Module: Layer_0", 5, 20),
        inside("nn.Module: Layer_1", 30, 20),
        inside("torch/nn/functional.py(12): relu", 30, 20),
        operator("aten::mm", 8, 12),
        operator("aten::relu", 32, 12),
        host("cudaLaunchKernel", 1, 10, 4),
        host("cudaLaunchKernel", 2, 34, 4),
        host("cudaDeviceSynchronize", 3, 70, 10),
        gpu("gemm", 1, 16, 5),
        gpu("relu", 2, 40, 30),
    )
    mm, relu = (
        {"operator": f"aten::{op}", "module": f"forward/Net_0/Layer_{n}"}
        for n, op in enumerate(("mm", "relu"))
    )
    found = {
        name: {key: own[key] for key in ("operator", "module") if key in own}
        for name, own in ((graph.op_names[op], own) for op, own in graph.attributes.items())
    }
    assert found == {
        "launch.0": mm,
        "gemm.0": mm,
        "launch.1": relu,
        "relu.1": relu,
        "host.2": {},
        "synchronize.2": {},
    }
    words = ("aten::mm", "Layer", "Layer_1", "Net", "forward", "*Layer_0*")
    assert [int(Names(graph).find(word).sum()) for word in words] == [2, 4, 2, 4, 4, 2]
    f = DerivedColumns(run_recorded(graph))
    assert host_time(f) == {
        "operator": {"aten::relu": (24_000, 1), "aten::mm": (4_000, 1)},
        "module": {"Layer": (28_000, 2), "Net": (28_000, 2), "forward": (28_000, 2)},
    }
    ended = f.end[f.by_worker].min()  # of mm, at 4 us
    assert host_time(f.within(from_ns=int(ended) + 1))["operator"] == {"aten::relu": (23_999, 1)}
    assert breakdown_line(f).startswith("host-bound: cpu: ")
    text = explain_text(f.trace)
    assert "Host time by module, with all that it calls\n  Layer " in text


def test_launches_streams_and_synchronisation(trace):
    """Times in microseconds; the host does 10 us of work before each launch."""
    graph = trace(
        {"ph": "M", "name": "process_name"},
        operator("aten::mm", 0, 20),
        host("cudaGetDevice", 99, 0, 1),
        host("cudaLaunchKernel", 1, 10, 4),
        gpu("void ns::gemm_kernel<float, 4>(int)", 1, 15.5, 30, grid=[8, 1, 1]),
        host("cudaMemcpyAsync", 2, 24, 4),
        gpu("Memcpy DtoH (Device -> Pinned)", 2, 46, 5, category="gpu_memcpy", bytes=4096),
        host("cudaStreamSynchronize", 3, 30, 25),
        host("cudaLaunchKernel", 4, 65, 9),
        gpu("vectorized_elementwise_kernel", 4, 70, 2.0005),
    )
    assert [*graph.op_names] == [
        *["launch.1", "launch.2", "gemm_kernel.0", "host.3", "DtoH.1", "synchronize.3", "launch.4"],
        "vectorized_elementwise_kernel.2",
    ]
    # The first kernel shows a latency of 1.5 us. So launch.4 lasts from the end of the synchronize at 55 to
    # 68.5, as its kernel starts at 70, within the call. The copy shows a gap of 0.5 us.
    facts = {"gap": "500ns", "event_hop": "500ns", "launch_latency": "1500ns"}
    assert graph.device_facts == {"gpu": facts}
    assert graph.duration_ns.tolist() == [14_000, 14_000, 30_000, 2_000, 5_000, 4_000, 13_500, 2_001]
    assert edges(graph) == {
        ("launch.1", "launch.2"),
        ("launch.2", "host.3"),
        ("host.3", "synchronize.3"),
        ("synchronize.3", "launch.4"),
        ("launch.1", "gemm_kernel.0"),
        ("launch.2", "DtoH.1"),
        ("launch.4", "vectorized_elementwise_kernel.2"),
        ("gemm_kernel.0", "DtoH.1"),
        ("DtoH.1", "vectorized_elementwise_kernel.2"),
        ("DtoH.1", "synchronize.3"),
    }
    start, end = earliest(graph)
    assert (start[-1], end[-1]) == (14_000 + 30_000 + 5_000 + 4_000 + 13_500, 68_501)
    gemm = graph.index("gemm_kernel.0")
    assert graph.attributes[gemm] == {
        "stream": 7,
        "kernel": "void ns::gemm_kernel<float, 4>(int)",
        "recorded_start_ns": 15_500,
        "operator": "aten::mm",
        "grid": [8, 1, 1],
    }
    assert graph.kind(gemm) == "matmul"
    assert [graph.pins[code] for code in graph.pin_code[:3].tolist()] == ["cpu", "cpu", "gpu"]
    copy = graph.index("DtoH.1")
    assert (graph.bytes_read[copy], graph.bytes_written[copy]) == (4096, 4096)


def operators(graph):
    return [graph.attributes[op].get("operator") for op in range(len(graph)) if graph.pins[0] == "gpu"]


def test_the_operator_of_a_task_is_the_innermost_around_its_launch(trace):
    """Numbers say it only where the launch is not in the trace, and are not the launch's own."""
    events = [
        operator("aten::linear", 0, 20, number=3),
        operator("aten::addmm", 2, 8, number=4),
        operator("aten::t", 2, 3, number=5),
        operator("aten::mul", 5, 3, tid=2, number=2),
        host("cudaLaunchKernel", 1, 5, 5),
        gpu("in addmm", 1, 11, 1),
        host("cudaLaunchKernel", 2, 10, 0),
        gpu("begins with the end of addmm, and ends with it", 2, 12, 1),
        host("cudaLaunchKernel", 3, 10, 2),
        gpu("begins with the end of addmm", 3, 13, 1),
        host("cudaLaunchKernel", 4, 12, 9),
        gpu("outlasts its operator", 4, 22, 1),
        host("cudaLaunchKernel", 5, 20, 1),
        gpu("behind all", 5, 24, 1),
        gpu("of a launch before the trace", 6, 25, 1, **{"External id": 4}),
        gpu("numbered as its launch", 7, 26, 1),
        {**operator("never ended", 0, 2.0**70), "args": {"External id": 7}},
        {**operator("no number", 0, 1), "tid": "autograd"},
    ]
    added = ["aten::addmm", "aten::addmm", "aten::linear", "aten::linear", None, "aten::addmm", None]
    assert operators(trace(*events, host="none")) == added
    assert operators(trace(*events[::-1], host="none")) == added


def test_waits_are_inferred_where_they_are_not_recorded(trace):
    """The collective waits for the kernel before it, the last kernel for it; nobody for what overlaps."""
    events = [
        host("cudaLaunchKernel", 1, 0, 2),
        gpu("a_kernel", 1, 10, 20),
        host("cudaStreamWaitEvent", 2, 4, 1),
        host("cudaLaunchKernel", 3, 6, 2),
        gpu("ncclKernel_AllReduce_RING", 3, 31, 50, stream=20),
        host("cudaLaunchKernel", 4, 10, 2),
        gpu("b_kernel", 4, 32, 10),
        host("cudaStreamWaitEvent", 5, 14, 1),
        host("cudaLaunchKernel", 6, 16, 2),
        gpu("c_kernel", 6, 82, 5),
    ]
    found = edges(trace(*events, host="none"))
    order = {("a_kernel.0", "b_kernel.2"), ("b_kernel.2", "c_kernel.3")}
    nccl = "ncclKernel_AllReduce_RING.1"
    assert found == order | {("a_kernel.0", nccl), (nccl, "c_kernel.3")}
    # c starts while the collective runs: so it did not wait for it
    events[-1] = gpu("c_kernel", 6, 60, 5)
    assert edges(trace(*events, host="none")) == order | {("a_kernel.0", nccl)}


def test_recorded_waits_are_taken_as_they_are(trace):
    def wait(corr, stream, on, recorded):
        args = {"stream": stream, "correlation": corr, "device": 0, "wait_on_stream": on}
        args["wait_on_cuda_event_record_corr_id"] = recorded
        event = {"ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "ts": 0, "dur": 0}
        return {**event, "pid": 0, "tid": stream, "args": args}

    events = [
        gpu("a", 1, 10, 5),
        gpu("b", 3, 20, 5),
        gpu("c", 6, 40, 5, stream=20),
        gpu("d", 8, 50, 5, stream=20),
    ]
    order = {("a.0", "b.1"), ("c.2", "d.3")}
    assert edges(trace(*events, wait(5, 20, 7, 2), host="none")) == order | {("a.0", "c.2")}
    assert edges(trace(*events, wait(7, 20, 7, 4), host="none")) == order | {("b.1", "d.3")}
    assert edges(trace(*events, wait(7, 20, -1, -1), host="none")) == order  # the profiler did not know
    assert edges(trace(*events, wait(9, 20, 7, 4), host="none")) == order  # nothing came after it


def test_a_wait_of_which_only_the_stream_is_known(trace):
    """Older records name event and stream, not the call that recorded it: the stream as it is at the wait."""

    def wait(corr, stream, on):
        args = {"stream": stream, "correlation": corr, "device": 0, "wait_on_stream": on}
        event = {"ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "ts": 0, "dur": 0}
        return {**event, "pid": 0, "tid": stream, "args": {**args, "wait_on_cuda_event_id": 99}}

    events = [gpu("a", 1, 10, 5), gpu("b", 3, 20, 25), gpu("c", 6, 40, 5, stream=20)]
    assert edges(trace(*events, wait(2, 20, 7), host="none")) == {("a.0", "b.1"), ("a.0", "c.2")}
    assert edges(trace(*events, wait(4, 20, 7), host="none")) == {("a.0", "b.1")}  # b ended after c began
    sync = wait(9, -1, 7) | {"name": "Event Sync"}
    with pytest.warns(UserWarning, match="no launch in the trace"):
        graph = trace(*events, host("cudaEventSynchronize", 9, 42, 5), sync)
    assert ("b.1", "synchronize.0") in edges(graph)
    sync["args"].pop("wait_on_cuda_event_id")
    with pytest.raises(InputError, match="no 'wait_on_cuda_event_record_corr_id'"):
        trace(*events, sync)


def test_tasks_that_are_there_twice_are_told(trace):
    """Kernels of a graph have one launch, too, and times of their own."""
    events = [host("cudaLaunchKernel", 1, 0, 2), host("cudaGraphLaunch", 3, 5, 2)]
    events += [gpu("a", 1, 10, 5), gpu("a", 1, 10, 5), gpu("b", 3, 20, 5), gpu("b", 3, 30, 5)]
    with pytest.warns(UserWarning, match="1 of 4 GPU tasks are there twice"):
        trace(*events)


def by_event(name, corr, stream, on, recorded, event=99):
    """A noted wait; `recorded` None: the profiler is too old to say it."""
    args = {"stream": stream, "correlation": corr, "device": 0, "wait_on_stream": on}
    args |= {"wait_on_cuda_event_id": event}
    args |= {} if recorded is None else {"wait_on_cuda_event_record_corr_id": recorded}
    slice_ = {"ph": "X", "cat": "cuda_sync", "name": name, "ts": 0, "dur": 0, "pid": 0, "tid": stream}
    return {**slice_, "args": args}


BY_EVENT = [
    host("cudaLaunchKernel", 1, 0, 2),
    gpu("a", 1, 10, 5),
    host("cudaEventRecord", 2, 2, 1),
    host("cudaStreamWaitEvent", 3, 3, 1),
    host("cudaLaunchKernel", 4, 4, 2),
    gpu("b", 4, 15, 5),
    host("cudaLaunchKernel", 6, 8, 2),
    gpu("c", 6, 20, 5, stream=20),
    host("cudaEventSynchronize", 7, 10, 20),
]
"""Event 99 is recorded between a and b; stream 20 waits for it, and the host. c is after a on stream 20."""


def test_two_waits_for_an_event_are_for_one_recording(trace):
    """An older profiler does not say which: so the host waits for the stream as it was at the first wait."""
    waits = [by_event("Stream Wait Event", 3, 20, 7, None), by_event("Event Sync", 7, -1, 7, None)]
    assert edges(trace(*BY_EVENT, *waits)) >= {("a.0", "c.2"), ("a.0", "synchronize.5")}
    assert ("b.1", "synchronize.5") not in edges(trace(*BY_EVENT, *waits))
    again = host("cudaEventRecord", 5, 6, 1)
    assert ("b.1", "synchronize.6") in edges(trace(*BY_EVENT, *waits, again))
    unlike = [waits[0], by_event("Event Sync", 7, -1, 7, None, event=98)]
    assert ("b.1", "synchronize.5") in edges(trace(*BY_EVENT, *unlike))
    older = [event for event in BY_EVENT if event["name"] != "cudaEventRecord"]
    assert ("b.1", "synchronize.4") in edges(trace(*older, *waits))  # maybe it was recorded again


def test_a_wait_that_the_profiler_lost_is_for_what_others_name(trace):
    """Of two waits for an event one is resolved, the earlier or the later."""
    for told, lost in ((3, 7), (7, 3)):
        names = {3: ("Stream Wait Event", 3, 20), 7: ("Event Sync", 7, -1)}
        waits = [by_event(*names[told], 7, 2), by_event(*names[lost], -1, -1)]
        found = edges(trace(*BY_EVENT, *waits))
        assert found >= {("a.0", "c.2"), ("a.0", "synchronize.5")}
        assert ("b.1", "synchronize.5") not in found


def test_several_threads_and_devices(trace):
    graph = trace(
        host("cudaLaunchKernel", 1, 5, 2),
        host("cudaLaunchKernel", 2, 6, 2, tid=2),
        gpu("a", 1, 12, 5, device=0),
        gpu("b", 2, 13, 5, device=1),
        host("cudaDeviceSynchronize", 3, 10, 10),
    )
    assert graph.pins == ("cpu", "gpu0", "gpu1")
    threads = [graph.attributes[op].get("thread") for op in range(len(graph))]
    assert threads == ["thread0", "thread1", "thread0", None, None, "thread0"]
    assert {("a.0", "synchronize.2"), ("b.1", "synchronize.2")} < edges(graph)
    assert graph.duration_ns[graph.index("synchronize.2")] == 2_000  # from 18, when b ends, to 20


def test_what_rocm_leaves_out(trace):
    """Some profilers of ROCm note no grid, others but one number and the place in the trace."""
    launch, kernel = host("hipLaunchKernel", 1, 0, 5), gpu("a", 1, 10, 5, grid=[0, 0, 0], block=[0, 0, 0])
    for old in (False, True):
        events = [{**each, "args": {"External id": 1}} if old else each for each in (launch, kernel)]
        graph = trace(*events)
        assert edges(graph) == {("launch.0", "a.0")}
        assert graph.attribute("stream") == {1: 7}
        assert not graph.attribute("grid")


def test_a_rank_alone_needs_no_size_of_its_job(tmp_path):
    """Holistic Trace Analysis adds ``rank`` to traces of one process."""
    path = tmp_path / "trace.json"
    events = [host("cudaLaunchKernel", 1, 0, 2), gpu("a", 1, 5, 5)]
    path.write_text(json.dumps({"distributedInfo": {"rank": 0}, "traceEvents": events}))
    assert [*load(path).op_names] == ["launch.0", "a.0"]
    with pytest.raises(InputError, match="does not say which rank of how many it is"):
        load([path, path])


def test_kinds_of_kernels():
    names = {
        "ncclDevKernel_AllGather_RING_LL(ncclDevComm*)": "all_gather",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t": "all_to_all",
        "Memcpy HtoD (Pinned -> Device)": "copy",
        "ampere_sgemm_128x64_nn": "matmul",
        "flash_fwd_kernel<Flash_fwd_kernel_traits<64>>": "attention",
        "sm80_xmma_fprop_implicit_gemm": "conv",
        "void cunn_SoftMaxForward<4>": "softmax",
        "something_else": "kernel",
        # of other libraries: hipBLASLt, cuDNN on Volta, SageAttention, aiter, Inductor
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64": "matmul",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu": "matmul",
        "volta_scudnn_128x128_stridedB_splitK_small_nn_v1": "conv",
        "sage_fwd": "attention",
        "attn_fwd": "attention",
        "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64E": "layer_norm",
        "triton_poi_fused_addmm_gelu_view_17": "elementwise",
        "triton_red_fused_add_addmm_fmha_v3_fwd_mean_pow_rsqrt_3": "reduce",
        "triton_tem_fused_addmm_relu_4": "matmul",
        "triton_tem_fused_flex_attention_1": "attention",
        "triton_for_fused_1": "elementwise",
        # of FBGEMM, vLLM, FlashInfer and TensorRT-LLM
        "void split_embedding_codegen_forward_kernel<float>(fbgemm_gpu::FixedDivisor)": "gather",
        "enable_if<vllm::_typeConvert<c10::Half>::exists>::type vllm::fused_add_rms_norm": "layer_norm",
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>": "elementwise",
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, (vllm::Fp8KVCacheDataType)1>": "copy",
        "create_flashinfer_kv_indices_triton": "kernel",
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel<float>": "attention",
        "void quantize_with_block_size<32>(flashinfer::QuantizationSFLayout)": "elementwise",
        "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3": "matmul",
    }
    assert {name: kind_of(name) for name in names} == names


def test_what_pytorch_calls_a_collective_is_its_kind(trace):
    """NCCL may send and receive for any collective, and RCCL has one kernel for all."""
    calls = [
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "_reduce_scatter_base", "reduce_scatter"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "allreduce", "all_reduce"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "_allgather_base", "all_gather"),
        ("ncclDevKernel_SendRecv", "all_to_allv", "all_to_all"),
        ("ncclDevKernel_SendRecv", "recv", "recv"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "", "collective"),
        ("ampere_sgemm_128x64_nn", "allreduce", "matmul"),
    ]
    events = [
        gpu(name, n, 10 * n, 5, **({"Collective name": called} if called else {}))
        for n, (name, called, _) in enumerate(calls)
    ]
    graph = trace(*events, host="none")
    assert [graph.kind(op) for op in range(len(graph))] == [kind for *_, kind in calls]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([], "no kernel, copy or fill of a GPU in the trace"),
        ([gpu("a", 1, "now", 5)], r"traceEvents\[0\] \(a\): ts: 'now' is no time in microseconds"),
        ([gpu("a", 1, -1, 5)], r"traceEvents\[0\] \(a\): ts: -1 is no time in microseconds"),
        ([{**gpu("a", 1, 0, 5), "args": {}}], r"traceEvents\[0\] \(a\): no 'correlation'"),
        ([{**gpu("a", 1, 0, 5), "args": 3}], r"traceEvents\[0\] \(a\): "),
        (
            [gpu("a", 1, 0, 5, stream="x")],
            r"traceEvents\[0\] \(a\): stream: 'x' is no whole number of 64 bits",
        ),
        ([{"ph": "X", "cat": "kernel", "name": "a"}], r"traceEvents\[0\] \(a\): no 'args'"),
    ],
)
def test_wrong_traces_are_told(trace, events, message):
    with pytest.raises(InputError, match=message):
        trace(*events)


def test_other_files_are_no_traces(tmp_path):
    for content, message in {
        "{": "not JSON",
        '{"traceEvents": 3}': "not a trace",
        "3": "not a trace",
    }.items():
        (tmp_path / "t.json").write_text(content)
        with pytest.raises(InputError, match=message):
            load(tmp_path / "t.json")
    (tmp_path / "t.json").write_text('{"traceEvents": []}')
    with pytest.raises(InputError, match="those of one batch size"):
        load_graph(tmp_path / "t.json", batch=2)
