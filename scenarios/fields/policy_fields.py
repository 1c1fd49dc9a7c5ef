"""The ``policy:`` of a scenario, the entries of ``compare:``, and the conditions of ``expect:``."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, JsonValue, Tag, WithJsonSchema

from devices.describe.field_types import reader
from devices.describe.quantities import Name, Shorthand, Strict, Whole
from scenarios.fields.results import RESULTS
from sim.base.errors import nearest
from sim.base.units import parse_fraction
from sim.policy import Synchronisation

if TYPE_CHECKING:
    from sim.job.noise import Noise


# ----------------------------------------------------------------------------------------------------------
# A decision of a scenario: the name of a plugin that decides, and its options.
#
#     placement: heft                                 streams: {name: per-branch, spread: next}


class WithOptions(Strict):
    """Known keys, and any others: the options of the named plugin."""

    model_config = ConfigDict(extra="allow")

    @property
    def options(self) -> dict[str, Any]:
        """The keys that are not fields."""
        return dict(self.__pydantic_extra__ or {})


class Choice(WithOptions):
    """One decision: a name, and whatever options it has."""

    name: Name


AnyChoice = Annotated[Choice, Shorthand("name")]


# ----------------------------------------------------------------------------------------------------------

Spread = Annotated[float, Field(ge=0, lt=10, allow_inf_nan=False)]
"""Standard deviation of the logarithm of a factor: 0.05 is about 5 %."""

Knowledge = (
    Literal["exact", "mean", "estimate", "none"]
    | Annotated[dict[Literal["estimate"], Spread], Field(min_length=1)]
)


class PolicyFields(WithOptions):
    """The policy and the other decisions; further keys are the policy's options.

    Attributes
    ----------
    name
        a policy, as `sim policies` lists them
    runtime
        a named set of decisions (`sim runtimes`)
    placement
        which device runs each op
    streams
        which stream each op is launched on
    linearize
        program order of the ops
    compile
        rewrites of the graph, in this order, before it is placed
    synchronisation
        tasks are eligible when their inputs are computed, or when they are issued
    cuda_graph
        launch the ops of a device as one CUDA graph; default: one by one
    intra_op_parallelism_threads
        under tensorflow: threads of the one pool that all ops running at once share; 0: as many as the CPU
        has cores; default: each op has the CPU's cores_per_op cores
    knowledge
        replaces the scenario's `knowledge`
    """

    name: Name | None = None
    runtime: Name | None = None
    placement: AnyChoice | None = None
    streams: AnyChoice | None = None
    linearize: AnyChoice | None = None
    compile: list[AnyChoice] | None = None
    synchronisation: Synchronisation | None = None
    cuda_graph: bool | None = None
    intra_op_parallelism_threads: Whole | None = None
    knowledge: Knowledge | None = None


AnyPolicy = Annotated[PolicyFields, Shorthand("name")]


_PLAIN: Final = {"type": ["string", "number", "boolean", "array"]}
_Value = Annotated[JsonValue, WithJsonSchema(_PLAIN)]


class Condition(Strict):
    """What a result must be: values in the unit of the result, or as ``1.05 x gpipe``, of another run.

    Attributes
    ----------
    equals
        exactly this, or within `tolerance` of it
    at_most
        no more than this
    at_least
        no less than this
    tolerance
        how far from `equals` it may be: a quantity, or a share such as 1%
    """

    equals: _Value = None
    at_most: _Value = None
    at_least: _Value = None
    tolerance: _Value = None


_AnyCondition = Annotated[Condition, Shorthand("equals", _PLAIN)]
Expect = dict[str, _AnyCondition]


def _of_a_run(value: Any) -> str:
    """Return the tag of a condition on one result, or of several on a run, even if keys are misspelt."""
    keys = [str(key) for key in value] if isinstance(value, dict) else []
    if not keys or any(key in Condition.model_fields for key in keys):
        return "<condition>"
    results = [nearest(key.partition(".")[0], RESULTS) for key in keys]
    mapping = any(isinstance(item, dict) for item in value.values())
    near = any(nearest(key, Condition.model_fields) for key in keys)
    return "<run>" if mapping or (any(results) and not near) else "<condition>"


_RESULT: Final = {"propertyNames": {"pattern": rf"^({'|'.join(RESULTS)})(\..+)?$"}}

ExpectOfRuns = dict[
    str,
    Annotated[
        Annotated[_AnyCondition, Tag("<condition>")]
        | Annotated[dict[str, _AnyCondition], Field(json_schema_extra=_RESULT), Tag("<run>")],
        Discriminator(_of_a_run),
    ],
]


class VariantFields(PolicyFields):
    """An entry of ``compare``: the scenario's work under another policy, or with other settings.

    Attributes
    ----------
    label
        label in results; default: the policy's name
    set
        other changes: dotted path to value, as for --set
    expect
        results to conditions: makespan, utilisation.gpu0, start.OP, order, ... to {equals, at_most, at_least,
        tolerance} or a plain value
    """

    label: Name | None = None
    set: dict[str, JsonValue] = Field(default_factory=dict)
    expect: Expect = Field(default_factory=dict)


AnyVariant = Annotated[VariantFields, Shorthand("name")]


# ----------------------------------------------------------------------------------------------------------
# Noise of a scenario: ``noise: {jitter: 0.05, devices: {gpu1: 1.2}, stragglers: {...}}``.
#
# The same terms as in `sim.job.noise.Noise`, checked and with places in the file.

Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A factor of durations: 1.2 is 20 % slower."""
Slowness = Annotated[float, Field(gt=1, allow_inf_nan=False)]
"""A factor above 1, which slows down."""
Probability = Annotated[
    float,
    BeforeValidator(reader(lambda value: float(parse_fraction(value, what="")))),
    WithJsonSchema({"type": ["number", "string"]}),
]


