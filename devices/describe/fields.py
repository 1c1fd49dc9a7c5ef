"""The keys of a device, a link, a host and a machine: one table each.

A description is a plain mapping from a scenario file or a preset. Its keys are defined only in these
tables; the scenario schema, `sim devices` and `devices.describe.field_reading` all use them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, Final

from devices.describe.field_reading import Field, value_at
from devices.describe.field_types import DEFAULT, TYPES
from sim.base import plugins
from sim.base.errors import UnknownNameError

_STREAMED: Final = ("gpu", "npu", "other")
"""Kinds of device whose tasks are put on streams by a host."""

_overhead: Final = partial(Field, overhead=True)


def _table(*fields: Field) -> Mapping[str, Field]:
    return {field.name: field for field in fields}


DEVICE_FIELDS: Final = _table(
    Field("preset", "word", "take what is known of this device; other keys override it", example="h200-sxm"),
    Field("kind", "word", "cpu, gpu or npu; any other word: a device that only has streams", example="gpu"),
    Field("ideal", "flag", "drop every overhead and loss of the preset"),
    Field("description", "word", "what it is, in one line", example="the GPU of my desk"),
    Field("sources", "mapping", "where each number comes from; not used for anything else"),
    Field("count", "number of devices", "this many such devices, called name0, name1, ...; default one"),
    # -- who issues and how many run at once
    Field("cores", "number of lanes", "cores of a CPU, or of an NPU", ("cpu", "npu")),
    Field(
        "workers", "number of lanes", "worker threads that run ops; default cores / cores_per_op", ("cpu",)
    ),
    Field(
        "cores_per_op",
        "positive count",
        "cores that one op uses; default 1; an NPU has cores / cores_per_op queues",
        ("cpu", "npu"),
    ),
    Field(
        "queues_per_core",
        "positive count",
        "queues of one core; with 2, its matrix and its vector unit can run two ops at once; default 1",
        ("npu",),
    ),
    Field(
        "intra_op_parallelism_threads",
        "number of lanes",
        "threads of one pool that ops running at once share, in place of cores for each; an op alone uses "
        "cores_per_op of them, by default all, and workers is by default the cores",
        ("cpu",),
    ),
    _overhead("serial_fraction", "part", "part of an op that more cores do not speed up (Amdahl)", ("cpu",)),
    Field("speedup", "curve", "speed-up by cores, in place of serial_fraction; linear in between", ("cpu",)),
    _overhead(
        "oversubscription_cost",
        "factor",
        "share that each thread per core beyond the first adds to the time of all ops; 0: fair time slicing",
        ("cpu",),
    ),
    Field(
        "streams",
        "streams",
        "queues whose tasks start in order; default as many as policy.streams uses, or 1; or a list: of "
        "each its priority (lower first; default 0) and partition (default in turn)",
        ("gpu", "other"),
    ),
    # -- overheads of issuing
    _overhead("issue_cost", "duration by kind", "cost to the issuer of issuing an op"),
    _overhead(
        "launch_latency", "duration", "time from issue on an idle stream to the earliest start", _STREAMED
    ),
    _overhead("gap", "duration", "least time between two tasks of a stream", _STREAMED),
    _overhead(
        "event_hop",
        "duration",
        "time from a task's end to a task on another stream that waits for it",
        _STREAMED,
    ),
    _overhead(
        "event_record",
        "duration",
        "cost to the host of recording an event: once for each op that other streams wait for",
        ("gpu",),
    ),
    _overhead(
        "event_wait",
        "duration",
        "cost to the host of making a stream wait: once for each other stream that an op reads from",
        ("gpu",),
    ),
    _overhead(
        "cuda_graph",
        "graph launch",
        "cost of launching a CUDA graph, and least time between two of its kernels; default the cost of one "
        "op, and gap",
        ("gpu",),
    ),
    Field("legacy_stream", "flag", "the first stream is CUDA's legacy default stream", ("gpu",)),
    _overhead(
        "queue_depth",
        "count or unlimited",
        "launches outstanding before the issuer blocks; default unlimited",
        _STREAMED,
    ),
    # -- what an op costs
    Field("peak", "flop rate by dtype", "arithmetic rate for dense data; default no limit"),
    Field(
        "matrix",
        "matrix unit",
        "the matrix units: peak (default that of the device), block_size (edge of the cube that one "
        "multiplies at once: sizes are rounded up to it; default 1), kinds of op that run there (default "
        "products)",
        ("npu",),
    ),
    Field(
        "vector",
        "vector unit",
        "the vector units: peak (default that of the device), scratchpad of one, if it has its own",
        ("npu",),
    ),
    Field("dtype", "dtype", "dtype of ops that name none; default fp32"),
    Field("bandwidth", "bandwidth", "bandwidth of the device's memory; default no limit"),
    Field("clock", "frequency", "boost clock of the SMs; fitted costs need it", ("gpu",)),
    Field("l2", "size", "the last cache on the chip; fitted costs need it", ("gpu",), example="50MiB"),
    Field(
        "generation",
        "generation",
        "architecture: whose kernels it runs, if not its own were measured",
        ("gpu",),
    ),
    Field(
        "sustained",
        "fraction by dtype",
        "part of peak that the clock under load leaves; default all",
        ("gpu",),
        example="72%",
    ),
    Field(
        "core_bandwidth",
        "bandwidth",
        "bandwidth of one core (of an NPU its DMA's, each way); default its share of bandwidth",
        ("cpu", "npu"),
    ),
    _overhead("efficiency", "fraction by kind", "part of the peak rate that large ops reach"),
    _overhead("memory_efficiency", "fraction by kind", "part of the bandwidth that large ops reach"),
    _overhead("op_overhead", "duration by kind", "extra time on the device for every op"),
    _overhead(
        "kernel_floor",
        "duration",
        "least time of a kernel that takes its roofline, if its kind has no op_overhead",
        ("gpu",),
        example="1.5us",
    ),
    # What was measured and fitted holds losses; what is left of an ideal device is its roofline.
    _overhead(
        "cost",
        "anything",
        "roofline (default), fitted, {fixed: ...}, {table: ...}, or a list tried in turn",
        example="roofline",
    ),
    Field(
        "power",
        "power",
        "what it draws while an op executes (busy), and else (idle), for the result energy; default 0",
    ),
    Field("kinds", "words", "kinds of op that the device can run; default all"),
    # -- what its tasks share
    _overhead(
        "sharing",
        "device sharing",
        "what concurrent ops compete for: cores or time slices of a CPU, SMs (and DRAM) of a GPU",
        ("cpu", "gpu"),
    ),
    Field("sms", "number of lanes", "streaming multiprocessors", ("gpu",), example="132"),
    Field(
        "use_sms",
        "count or share",
        "use only this many or this share of the SMs; peak is cut in proportion",
        ("gpu",),
    ),
    Field(
        "partitions",
        "counts by name",
        "split the SMs: how many SMs each partition has (green contexts)",
        ("gpu",),
    ),
    Field("max_resident", "positive count", "kernels resident at once; default 128", ("gpu",)),
    Field("blocks_per_sm", "positive count", "blocks of a kernel that fit on one SM; default 1", ("gpu",)),
    # -- memory and copies
    Field("memory", "bytes", "memory capacity; default unlimited"),
    Field(
        "virtual_devices",
        "sizes",
        "cut the memory into named parts, each with an allocator: part NAME holds tensors of ops NAME/...",
    ),
    _overhead(
        "pin_memory",
        "flag",
        "true (default): copy engines read its memory directly; false: it is pageable, and copies to and "
        "from GPUs and NPUs occupy the host thread that launches there",
        ("cpu",),
        example="false",
    ),
    _overhead(
        "staging_bandwidth",
        "bandwidth",
        "bandwidth of copies through the driver's buffers, with pageable memory; default no limit",
        ("cpu",),
        example="6GB/s",
    ),
    Field(
        "scratchpad",
        "bytes",
        "software-managed memory of a core, through which operands pass in tiles",
        ("npu",),
        example="1MiB",
    ),
    Field(
        "double_buffered",
        "flag",
        "load the next tile while computing on one; false: one after another; default true",
        ("npu",),
    ),
    _overhead("latency", "duration", "cost of starting a DMA, for each tile and direction", ("npu",)),
    Field("granule", "bytes", "smallest tile of an operand; default 64B", ("npu",), example="512B"),
    Field(
        "copy_engines",
        "count or unlimited",
        "copy or DMA engines; 1: one transfer at a time; 2: one in each direction; default unlimited",
        ("gpu", "npu"),
    ),
)
"""Every key of a device, in the order shown in help texts."""

LINK_FIELDS: Final = _table(
    Field("name", "word", "default: from->to", example="nvlink"),
    Field(
        "from",
        "word",
        "device, or pattern such as gpu* or {node}/gpu*: one link for each; a word in braces stands for "
        "the same at both ends",
        example="gpu0",
    ),
    Field("to", "word", "device, or pattern, as from", example="gpu1"),
    _overhead("latency", "duration", "time before the first byte arrives; default 0"),
    Field("bandwidth", "bandwidth", "bandwidth in one direction; default no limit"),
    _overhead("efficiency", "fraction", "part of the bandwidth that transfers reach; default all"),
    Field(
        "sharing",
        "link sharing",
        "serial: one transfer after another, which holds its whole route (default); shared: max-min fair; "
        "fifo: each link sends chunks, by default whole messages, one after another (store and forward); "
        "independent: no contention; instant: no bandwidth limit either",
    ),
    Field(
        "rendezvous",
        "flag",
        "a recv that finds its tensor by key sends a request first (between processes); default false",
    ),
    Field(
        "duplex",
        "duplex",
        "true (default): one such link in each direction; half: both share what one has; false: one way only",
        example="half",
    ),
    Field(
        "bus",
        "word",
        "all links that name the same bus are one: they share its bandwidth; words in braces as in from",
        example="pcie",
    ),
    _overhead(
        "transport",
        "transport",
        "what messages cost besides latency and bandwidth: local (nothing, default), rdma, tcp; or fixed "
        "(each, once on its way), bandwidth (most that all from one device to another get together), "
        "host_copies (a thread of the sender's host copies each, and does nothing else meanwhile)",
    ),
    Field(
        "sources", "anything", "where its numbers come from; not used for anything else", example="datasheet"
    ),
)
"""Every key of a link."""

ROUTE_FIELDS: Final = _table(
    Field("from", "word", "device, or pattern", example="gpu0"),
    Field("to", "word", "device, or pattern, as in a link", example="gpu2"),
    Field("via", "words", "the devices in between; words in braces are those of from and to"),
)
"""Every key of an explicit route."""

HOST_FIELDS: Final = _table(
    Field("devices", "words", "devices on which it launches ops; patterns such as gpu* may be used"),
    Field("threads", "number of lanes", "host threads; default 1"),
)
"""Every key of a host."""

MACHINE_FIELDS: Final = _table(
    Field("preset", "word", "take a known machine; other keys override or add", example="dgx-h200"),
    Field("ideal", "flag", "drop every overhead and loss of all devices and links"),
    Field("description", "word", "what it is, in one line", example="the machine under my desk"),
    Field("sources", "mapping", "where the numbers come from; not used for anything else"),
    Field("devices", "mapping", "name to device"),
    Field(
        "nodes",
        "number of devices",
        "so many of what devices, links and hosts describe: node0/gpu0, node1/gpu0, ...",
        example="16",
    ),
    Field(
        "topology",
        "mapping",
        "what connects the devices, or with nodes the nodes: kind (fat-tree, mesh, pcie, rail-optimised, "
        "ring, switch, torus), options",
        example="{kind: ring, link: {bandwidth: 30GB/s}}",
    ),
    Field(
        "routing",
        "routing",
        "shortest (default): fewest hops, then least latency; ecmp: flows spread over all such ways by a "
        "hash of the flow and a seed",
    ),
    Field(
        "routes",
        "anything",
        "list of given routes: from, to (devices or patterns), via (the devices in between)",
        example="[{from: gpu0, to: gpu2, via: [gpu1]}]",
    ),
    Field(
        "sharing",
        "link sharing",
        "how all links share; default as each link says",
    ),
    Field(
        "links",
        "anything",
        "list of links; without any, transfers take no time",
        example="[{from: gpu0, to: gpu1}]",
    ),
    Field(
        "resources",
        "counts by name",
        "what ops take beside their device (attribute resources), and how much of it there is",
        example="{crane: 2, people: 5}",
    ),
    Field("hosts", "mapping", "name to host; default one host thread per device without workers"),
    Field(
        "collectives",
        "mapping",
        "how long collectives of communicators take that give no duration: model (default formula; of "
        "presets with NVSwitches nccl), options",
        example="{model: formula, algorithm: ring}",
    ),
)
"""Every key of a machine."""


# ----------------------------------------------------------------------------------------------------------
# Kinds of op: a closed list, so that a typing error is reported and not taken for a new kind.
#
#     efficiency: {matmull: 0.5}    no op is a matmull, so products would run at the peak
#
# It includes the kinds made by importers, builders and rewrites. A package registers further ones in the
# entry-point group ``sim.kinds``; a scenario names those of its own ops:
#
#     workload: {kinds: [tokenize], ops: {t: {kind: tokenize, duration: 3us}}}

_FORMULAS: Final = """
    reshape flatten squeeze unsqueeze identity stop_gradient dropout read_variable switch merge enter exit
    next_iteration loop_cond shape size rank const no_op placeholder control_trigger arg retval send recv
    constant_of_shape fill range eye_like zeros_like ones_like one_hot concat transpose pad cast tile expand
    pack where compress depth_to_space space_to_depth reverse reverse_sequence scatter_elements scatter_nd
    trilu copy gather gather_elements gather_nd slice strided_slice split unpack add sub mul div floor_div
    mod pow relu abs neg sign ceil floor round sqrt rsqrt exp log sin cos tan asin acos atan sinh cosh tanh
    asinh acosh atanh erf reciprocal square not and or xor is_nan is_inf equal not_equal greater less
    greater_or_equal less_or_equal bitwise_and bitwise_or bitwise_xor bitwise_not bit_shift bias_add
    relu_grad cum_sum clip relu6 leaky_relu prelu thresholded_relu squared_difference dequantize_linear elu
    celu softplus softsign hard_sigmoid shrink sigmoid_grad tanh_grad rotary_embedding sigmoid selu
    rsqrt_grad rms_norm softmax log_softmax gelu silu hard_swish quantize_linear mish gelu_grad
    layer_norm_grad layer_norm instance_norm group_norm mean_variance_norm reduce_sum reduce_mean reduce_max
    reduce_min reduce_prod reduce_all reduce_any argmax argmin global_average_pool global_max_pool
    bias_add_grad max_pool_grad non_zero reduce_l1 reduce_l2 reduce_sum_square reduce_log_sum
    reduce_log_sum_exp softmax_grad softmax_cross_entropy sparse_softmax_cross_entropy batch_norm_grad conv
    conv_transpose depthwise_conv conv_input_grad conv_weight_grad matmul gemm einsum attention
    attention_grad embedding_grad adam lstm gru rnn max_pool average_pool average_pool_grad lrn batch_norm
    resize top_k unique add_n maximum minimum mean_n assign assign_add assign_sub
