"""``workload: {train: {model: llama3-70b, parallel: {tp: 8, pp: 4}, ...}}``: a training step, predicted.

::

    fields ──► model, layout, calibration ──► Training ──► graph of a schedule ──► run ──► report, and fit?

The policy is the pipeline's schedule. Default: ``1f1b``, or ``interleaved-1f1b`` with ``chunks``.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from math import lcm
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field

from devices.describe.field_types import Bytes
from devices.describe.quantities import Count, Name, Shorthand, Size, Strict, Whole
from policies.parallel.expert_routing import UnplacedRouting, route_tokens
from scenarios.builders.pipeline_stage import check_schedule
from scenarios.builders.train.architecture import MODELS, Architecture
from scenarios.builders.train.calibration import Factor
from scenarios.builders.train.kernels import GRAPHED, MODULES, OFFLOADED, WIDE
from scenarios.builders.train.layout import ORDER, ParallelLayout, refuse_misfit
from scenarios.builders.train.recompute import RECOMPUTED
from scenarios.builders.train.step import step_graph
from scenarios.builders.train.training import FULL_ITERATION, Training, default_schedule
from scenarios.file.document import Document, Loc
from scenarios.workloads.calibrations import CalibrationFields, calibration_of
from scenarios.workloads.model_config import model_sizes
from scenarios.workloads.pipeline_report import PipelineOnDevices
from scenarios.workloads.train_report import check_fits, peaks_of, step_interval, train_report
from scenarios.workloads.workload import Work, Workload
from sim.base.errors import InputError, MisfitError, UnknownNameError, error_path
from sim.base.units import format_count
from sim.machine.machine import Machine
from sim.trace import Trace

if TYPE_CHECKING:
    from scenarios.fields.policy_fields import PolicyFields


# ----------------------------------------------------------------------------------------------------------
# What ``workload: {train: ...}`` may hold, as pydantic models.
#
#  train:
#    model: llama3-70b             a name, or sizes: {layers: 80, hidden: 8192, ...}; {name: ..., layers: 12}
#    calibration: h100-sxm              a name, a file, or numbers
#    parallel: {tp: 8, pp: 4, chunks: 2, dp: 16, sharding: zero-1}
#    sequence: 8192
#    micro_batch: 1
#    batch: 1024
#    recompute: selective


DType = Literal["bf16", "fp16", "fp8", "fp8-delayed", "fp8-block", "mxfp8", "nvfp4"]
Module = Literal[
    "all", "qkv", "proj", "mlp", "shared", "experts", "latent", "mamba_in", "mamba_out", "predicted"
]


_PARTS: Final[Mapping[str, Mapping[str, str]]] = {
    "head": {"query": "head", "value": "value_head", "rotary": "rotary_head", "norm": "head_norm"},
    "middle": {"layer": "middle", "expert": "expert_middle", "shared": "shared_middle"},
    "latent": {"q": "q_rank", "kv": "kv_rank", "expert": "expert_latent"},
    "mamba": {part: f"mamba_{part}" for part in ("heads", "head", "state", "groups")},
}
"""Key of a model that has several sizes -> part -> its name in `Architecture`."""

_WIDTH: Final = {"type": "integer", "minimum": 1}

HeadPart = Literal["query", "value", "rotary", "norm"]


class ModelFields(Strict):
    """A language model: a name, and sizes that replace those of the name.

    Attributes
    ----------
    name
        a known model, or a config.json; the others replace its sizes
    layers
        how many; or a letter each: * attention (w in a window; C, H with keys pooled of 4, of 128 tokens), M
        Mamba-2, E experts, - a middle; or the letters of each: [*-, *E]
    hidden
        width of the model
    heads
        heads of attention
    vocabulary
        words of embedding and head
    kv_heads
        heads of keys and values; default: as heads
    head
        width of a head (default: hidden / heads), of its values, and with latent attention of its rotary
        part; norm: 1 where queries and keys have norms of their own
    middle
        width between the products of a layer (default: 4 hidden), of an expert, and of the shared experts
        together
    latent
        width of compressed queries, keys and values (latent attention), and in which experts are reached
        (LatentMoE; default: hidden)
    gated
        a gate beside the middle (SwiGLU); clamped: its inputs are clamped (gpt-oss)
    tied
        the head's weights are the embedding's
    positions
        how many are learned, or rotary ones, or scaled rotary ones (yarn); default: none
    biases
        products and norms have biases
    experts
        experts of a layer
    top_k
        experts that each token goes to
    dense_layers
        first layers, which have no experts
    window
        tokens that attention of every second layer reaches back; 0: all
    mamba
        Mamba-2: heads, the width of each, that of its state, and groups that share projections
    predicted
        tokens predicted beside the next one
    """

    name: Name | None = None
    layers: Size | str | list[str] | None = None
    hidden: Count | None = None
    heads: Count | None = None
    vocabulary: Count | None = None
    kv_heads: Count | None = None
    head: Annotated[dict[HeadPart, Whole], Shorthand("query", _WIDTH)] = Field(default_factory=dict)
    middle: Annotated[dict[Literal["layer", "expert", "shared"], Whole], Shorthand("layer", _WIDTH)] = Field(
        default_factory=dict
    )
    latent: dict[Literal["q", "kv", "expert"], Whole] = Field(default_factory=dict)
    gated: bool | Literal["clamped"] | None = None
    tied: bool | None = None
    positions: Whole | Literal["rotary", "yarn"] | None = None
    biases: bool | None = None
    experts: Size | None = None
    top_k: Size | None = None
    dense_layers: Whole | None = None
    window: Whole | None = None
    mamba: dict[Literal["heads", "head", "state", "groups"], Count] = Field(default_factory=dict)
    predicted: Whole | None = None


class ParallelFields(Strict):
    """Sizes of the groups of ranks.

    Attributes
    ----------
    tp
        tensor parallelism
    cp
        context parallelism
    ep
        expert parallelism, within tp, cp and dp
    pp
        pipeline parallelism
    chunks
        stages a pipeline rank (virtual pipeline)
    dp
        data parallelism
    sequence_parallel
        split along the sequence what tensor parallelism leaves whole
    sharding
        shared by data-parallel ranks: optimizer state, gradients too, parameters too as PyTorch's FSDP or as
        DeepSpeed's ZeRO-3 gathers them
    shard
        ranks that share one copy (HSDP); default: all
    order
        from the group whose ranks are nearest to the farthest
    context
        how context parallelism communicates
    """

    tp: Size = 1
    cp: Size = 1
    ep: Size = 1
    pp: Size = 1
    chunks: Size = 1
    dp: Size = 1
    sequence_parallel: bool = True
    sharding: Literal["none", "zero-1", "zero-2", "fsdp", "zero-3"] = "zero-1"
    shard: Whole = 0
    order: list[Literal["tp", "cp", "pp", "dp"]] = Field(list(ORDER))
    context: Literal["all-to-all", "ring", "all-gather"] = "all-to-all"


class TrainFields(Strict):
    """A training step of a language model on many ranks.

    Attributes
    ----------
    model
        a name, or sizes
    calibration
        what the GPU reaches: a name, a file, or numbers
    gpus
        which the layout has to fill; dp, if left out, takes what is left
    node
        GPUs a node; default: the calibration's
    sequence
        tokens of a sample; a list: of the sequences that it is packed of
    lora
        rank of adapters by module; all other weights are frozen; default: all are trained
    micro_batch
        samples of a micro-batch
    batch
        samples of a step, on all replicas
    recompute
        selective: attention's inside; selective-op: torchtitan's, by op; full: each layer; or modules by name
    dtype
        of the products; or of all, and of modules that have another
    gradients
        in which gradients are summed
    optimizer_state
        optimizer state of a parameter
    overlap
        dp (true): gradients are reduced beside the backward; tp: products run in blocks beside messages; ep:
        tokens of experts are exchanged beside another micro-batch
    attention
        flash: it keeps no scores
    dropout
        dropout, with its masks
    loss
        fused: it keeps logits of 2 bytes; fp32: a softmax of 4; PyTorch's, eager or compiled
    imbalance
        tokens of the fullest expert rank / of the mean
    routing
        which tokens go to which expert: {zipf: 1}, {trace: FILE}, ...
    capacity_factor
        most that an expert takes of a rank's tokens / its equal part
    pad_to_capacity
        ranks fill up what they send to the capacity
    dispatcher
        a copy of a token for each expert, or one for each rank (node) that has some
    cuda_graph
        what CUDA graphs launch; the host launches the rest
    wide_layers
        layers at the beginning and at the end whose products stay in 16 bits
    offload
        to the host: what so many first layers keep (fsdp), or what these modules read
    partition
        layers of each stage; default: even
    memory
        of a GPU, instead of the calibration's
    """

    model: Annotated[ModelFields, Shorthand("name")]
    calibration: Name | CalibrationFields
    parallel: Annotated[ParallelFields, Field(default_factory=ParallelFields)]
    gpus: Count | None = None
    node: Size | None = None
    sequence: Count | Annotated[list[Count], Field(min_length=1)]
    lora: dict[Literal["qkv", "proj", "mlp", "shared", "latent", "mamba_in", "mamba_out"], Size] | None = (
        Field(None, min_length=1)
    )
    micro_batch: Size = 1
    batch: Count
    recompute: (
        Literal["none", "selective", "selective-op", "full"]
        | list[Literal["core_attn", "layernorm", "mla_up_proj", "mhc", "mlp", "moe_act", "moe"]]
    ) = "none"
    dtype: DType | dict[Module, DType] = "bf16"
    gradients: Literal["fp32", "bf16"] = "fp32"
    optimizer_state: Count = 12
    overlap: bool | list[Literal["dp", "tp", "ep"]] = False
    attention: Literal["flash", "eager"] = "flash"
    dropout: bool = False
    loss: Literal["fused", "fp32", "eager", "compiled"] = "fused"
    imbalance: float = Field(1.0, ge=1, le=1e6)
    routing: Literal["balanced", "one-hot"] | dict[str, Any] | None = None
    capacity_factor: Factor | None = None
    pad_to_capacity: bool = False
    dispatcher: Literal["all-to-all", "deepep", "hybridep"] = "all-to-all"
    cuda_graph: (
        Literal["full-iteration", "none"]
        | list[Literal["attn", "mamba", "mlp", "moe_router", "moe_preprocess"]]
    ) = FULL_ITERATION
    wide_layers: list[Whole] = Field([0, 0], min_length=2, max_length=2)
    offload: Whole | list[Literal["core_attn", "expert_fc1", "moe_act"]] = 0
    partition: list[Size] | None = None
    memory: Bytes | None = None


_LOC: Loc = ("workload", "train")


class Train(Workload):
    """A training step; its policy is the schedule of its pipeline."""

    deciders = "sim.pipelines"

    train: TrainFields

    @property
    def gpus(self) -> int:
        """Number of GPUs of the step."""
        parallel = self.train.parallel
        return self.train.gpus or parallel.tp * parallel.cp * parallel.pp * parallel.dp

    @property
    def replica_gpus(self) -> int:
        """Number of GPUs that together hold the model, its experts included."""
        parallel = self.train.parallel
        return parallel.pp * lcm(parallel.tp * parallel.cp, parallel.ep)

    def check_schedule(self, policy: PolicyFields) -> None:
        """Raise if an option is unknown to the schedule; its sizes are those of the layout."""
        check_schedule(str(policy.name), policy.options)

    def default_policy(self) -> Mapping[str, Any]:
        """Return the schedule that applies if a scenario names none."""
        return {"name": default_schedule(self.train.parallel.chunks)}

    def misfit(self, document: Document, policy: PolicyFields) -> str | None:
        """Return why sizes do not fit one another; other errors come from the run."""
        try:
            training = _training(self.train, document)
            replace(training, policy=policy.name, options=policy.options).schedule  # noqa: B018
        except MisfitError as error:
            return error.reason
        except InputError:
            pass
        return None

    def default_machine(self) -> Mapping[str, Any]:
        """Return a plain device for each pipeline rank."""
        return {"devices": {"rank": {"kind": "gpu", "count": self.train.parallel.pp}}}

    def work(
        self, document: Document, machine: Machine | None, policy: PolicyFields, loc: Loc, *, seed: int = 0
    ) -> Work:
        """Return graph and devices under a schedule.

        Raises
        ------
        InputError
            Sizes do not fit each other, a name is unknown, or a machine is given beside the calibration.
        """
        if machine is not None:
            message = "a training runs on what its calibration describes, and takes no machine"
            raise document.error(("machine",), message)
        training = replace(training_of(self.train, document), policy=policy.name, options=policy.options)
        with self.placing_errors(document, policy, loc):
            schedule = training.schedule
            graph, devices = step_graph(training, schedule)
        names = [device.name for device in devices.devices]

        def report(trace: Trace) -> dict[str, Any]:
            sure = step_interval(training, schedule, trace.makespan_ns)
            extra: dict[str, Any] = {"train": train_report(trace, training, schedule, sure)}
            if sure is not None:
                extra["makespan_interval"] = sure
            if training.parameters_apart:
                return extra
            return {**PipelineOnDevices(schedule, training.pipeline_stages, names).report(trace), **extra}

        def fits(trace: Trace, advise: bool) -> None:
            step = trace.makespan_ns // max(1, trace.steps_done)
            check_fits(training, peaks_of(training, trace), step if advise else None)

        return Work(graph, devices, report, fits)


def training_of(fields: TrainFields, document: Document) -> Training:
    """Return the training that the fields of a scenario describe.

    Raises
    ------
    ScenarioError
        With the position: a model or calibration is unknown, or sizes do not fit each other.
    """
    with document.placing(*_LOC):
        return _training(fields, document)


_UNCHANGED: Final = {*("micro_batch", "batch", "optimizer_state"), *("attention", "dropout", "imbalance")}
"""Fields that are passed to `Training` unchanged."""


_IN_16_BITS: Final = {"bf16", "fp16"}


def _training(fields: TrainFields, document: Document) -> Training:
    by_module = {"all": fields.dtype} if isinstance(fields.dtype, str) else fields.dtype
    dtypes: dict[str, str] = dict(by_module.items())
    dtype = dtypes.pop("all", "bf16")
    with error_path("model"):
        model = architecture_of(fields.model, document)
    with error_path("calibration"):
        calibration = calibration_of(fields.calibration, document, dtype, fields.gradients)
    for module, other in dtypes.items():
        with error_path("dtype", module):
            if other == dtype or {other, dtype} <= _IN_16_BITS:
                raise InputError(f"has no effect: all products are in {dtype}")
            calibration_of(fields.calibration, document, other, fields.gradients)  # refuses what it lacks
    parallel = fields.parallel
    with error_path("parallel"):
        layout = ParallelLayout(
            **parallel.model_dump(exclude={"dp", "order", "context"}),
            dp=_replicas(fields),
            order=tuple(parallel.order),
            node=fields.node or calibration.node,
        )
    overlap = [*fields.overlap] if isinstance(fields.overlap, list) else ["dp"] if fields.overlap else []
    _check_effects(fields, model, overlap, dtype)
    _warn_of_unused_fabrics(fields.calibration, layout)
    _warn_of_order(fields, layout)
    if layout.ep == 1:
        for key in _exchange_settings(fields, overlap):
            warnings.warn(f"{key} has no effect: with parallel.ep: 1 no token leaves its rank", stacklevel=2)
    graphs = [] if isinstance(fields.cuda_graph, str) else fields.cuda_graph
    packed = [fields.sequence] if isinstance(fields.sequence, int) else fields.sequence
    training = Training(
        model=model,
        layout=layout,
        calibration=calibration,
        **fields.model_dump(include=_UNCHANGED),
        gradient_bytes=4 if fields.gradients == "fp32" else 2,
        partition=tuple(fields.partition or ()),
        context=parallel.context,
        sequence=sum(packed),
        packed=tuple(packed) if len(packed) > 1 else (),
        offload_layers=fields.offload if isinstance(fields.offload, int) else 0,
        offload=() if isinstance(fields.offload, int) else tuple(fields.offload),
        lora={str(module): rank for module, rank in (fields.lora or {}).items()},
        loss=fields.loss,
        routes=_routes(fields, document),
        dispatcher=fields.dispatcher,
        recompute=fields.recompute if isinstance(fields.recompute, str) else tuple(fields.recompute),
        overlap="dp" in overlap,
        expert_overlap="ep" in overlap and layout.ep > 1,
        tensor_overlap="tp" in overlap,
        cuda_graph=FULL_ITERATION if fields.cuda_graph == FULL_ITERATION else tuple(graphs),
        wide_layers=(fields.wide_layers[0], fields.wide_layers[1]),
        dtypes={module: WIDE if other in _IN_16_BITS else other for module, other in dtypes.items()},
        memory=fields.memory if fields.memory is not None else calibration.memory,
    )
    work = training.work  # refuses sizes that no rank can have
    if model.experts:
        work.load  # noqa: B018 - and routings
    pieces = {piece.name for kind in {*map(model.kind, range(model.layers))} for piece in work.layer(kind)}
    named: list[tuple[Loc, str]] = [(("dtype", module), module) for module in dtypes]
    named += [(("lora", module), module) for module in fields.lora or ()]
    for loc, module in named:
        if not (MODULES[module] & pieces if module in MODULES else model.predicted):
            raise InputError("has no effect: the model has no such module", path=loc)
    again = () if isinstance(training.recompute, str) else training.recompute
    scopes = {scope for i in range(model.layers) for letter in model.kind(i) for scope in GRAPHED[letter]}
    for key, lacking in (
        ("offload", [module for module in training.offload if OFFLOADED[module] not in pieces]),
        ("recompute", [module for module in again if not RECOMPUTED[module][0] & pieces]),
        ("cuda_graph", [scope for scope in graphs if scope not in scopes]),
    ):
        if lacking:
            hint = " of its own: products have their norms" if lacking[0] == "layernorm" else ""
            raise InputError(f"has no effect: the model has no {lacking[0]}{hint}", path=(key,))
    return training


def _check_effects(fields: TrainFields, model: Architecture, overlap: Collection[str], dtype: str) -> None:
    """Raise if a field has no effect."""
    if not model.experts and (settings := _exchange_settings(fields, overlap)):
        raise InputError("has no effect: the model has no experts", path=(settings[0].partition(":")[0],))
    if any(fields.wide_layers) and dtype in _IN_16_BITS:
        raise InputError(f"has no effect: all products are in {dtype}", path=("wide_layers",))
    if sum(fields.wide_layers) >= model.layers:
        message = f"should leave some of the model's {format_count(model.layers, 'layer')} in {dtype}"
        raise InputError(message, path=("wide_layers",))
    if "moe_preprocess" in fields.cuda_graph and "moe_router" not in fields.cuda_graph:
        raise InputError("moe_preprocess needs moe_router (Megatron-LM)", path=("cuda_graph",))


def _warn_of_unused_fabrics(source: str | CalibrationFields, layout: ParallelLayout) -> None:
    """Warn of a network that differs from the shipped one although no message crosses it."""
    if isinstance(source, str) or source.from_ is None:
        return  # without `from` both networks are required
    shipped = CalibrationFields.model_validate({"from": source.from_})
    for name, limit in (("node", 1), ("network", layout.node)):
        own_fabric = getattr(source, name)
        if layout.ranks <= limit and own_fabric is not None and own_fabric != getattr(shipped, name):
            extent = "there is one GPU" if layout.ranks == 1 else f"all {layout.ranks} GPUs are in one node"
            warnings.warn(f"calibration.{name} has no effect: {extent}", stacklevel=2)


def _warn_of_order(fields: TrainFields, layout: ParallelLayout) -> None:
    """Warn if experts send over the network because the pipeline fills the nodes by default."""
    if layout.ep == 1 or "order" in fields.parallel.model_fields_set:
        return
    wide, near = (one.group("ep").nodes for one in (layout, replace(layout, order=("tp", "cp", "dp", "pp"))))
    if near < wide:
        warnings.warn(
            f"experts on {layout.ep} ranks span {wide} nodes, as a pipeline's ranks stand side by side; with "
            f"parallel.order: [tp, cp, dp, pp], which Megatron-LM has, they span {near}",
            stacklevel=2,
        )


def _exchange_settings(fields: TrainFields, overlap: Collection[str]) -> list[str]:
    """Return the settings given for tokens that are sent to experts on other ranks."""
    dispatcher = ["dispatcher"] if "dispatcher" in fields.model_fields_set else []
    return [*dispatcher, "overlap: ep"] if "ep" in overlap else dispatcher


def _replicas(fields: TrainFields) -> int:
    """Return dp: as given, or what the number of GPUs leaves."""
    parallel = fields.parallel
    if fields.gpus is None:
        return parallel.dp
    ranks, sizes = parallel.tp * parallel.cp * parallel.pp, "tp·cp·pp"
    if "dp" in parallel.model_fields_set:
        ranks, sizes = ranks * parallel.dp, f"{sizes}·dp"
    unfilled = fields.gpus % ranks or ("dp" in parallel.model_fields_set and fields.gpus != ranks)
    message = f"{sizes} = {ranks} ranks do not fill {format_count(fields.gpus, 'GPU')}"
    refuse_misfit(unfilled, f"{sizes} does not fill the GPUs", message)
    return parallel.dp if "dp" in parallel.model_fields_set else fields.gpus // ranks


def _routes(fields: TrainFields, document: Document) -> UnplacedRouting | None:
    """Return the routing that the fields request."""
    if fields.routing is None:
        for key in ("capacity_factor", "pad_to_capacity"):
            if getattr(fields, key):
                raise InputError("has no effect without routing", path=(key,))
        return None
    routing = partial(route_tokens, fields.routing, origin=document.origin)
    return partial(routing, capacity_factor=fields.capacity_factor, pad=fields.pad_to_capacity)


def architecture_of(fields: ModelFields, document: Document) -> Architecture:
    """Return the model that fields describe: a name, a configuration, or sizes.

    Raises
    ------
    InputError
        A name is unknown, a file is not a configuration, or a size is missing.
    """
    sizes_given = fields.model_dump(exclude={"name"}, exclude_none=True)
    for key, names in _PARTS.items():
        for part, value in sizes_given.pop(key, {}).items():
            if not value and part in ("layer", "query", "value", "expert"):
                raise InputError("should be 1 or more", path=(key, part))
            sizes_given[names[part]] = value
    if isinstance(kind := sizes_given.get("positions"), str):
        sizes_given |= {"positions": 0, "rotary": kind == "rotary" or kind}
    elif kind is not None:
        sizes_given["rotary"] = False
    if "gated" in sizes_given:
        sizes_given |= {"gated": bool(sizes_given["gated"]), "clamped": sizes_given["gated"] == "clamped"}
    if isinstance(kinds := sizes_given.get("layers"), str | list):
        sizes_given |= {"layers": len(kinds), "pattern": kinds}
    base: Mapping[str, Any] = {}
    if fields.name is not None and fields.name.endswith(".json"):
        base = model_sizes(document.file(fields.name))
    elif fields.name is not None:
        if fields.name not in MODELS:
            raise UnknownNameError("model", fields.name, sorted(MODELS))
        base = MODELS[fields.name]
    sizes = {**base, **sizes_given}
    for key in ("layers", "hidden", "heads", "vocabulary"):
        if key not in sizes:
            raise InputError(f"has no {key}; give it, or the name of a model that has it")
    if "layers" in sizes_given and "pattern" not in sizes_given and "pattern" in sizes:
        sizes["pattern"] = sizes["pattern"][: sizes["layers"]]
    return Architecture(**sizes)