class StragglerFields(Strict):
    """Tasks that take much longer than others.

    Attributes
    ----------
    probability
        probability that a task is one
    factor
        how many times longer it takes
    """

    probability: Probability
    factor: Factor


class NoiseFields(Strict):
    """How durations vary; policies do not see this.

    Attributes
    ----------
    jitter
        standard deviation of the logarithm of each task's factor; 0.05 is about 5 %
    devices
        factor of each device: 1.2 is 20 % slower
    stragglers
        tasks that take much longer
    """

    jitter: Spread = 0.0
    devices: dict[Name, Factor] = Field(default_factory=dict)
    stragglers: StragglerFields | None = None

    def noise(self, device_names: Container[str]) -> Noise:
        """Return the noise for `sim.job.build_job.make_job`, for those devices that are in `device_names`."""
        from sim.job.noise import Noise

        devices = {name: factor for name, factor in self.devices.items() if name in device_names}
        rare = (self.stragglers.probability, self.stragglers.factor) if self.stragglers else ()
        return Noise(self.jitter, devices, *rare)


# ----------------------------------------------------------------------------------------------------------
# The ``memory:`` of a scenario: its allocator, the lifetime of tensors, and what happens when it is full.
#
#     memory:
#       allocator: {name: caching, malloc: 50us}         of every device, or `runtime` ...
#       devices: {npu0: scratchpad}                      ... but these
#       lifetime: issue
#       when_full: wait
#
# `scenarios.run.execute` explains what these keys do.


class MemoryFields(Strict):
    """The allocator of each device, the lifetime of tensors, and what happens when memory is full.

    Attributes
    ----------
    allocator
        who manages the memory of each device; `runtime`: what the policy's runtime has; default: bytes are
        counted, no more
    devices
        allocators of devices that have another one, by name
    lifetime
        tensors live from start to the end of the last reader, or from issue to issue; default: issue if the
        policy synchronises at issue, else execution
    when_full
        when memory is full: stop with an error, or let the task wait
    """

    allocator: AnyChoice | None = None
    devices: dict[Name, AnyChoice] = Field(default_factory=dict)
    lifetime: Literal["execution", "issue"] | None = None
    when_full: Literal["error", "wait"] = "error"