"""
WITH_FORMULA: Final = frozenset(_FORMULAS.split())
"""Kinds whose cost follows from the shapes of their tensors (`scenarios.ops.op_costs.COSTS`)."""

_OTHERS: Final = """
    call if while all_reduce all_gather reduce_scatter alltoall
    op task data draw load decode augment collate forward backward optimizer elementwise embedding conv2d
    collective broadcast reduce all_to_all barrier synchronise wait post kernel memcpy memset relayout
    layout_transform source sink variable sgd dropout_grad linear bmm moe moe_dispatch moe_combine
    gated_activation rope quantize causal_conv1d gated_delta_rule
"""
KINDS: Final = frozenset((*WITH_FORMULA, *(f"{kind}_grad" for kind in WITH_FORMULA), *_OTHERS.split()))
"""The built-in kinds."""

BY_KIND: Final = tuple(
    name
    for name, field in DEVICE_FIELDS.items()
    if field.type.endswith("by kind") and TYPES[field.type].by_key
)
"""Keys of a device whose value may be a mapping by kind of op."""
LISTS_OF_KINDS: Final = ("kinds", "matrix.kinds")
"""Keys of a device whose value is a list of kinds of op."""


def known_kinds() -> list[str]:
    """Return all known kinds, including those of other packages, sorted."""
    return sorted({*KINDS, *plugins.names("sim.kinds")})


def check_kind(word: str, own: Collection[str], *path: str | int) -> None:
    """Raise if a word is neither a known kind nor one of the user's own.

    Parameters
    ----------
    word : str
    own : collection of str
    *path : str and int
        Where it stands.

    Raises
    ------
    UnknownNameError
        With the nearest kind.
    """
    if word in KINDS or word in own:
        return
    known = [*known_kinds(), *own]  # ask the packages only now: that takes time
    if word not in known:
        raise UnknownNameError("kind of op", word, dict.fromkeys(known), path=path)


def check_kinds(values: Mapping[str, Any], own: Collection[str]) -> None:
    """Raise if the description of a device names an unknown kind of op.

    Parameters
    ----------
    values : mapping
        The description as `devices.describe.field_reading.read_fields` returns it.
    own : collection of str
        The user's own kinds.

    Raises
    ------
    UnknownNameError
        With the path of the kind, and the nearest one.

    Examples
    --------
    >>> check_kinds({"efficiency": {"matmull": 1}}, own=())
    Traceback (most recent call last):
        ...
    sim.base.errors.UnknownNameError: efficiency.matmull: unknown kind of op 'matmull'; did you mean ...
    """
    own = (DEFAULT, *own)
    for name in BY_KIND:
        for kind in values.get(name) or ():
            check_kind(kind, own, name, kind)
    for name in LISTS_OF_KINDS:
        for i, kind in enumerate(value_at(values, name) or ()):
            check_kind(kind, own, *name.split("."), i)
    _check_cost(values.get("cost"), own, "cost")


def _check_cost(spec: object, own: Collection[str], *path: str | int) -> None:
    """Raise if a cost model given by kind, alone or in a list, names an unknown kind."""
    if isinstance(spec, list | tuple):
        for i, each in enumerate(spec):
            _check_cost(each, own, *path, i)
    elif isinstance(spec, Mapping):
        fixed, roofline = spec.get("fixed"), spec.get("roofline")
        by_kind = {"fixed": fixed}
        if isinstance(roofline, Mapping):
            by_kind |= {f"roofline.{name}": roofline.get(name) for name in BY_KIND}
        for name, mapping in by_kind.items():
            for kind in mapping if isinstance(mapping, Mapping) else ():
                check_kind(kind, own, *path, *name.split("."), kind)
