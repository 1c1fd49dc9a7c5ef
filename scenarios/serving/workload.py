"""``workload: {serving: {model: llama3-70b, requests: {rate: 8/s, ...}, ...}}``: requests, step by step.

::

    fields ──► model, calibration ──► what a step takes ┐
    policy ──► a batcher for each replica               ├► engine ──► passes ──► graph of steps ──► run
    requests, router                                    ┘                                   └─► report

The policy is the batcher. The steps that the engine decided become a graph, whose run gives the trace.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from devices.describe.field_types import Bandwidth, Duration, fault
from devices.describe.quantities import Count, File, Name, Shorthand, Size, Strict
from policies.serving.batcher import Batcher, Request
from policies.serving.kv_blocks import KvBlocks
from policies.serving.routers import RequestRouter, RoundRobin
from scenarios.fields.policy_fields import AnyChoice
from scenarios.file.document import Document, Loc
from scenarios.serving.engine import Pull, Serve, StepTime
from scenarios.serving.metrics import measured_metrics
from scenarios.serving.requests import RequestsFields
from scenarios.serving.serving_report import serving_report
from scenarios.serving.step_cost import LinearStep, ModelStep, ReplicaMemory
from scenarios.serving.step_tables import TableStep
from scenarios.workloads.calibrations import CalibrationFields, calibration_of
from scenarios.workloads.train_workload import DType, ModelFields, architecture_of
from scenarios.workloads.workload import Work, Workload
from sim import Device, GraphBuilder, Machine
from sim.base import plugins
from sim.base.errors import InputError, OutOfMemoryError, located
from sim.base.options import call_with_options
from sim.base.units import format_bytes
from sim.graph.graph import Graph

if TYPE_CHECKING:
    from scenarios.fields.policy_fields import PolicyFields
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
        which replica serves a request; default: round-robin
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

    model: Annotated[ModelFields | None, Shorthand("name")] = None
    calibration: Name | CalibrationFields | None = None
    dtype: DType = "bf16"
    parallel: Annotated[ReplicaFields, Field(default_factory=ReplicaFields)]
    kv: Annotated[KvFields, Field(default_factory=KvFields)]
    max_model_len: Count | None = None
    requests: RequestsFields
    router: AnyChoice | None = None
    prefill: PrefillFields | None = None
    limits: Annotated[LimitFields, Field(default_factory=LimitFields)]
    step: StepFields | None = None
    host: Duration = 0
    measured: File | None = None

    @model_validator(mode="after")
    def _timed(self) -> ServingFields:
        measured = self.step is not None and self.step.table is not None
        if self.step is None and (self.model is None or self.calibration is None):
            raise fault("needs model and calibration, or step: what a step takes")
        if self.step is not None and not measured and self.model is not None:
            raise fault("has no effect beside step, which says what a step takes", ("model",))
        if measured and self.model is None:
            raise fault("tables are of a layer: give the model, whose layers are counted", ("step", "table"))
        if self.kv.blocks is None and (self.model is None or self.calibration is None):
            raise fault("needs blocks: without model and calibration nothing else says how many", ("kv",))
        return self


_HERE: Loc = ("workload", "serving")
_NEWER: Final = ("a100-sxm-80", "h100-sxm", "h200-sxm", "b200-sxm", "b300-sxm")
"""Newer GPUs, of which what-ifs try the next two."""


class Serving(Workload):
    """Serving of requests; its policy is the batcher."""

    deciders = "sim.batchers"
    decider = ("batcher", "a serving engine")

    serving: ServingFields

    def check_schedule(self, policy: PolicyFields) -> None:
        """Raise if the batcher does not have an option; a user's own code is checked only when it runs."""
        if ":" not in (policy.name or ""):
            _batcher(policy, None)

    def default_policy(self) -> Mapping[str, Any]:
        """Return the batcher of scenarios that name none."""
        return {"name": "vllm-0.19"}

    def own_kinds(self) -> Collection[str]:
        """Return the kinds of steps."""
        return ("prefill", "decode", "mixed")

    def what_ifs(self, policy: PolicyFields) -> Mapping[str, Mapping[str, str]]:
        """Return settings that may help: memory, size of a step, batcher and router, more and faster GPUs."""
        of, options, here = self.serving, policy.options, "workload.serving."

        def changed(section: Strict, **values: Any) -> str:
            return json.dumps({**section.model_dump(exclude_unset=True), **values})

        def decided(**values: Any) -> dict[str, str]:
            return {"policy": json.dumps({"name": policy.name, **options, **values})}

        found: dict[str, Mapping[str, str]] = {}
        if of.kv.blocks is not None:
            found["twice the blocks"] = {f"{here}kv": changed(of.kv, blocks=2 * of.kv.blocks)}
        elif of.kv.dtype != "fp8":
            found["keys and values in fp8"] = {f"{here}kv": changed(of.kv, dtype="fp8")}
        if policy.name == "vllm-0.19":
            budget, seats = options.get("max_num_batched_tokens", 8192), options.get("max_num_seqs", 256)
            whole = max(budget, 65536)
            found |= {
                "twice the tokens of a step": decided(max_num_batched_tokens=2 * budget),
                "half the tokens of a step": decided(max_num_batched_tokens=budget // 2),
                "twice the requests of a step": decided(max_num_seqs=2 * seats),
                "prompts in one piece": decided(enable_chunked_prefill=False, max_num_batched_tokens=whole),
                "sarathi's chunks of 512 tokens": {"policy": "sarathi"},
            }
        if of.parallel.replicas > 1:
            now = of.router.name if of.router is not None else "round-robin"
            others = (name for name in plugins.names("sim.routers") if name != now)
            found |= {f"router {name}": {f"{here}router": name} for name in others}
        found["one more replica"] = {
            f"{here}parallel": changed(of.parallel, replicas=of.parallel.replicas + 1)
        }
        if of.calibration is not None:
            more = changed(of.parallel, tp=2 * of.parallel.tp)
            found["twice the GPUs of a replica"] = {f"{here}parallel": more}
            newer = _NEWER[_NEWER.index(of.calibration) + 1 :] if of.calibration in _NEWER else ()
            found |= {f"on {gpu}": {f"{here}calibration": gpu} for gpu in newer[:2]}
        return found

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
        if machine is not None:
            raise document.error(
                ("machine",), "serving runs on what its calibration describes, and takes no machine"
            )
        with document.placing(*loc):
            batchers = [_batcher(policy, document.origin) for _ in range(self.serving.parallel.replicas)]
        with document.placing(*_HERE, "requests"):
            requests = self.serving.requests.requests(document, seed)
        with document.placing(*_HERE):
            serve, memory = _serve(self.serving, batchers, requests, document, loc, seed)
        graph, devices = step_graph(serve)
        limits = self.serving.limits.model_dump(exclude_none=True)
        measured = {}
        if self.serving.measured is not None:
            with document.placing(*_HERE, "measured"):
                measured = {"measured": measured_metrics(document.file(self.serving.measured), limits)}

        def report(trace: Trace) -> dict[str, Any]:
            told = serving_report(serve, requests, limits, self.serving.parallel.tp)
            return {
                "serving": told | measured,
                "devices": {
                    each["name"]: {
                        "peak_memory_bytes": memory and memory(each["peak_blocks"]),
                        "peak_reserved_bytes": memory and memory(told["kv_blocks"]),
                    }
                    for each in told["engines"]
                },
            }

        return Work(graph, devices, report, lambda trace, advise: None)


def _batcher(policy: PolicyFields, origin: plugins.Origin | None) -> Batcher:
    """Return the batcher that a policy names."""
    assert policy.name is not None
    origin = origin or plugins.Origin()
    made = call_with_options(origin.lookup("sim.batchers", policy.name), policy.name, policy.options, origin)
    if not isinstance(made, Batcher):
        raise InputError(f"{policy.name!r} should extend policies.serving.batcher.Batcher", path=("name",))
    return made


def _serve(
    fields: ServingFields,
    batchers: Sequence[Batcher],
    requests: Sequence[Request],
    document: Document,
    loc: Loc,
    seed: int,
) -> tuple[Serve, Callable[[int], int] | None]:
    """Serve requests; return the engines, and a GPU's bytes in use by the number of blocks, if known."""
    limit = fields.max_model_len or max(request.prompt + request.output for request in requests)
    step_ns, memory = _costs(fields, document)
    blocks = fields.kv.blocks or _blocks(fields, memory, batchers[0], limit)
    in_use = None
    if memory is not None:
        fixed = memory.weights + _activations(memory, batchers[0], limit)
        block_bytes = memory.token_bytes * fields.kv.block_size
        in_use = lambda count: fixed + count * block_bytes  # noqa: E731
        if memory.capacity and memory.weights + blocks * block_bytes > memory.capacity:
            of_blocks, weights, whole = map(
                format_bytes, (blocks * block_bytes, memory.weights, memory.capacity)
            )
            what = f"{blocks:,} blocks take {of_blocks} and weights {weights} of each GPU, which has {whole}"
            raise InputError(what, path=("kv", "blocks"))
    apart, prefill, pull = fields.prefill, [], None
    if apart is not None:
        if memory is None:
            what = "needs model and calibration: they say how many bytes a token takes"
            raise InputError(what, path=("prefill",))
        prefill = [copy(batchers[0]) for _ in range(apart.replicas)]
        pull = Pull(apart.latency, memory.token_bytes, apart.bandwidth)
    for batcher in (*batchers, *prefill):
        with located("kv"):
            cache = KvBlocks(blocks, fields.kv.block_size, batcher.reserved_blocks)
        with document.placing(*loc):
            batcher.begin(cache, limit)
    for request in requests:
        if (why := batchers[0].refuse(request)) is not None:
            raise InputError(f"request {request.id} can never be served: {why}", path=("requests",))
    router = _router(fields, document, seed)
    serve = Serve(step_ns, batchers, prefill, router=router, pull=pull, host_ns=fields.host)
    serve.run(requests, getattr(fields.requests, "in_flight", None))
    return serve, in_use


def _costs(fields: ServingFields, document: Document) -> tuple[StepTime, ReplicaMemory | None]:
    """Return the duration of steps, and the use of memory if the model and its GPU are known."""
    tensor, given = fields.parallel.tp, fields.step
    model = calibration = memory = None
    if fields.model is not None:
        with located("model"):
            model = architecture_of(fields.model, document)
    if fields.calibration is not None:
        with located("calibration"):
            calibration = calibration_of(fields.calibration, document, fields.dtype)
    if given is not None and given.table is None:
        return LinearStep(given.fixed, given.token, given.request), None
    assert model is not None
    with located("parallel"):
        step = None if calibration is None else ModelStep(model, calibration, tensor, fields.parallel.experts)
    if step is not None:
        memory = ReplicaMemory(step, fields.dtype, fields.kv.dtype)
    if given is not None and given.table is not None:
        if tensor > 1 and step is None:
            what = "needs a calibration: it says what GPUs send one another"
            raise InputError(what, path=("parallel", "tp"))
        sent = (lambda tokens: 0.0) if step is None else step.all_reduce_ns
        with located("step", "table"):
            return TableStep(document.file(given.table), model.layers, sent), memory
    assert step is not None
    return step, memory


def _blocks(fields: ServingFields, memory: ReplicaMemory | None, batcher: Batcher, limit: int) -> int:
    """Return the number of blocks that fit into the rest of a GPU's memory."""
    assert memory is not None
    if memory.capacity is None:
        what = "needs blocks: the calibration does not say how much memory a GPU has"
        raise InputError(what, path=("kv",))
    activations = _activations(memory, batcher, limit)
    left = round(fields.kv.utilisation * memory.capacity) - memory.weights - activations
    blocks = left // (memory.token_bytes * fields.kv.block_size)
    if blocks < batcher.reserved_blocks + -(-limit // fields.kv.block_size):
        whole, weights, rest = (
            format_bytes(nbytes, iec=True) for nbytes in (memory.capacity, memory.weights, activations)
        )
        raise OutOfMemoryError(
            f"out of memory: of {whole} a GPU, {100 * fields.kv.utilisation:.0f}% of it taken, weights "
            f"need {weights} and activations some {rest}; that leaves {max(blocks, 0):,} blocks of "
            f"{fields.kv.block_size} tokens, and the longest request has {limit:,} tokens\n"
            "  what would help  more GPUs a replica (parallel.tp), a smaller dtype, kv.dtype: fp8"
        )
    return blocks


def _activations(memory: ReplicaMemory, batcher: Batcher, limit: int) -> int:
    """Return the bytes of activations and logits on a GPU in the largest step of the batcher."""
    tokens, seats = getattr(batcher, "max_num_batched_tokens", limit), batcher.max_num_seqs
    return memory.activations(min(tokens, limit * seats), seats)


def _router(fields: ServingFields, document: Document, seed: int) -> RequestRouter:
    """Return the router, ready to begin."""
    if fields.router is None:
        made: object = RoundRobin()
    else:
        with located("router"):
            thing = document.origin.lookup("sim.routers", fields.router.name)
            made = call_with_options(thing, fields.router.name, fields.router.options, document.origin)
    if not isinstance(made, RequestRouter):
        raise InputError("should extend policies.serving.routers.RequestRouter", path=("router",))
    made.begin(fields.parallel.replicas, seed)
    return made


# ----------------------------------------------------------------------------------------------------------
# The steps as a graph: what the engine decided. A replica runs its steps in order; a step that starts at the
# arrival of a request, later than the end of the previous step, has a release time.
#
#     replica0   [0/0][0/1]           [0/2] ...


def step_graph(serve: Serve) -> tuple[Graph, Machine]:
    """Return the steps of engines as a graph, and the replicas as its machine."""
    builder, names = GraphBuilder("serving"), serve.names
    ends, last = [0] * len(names), [""] * len(names)
    for number, each in enumerate(each for each in serve.passes if each.tokens):
        replica = each.replica
        attributes = {"tokens": each.tokens, "requests": each.requests}
        if each.start_ns > ends[replica]:
            attributes["release"] = each.start_ns
        last[replica] = builder.op(
            f"{names[replica]}/{number}",
            kind="decode" if not each.chunks else "prefill" if each.chunks == each.requests else "mixed",
            after=[last[replica]] if last[replica] else [],
            duration_ns=each.end_ns - each.start_ns,
            device=names[replica],
            attributes=attributes,
        )
        ends[replica] = each.end_ns
    return builder.build(), Machine(tuple(Device(name) for name in names))
