"""``workload: {serving: {model: llama3-70b, requests: {rate: 8/s, ...}, ...}}``: requests, step by step.

::

    fields ──► model, calibration ──► what a step takes ┐
    policy ──► a batcher for each replica               ├► engine ──► passes ──► graph of steps ──► run
    requests, router                                    ┘                                   └─► report

The policy is the batcher. The steps that the engine decided become a graph, whose run gives the trace.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Collection, Mapping
from copy import copy
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
from pydantic import Field, model_validator

from devices.describe.field_types import Bandwidth, Duration, fault
from devices.describe.quantities import Count, File, Name, Shorthand, Size, Strict
from policies.serving.batcher import Batcher, Step
from policies.serving.kv_blocks import KvBlocks
from policies.serving.routers import RequestRouter
from scenarios.fields.policy_fields import AnyChoice, Choice, PolicyFields
from scenarios.file.document import Document, Loc
from scenarios.serving.engine import Pull, Serve, StepTime
from scenarios.serving.metrics import measured_metrics
from scenarios.serving.requests import RequestsFields
from scenarios.serving.serving_report import serving_report
from scenarios.serving.step_cost import ModelStep, TableStep
from scenarios.workloads.calibrations import CalibrationFields, calibration_of
from scenarios.workloads.train_workload import DType, ModelFields, architecture_of
from scenarios.workloads.workload import Work, Workload
from sim import Device, GraphBuilder, Machine
from sim.base import plugins
from sim.base.arrays import Csr
from sim.base.errors import InputError, OutOfMemoryError, error_path
from sim.base.options import make_plugin
from sim.base.units import format_bytes
from sim.graph.graph import Graph

if TYPE_CHECKING:
    from sim.trace import Trace


class ReplicaFields(Strict):
    """How GPUs serve a model.

    Attributes
    ----------
    tp
        GPUs that share each layer of a replica
    experts
        GPUs of a replica share each expert, or have whole ones (expert parallelism)
    replicas
        copies of the model, each with its own engine
    """

    tp: Size = 1
    experts: Literal["shared", "apart"] = "shared"
    replicas: Size = 1


class KvFields(Strict):
    """The cache of keys and values of a replica.

    Attributes
    ----------
    blocks
        as the engine's log says; default: what memory leaves
    block_size
        tokens of a block
    utilisation
        part of the memory that the engine takes, without blocks
    dtype
        of keys and values
    """

    blocks: Count | None = None
    block_size: Size = 16
    utilisation: float = Field(0.9, gt=0, le=1)
    dtype: Literal["bf16", "fp8"] = "bf16"


class StepFields(Strict):
    """The duration of a step, instead of a model on a GPU.

    Attributes
    ----------
    fixed
        of every step
    token
        more for each token
    request
        more for each request
    table
        folder of measured kernels (dense.csv, attention.csv, ...)
    """

    fixed: Duration = 0
    token: Duration = 0
    request: Duration = 0
    table: File | None = None

    def ns(self, step: Step) -> int:
        """Return the duration of a step."""
        return self.fixed + self.token * sum(step.tokens.values()) + self.request * len(step.tokens)


class PrefillFields(Strict):
    """Replicas that only compute prompts; the others pull the keys and values.

    Attributes
    ----------
    replicas
        which compute prompts
    bandwidth
        of the link over which each GPU of a replica pulls, one prompt after another
    latency
        of a pull
    """

    replicas: Size = 1
    bandwidth: Bandwidth
    latency: Duration = 0


class LimitFields(Strict):
    """Limits that a request must keep to count as served well; all that are given.

    Attributes
    ----------
    ttft
        time to the first token
    tpot
        time of each further token, on average
    e2el
        time to the last token
    """

    ttft: Duration | None = None
    tpot: Duration | None = None
    e2el: Duration | None = None


class ServingFields(Strict):
    """Requests to a language model on replicas that serve it.

    Attributes
    ----------
    model
        a name, or sizes
    calibration
        what the GPU reaches, as for train
    dtype
        of the products
    kv
        keys and values
    max_model_len
        most tokens of a request; default: those of the longest one
    requests
        from a trace, at a rate, or so many in flight
    router
        which replica serves a request
    prefill
        prompts are computed apart
    limits
        of a request, for goodput
    step
        what a step takes, without a model
    host
        from scheduling a step to its earliest start
    measured
        vLLM's benchmark result of such a run, to put beside it
    """

    model: Annotated[ModelFields, Shorthand("name")] | None = None
    calibration: Name | CalibrationFields | None = None
    dtype: DType = "bf16"
    parallel: Annotated[ReplicaFields, Field(default_factory=ReplicaFields)]
    kv: Annotated[KvFields, Field(default_factory=KvFields)]
    max_model_len: Count | None = None
    requests: RequestsFields
    router: AnyChoice = Choice(name="round-robin")
    prefill: PrefillFields | None = None
    limits: Annotated[LimitFields, Field(default_factory=LimitFields)]
    step: StepFields | None = None
    host: Duration = 0
    measured: File | None = None

    @model_validator(mode="after")
    def _check_timing(self) -> ServingFields:
        measured = self.step is not None and self.step.table is not None
        priced = self.model is not None and self.calibration is not None
        if not (self.step or priced):
            raise fault("needs model and calibration, or step: what a step takes")
        if self.step is not None and not measured and self.model is not None:
            raise fault("has no effect beside step, which says what a step takes", ("model",))
        if measured and self.model is None:
            raise fault("tables are of a layer: give the model, whose layers are counted", ("step", "table"))
        if measured and self.parallel.tp > 1 and self.calibration is None:
            raise fault("needs a calibration: it says what GPUs send one another", ("parallel", "tp"))
        if not (self.kv.blocks or priced):
            raise fault("needs blocks: without model and calibration nothing else says how many", ("kv",))
        if self.prefill and not priced:
            raise fault("needs model and calibration: they say how many bytes a token takes", ("prefill",))
        return self


_KINDS: Final = ("decode", "prefill", "mixed")
_GPUS: Final = ("a100-sxm-80", "h100-sxm", "h200-sxm", "b200-sxm", "b300-sxm")
"""Newer GPUs, of which what-ifs try the next two."""


class Serving(Workload):
    """Serving of requests; its policy is the batcher."""

    deciders = "sim.batchers"
    decider = ("batcher", "a serving engine")

    serving: ServingFields

    def check_schedule(self, policy: PolicyFields) -> None:
        """Raise if the batcher does not have an option; a user's own code is checked only when it runs."""
        if ":" not in (policy.name or ""):
            make_plugin("sim.batchers", policy.name or "", policy.options, plugins.Origin(), Batcher)

    def default_policy(self) -> Mapping[str, Any]:
        """Return the batcher of scenarios that name none."""
        return {"name": "vllm-0.19"}

    def own_kinds(self) -> Collection[str]:
        """Return the kinds of steps."""
        return _KINDS

    def what_ifs(self, policy: PolicyFields) -> Mapping[str, Mapping[str, str]]:
        """Return settings that may help: memory, size of a step, batcher and router, more and faster GPUs."""
        fields, options = self.serving, policy.options

        def changed_keys(key: str, **values: Any) -> dict[str, str]:
            values_set = getattr(fields, key).model_dump(exclude_unset=True)
            return {f"workload.serving.{key}": json.dumps({**values_set, **values})}

        def decisions(**values: Any) -> dict[str, str]:
            return {"policy": json.dumps({"name": policy.name, **options, **values})}

        settings: dict[str, Mapping[str, str]] = {}
        if fields.kv.blocks is not None:
            settings["twice the blocks"] = changed_keys("kv", blocks=2 * fields.kv.blocks)
        elif fields.kv.dtype != "fp8":
            settings["keys and values in fp8"] = changed_keys("kv", dtype="fp8")
        if policy.name == "vllm-0.19":
            budget, seats = options.get("max_num_batched_tokens", 8192), options.get("max_num_seqs", 256)
            unchunked = {"enable_chunked_prefill": False, "max_num_batched_tokens": max(budget, 65536)}
            settings["twice the tokens of a step"] = decisions(max_num_batched_tokens=2 * budget)
            settings["half the tokens of a step"] = decisions(max_num_batched_tokens=budget // 2)
            settings["twice the requests of a step"] = decisions(max_num_seqs=2 * seats)
            settings["prompts in one piece"] = decisions(**unchunked)
            settings["sarathi's chunks of 512 tokens"] = {"policy": "sarathi"}
        if fields.parallel.replicas > 1:
            others = [name for name in plugins.names("sim.routers") if name != fields.router.name]
            settings |= {f"router {name}": {"workload.serving.router": name} for name in others}
        settings["one more replica"] = changed_keys("parallel", replicas=fields.parallel.replicas + 1)
        if fields.calibration is not None:
            settings["twice the GPUs of a replica"] = changed_keys("parallel", tp=2 * fields.parallel.tp)
            newer = _GPUS[_GPUS.index(fields.calibration) + 1 :] if fields.calibration in _GPUS else ()
            settings |= {f"on {gpu}": {"workload.serving.calibration": gpu} for gpu in newer[:2]}
        return settings

    def default_machine(self) -> Mapping[str, Any]:
        """Return a plain device for each replica."""
        return {"devices": {"replica": {"kind": "gpu", "count": self.serving.parallel.replicas}}}

    def work(
        self, document: Document, machine: Machine | None, policy: PolicyFields, loc: Loc, *, seed: int = 0
    ) -> Work:
        """Serve the requests; return the work with the steps as its graph.

        Raises
        ------
        InputError
            A wrong option, a request that can never be served, or a machine beside the calibration.
        OutOfMemoryError
            Memory leaves no room for keys and values.
        StuckError
            Requests are unfinished, and nothing can ever run again.
        """
        serving, origin, prefill, pull, measured = self.serving, document.origin, [], None, {}
        if machine is not None:
            message = "serving runs on what its calibration describes, and takes no machine"
            raise document.error(("machine",), message)
        with document.placing(*loc):
            replicas = range(serving.parallel.replicas)
            name, options = policy.name or "", policy.options
            batchers = [make_plugin("sim.batchers", name, options, origin, Batcher) for _ in replicas]
        limits = serving.limits.model_dump(exclude_none=True)
        with document.placing("workload", "serving"):
            with error_path("requests"):
                requests = serving.requests.requests(document, seed)
            limit = serving.max_model_len or max(request.prompt + request.output for request in requests)
            step_ns, gpu = _costs(serving, document)
            blocks, memory = _memory(serving, gpu, batchers[0], limit)
            if serving.prefill is not None and gpu is not None:
                prefill = [copy(batchers[0]) for _ in range(serving.prefill.replicas)]
                link = serving.prefill
                pull = Pull(link.latency, gpu.token_bytes(serving.kv.dtype), link.bandwidth)
            with error_path("router"):
                name, options = serving.router.name, serving.router.options
                router = make_plugin("sim.routers", name, options, origin, RequestRouter)
                router.begin(len(batchers), seed)
            for batcher in (*batchers, *prefill):
                with error_path("kv"):
                    cache = KvBlocks(blocks, serving.kv.block_size, batcher.reserved_blocks)
                with document.placing(*loc):
                    batcher.begin(cache, limit)
            for request in requests:
                if (reason := batchers[0].refuse(request)) is not None:
                    raise InputError(f"request {request.id} can never be served: {reason}", path=["requests"])
            drafts = any(request.accepted for request in requests)
            if getattr(batchers[0], "num_speculative_tokens", 0) and not drafts:
                where = "a trace in the project's own format has it (accepted)"
                warnings.warn(f"no draft is accepted: no request says how many are; {where}", stacklevel=2)
            if serving.measured is not None:
                with error_path("measured"):
                    measured = {"measured": measured_metrics(document.file(serving.measured), limits)}
            serve = Serve(step_ns, batchers, prefill, router=router, pull=pull, host_ns=serving.host)
            serve.run(requests, getattr(serving.requests, "in_flight", None))

        def report(trace: Trace) -> dict[str, Any]:
            summary = serving_report(serve, requests, limits, serving.parallel.tp)
            devices = {
                engine["name"]: {
                    "peak_memory_bytes": memory(engine["peak_blocks"]),
                    "peak_reserved_bytes": memory(blocks),
                }
                for engine in summary["engines"]
            }
            return {"serving": summary | measured, "devices": devices}

        return Work(*step_graph(serve), report, lambda trace, advise: None)


def _costs(fields: ServingFields, document: Document) -> tuple[StepTime, ModelStep | None]:
    """Return the duration of steps, and that of the model on its GPUs, if both are known."""
    step, gpu = fields.step, None
    if step is not None and step.table is None:
        return step.ns, None
    assert fields.model is not None
    with error_path("model"):
        model = architecture_of(fields.model, document)
    if fields.calibration is not None:
        with error_path("calibration"):
            calibration = calibration_of(fields.calibration, document, fields.dtype)
        with error_path("parallel"):
            gpu = ModelStep(model, calibration, fields.parallel.tp, fields.parallel.experts)
    if step is not None and step.table is not None:
        sent = None if gpu is None else gpu.all_reduce_ns
        with error_path("step", "table"):
            return TableStep(document.file(step.table), model.layers, sent), gpu
    assert gpu is not None
    return gpu, gpu


def _memory(
    fields: ServingFields, gpu: ModelStep | None, batcher: Batcher, limit: int
) -> tuple[int, Callable[[int], int | None]]:
    """Return the blocks that are given or fit into a GPU's memory, and its bytes in use by their number."""
    kv, seats, blocks = fields.kv, batcher.max_num_seqs, fields.kv.blocks
    if gpu is None:
        assert blocks is not None
        return blocks, lambda used: None
    tokens = min(getattr(batcher, "max_num_batched_tokens", limit), limit * seats)
    weights, activations = gpu.weights(fields.dtype), gpu.activations(tokens, seats)
    block_bytes, capacity = kv.block_size * gpu.token_bytes(kv.dtype), gpu.calibration.memory
    if blocks is None:
        if capacity is None:
            text = "needs blocks: the calibration does not say how much memory a GPU has"
            raise InputError(text, path=("kv",))
        blocks = (round(kv.utilisation * capacity) - weights - activations) // block_bytes
        if blocks < batcher.reserved_blocks + -(-limit // kv.block_size):
            sizes = [format_bytes(nbytes, iec=True) for nbytes in (capacity, weights, activations)]
            smaller = ", kv.dtype: fp8" if blocks > 0 and kv.dtype != "fp8" else ""
            raise OutOfMemoryError(
                f"out of memory: of {sizes[0]} a GPU, {100 * kv.utilisation:.0f}% of it taken, weights need "
                f"{sizes[1]} and activations some {sizes[2]}; that leaves {max(blocks, 0):,} blocks of "
                f"{kv.block_size} tokens, and the longest request has {limit:,} tokens\n"
                f"  what would help  more GPUs a replica (parallel.tp), a smaller dtype{smaller}"
            )
    elif capacity and weights + blocks * block_bytes > capacity:
        sizes = [format_bytes(nbytes) for nbytes in (blocks * block_bytes, weights, capacity)]
        text = f"{blocks:,} blocks take {sizes[0]} and weights {sizes[1]} of each GPU, which has {sizes[2]}"
        raise InputError(text, path=("kv", "blocks"))
    return blocks, lambda used: weights + activations + used * block_bytes


# ----------------------------------------------------------------------------------------------------------
# The steps as a graph: what the engine decided. A replica runs its steps in order; a step that starts at the
# arrival of a request, later than the end of the previous step, has a release time.
#
#     replica0   [0/0][0/1]           [0/2] ...


def step_graph(serve: Serve) -> tuple[Graph, Machine]:
    """Return the steps of engines as a graph, and the replicas as its machine."""
    steps, names = serve.passes.query("tokens > 0").reset_index(), serve.names
    by_replica, chunks, n = steps.groupby("replica"), steps["chunks"], len(steps)
    before = steps.index.to_series().groupby(steps["replica"]).shift(fill_value=-1).to_numpy()
    late = (steps["start_ns"] > by_replica["end_ns"].shift(fill_value=0)).tolist()
    shape = cache(lambda tokens, requests: {"tokens": tokens, "requests": requests})
    shapes = map(shape, steps["tokens"].tolist(), steps["requests"].tolist())
    starts = enumerate(zip(shapes, late, steps["start_ns"].tolist(), strict=True))
    builder = GraphBuilder("serving")
    builder.extend(
        [f"{names[replica]}/{i}" for i, replica in enumerate(steps["replica"])],
        kind=(_KINDS, np.select([chunks == 0, chunks == steps["requests"]], [0, 1], 2)),
        inputs=Csr(np.zeros(n + 1, np.int64), np.zeros(0, np.int64)),
        outputs=Csr(np.arange(n + 1), np.zeros(n, np.int64)),
        duration_ns=(steps["end_ns"] - steps["start_ns"]).to_numpy(),
        device=(names, steps["replica"].to_numpy()),
        after=Csr.of_counts((before >= 0).astype(np.int64), before[before >= 0]),
        attributes={i: shape | {"release": ns} if waits else shape for i, (shape, waits, ns) in starts},
    )
    return builder.build(), Machine(tuple(Device(name) for name in names))
