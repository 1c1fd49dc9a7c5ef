"""The ``policy:`` of a scenario, the entries of ``compare:``, and the conditions of ``expect:``."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, JsonValue, WithJsonSchema

from devices.describe.quantities import Name, Shorthand, Strict, Whole
from scenarios.fields.choices import AnyChoice, WithOptions
from sim.policy.policy import Synchronisation

__all__ = ["AnyPolicy", "AnyVariant", "Condition", "Expect", "Knowledge", "Policy", "Variant"]


Knowledge = Literal["exact", "mean", "estimate", "none"]


class Policy(WithOptions):
    """The policy and the other decisions; further keys are the policy's options."""

    name: Annotated[Name | None, Field(description="a policy, as `sim policies` lists them")] = None
    runtime: Annotated[Name | None, Field(description="a named set of decisions (`sim runtimes`)")] = None
    placement: Annotated[AnyChoice | None, Field(description="which device runs each op")] = None
    streams: Annotated[AnyChoice | None, Field(description="which stream each op is launched on")] = None
    linearize: Annotated[AnyChoice | None, Field(description="program order of the ops")] = None
    compile: Annotated[
        list[AnyChoice] | None, Field(description="rewrites of the graph, in this order, before it is placed")
    ] = None
    synchronisation: Annotated[
        Synchronisation | None,
        Field(description="tasks are eligible when their inputs are computed, or when they are issued"),
    ] = None
    launch: Annotated[
        Literal["op", "cuda-graph"] | None,
        Field(description="launch ops one by one (default), or those of a device as one CUDA graph"),
    ] = None
    intra_op_parallelism_threads: Annotated[
        Whole | None,
        Field(
            description="under tensorflow: threads of the one pool that all ops running at once share; "
            "0: as many as the CPU has cores; default: each op has the CPU's intra_op cores"
        ),
    ] = None
    knowledge: Annotated[Knowledge | None, Field(description="replaces the scenario's `knowledge`")] = None


AnyPolicy = Annotated[Policy, Shorthand("name")]


_PLAIN: Final = {"type": ["string", "number", "boolean", "array"]}
_Value = Annotated[JsonValue, WithJsonSchema(_PLAIN)]


class Condition(Strict):
    """What a result must be: values in the unit of the result."""

    equals: _Value = None
    at_most: _Value = None
    at_least: _Value = None
    tolerance: Annotated[
        _Value, Field(description="how far from `equals` it may be: a quantity, or a share such as 1%")
    ] = None


Expect = Annotated[
    dict[str, Annotated[Condition, Shorthand("equals", _PLAIN)]],
    Field(
        default_factory=dict,
        description="results to conditions: makespan, utilisation.gpu0, start.OP, order, ... "
        "to {equals, at_most, at_least, tolerance} or a plain value",
    ),
]


class Variant(Policy):
    """An entry of ``compare``: the scenario's work under another policy, or with other settings."""

    label: Annotated[Name | None, Field(description="label in results; default: the policy's name")] = None
    set: Annotated[
        dict[str, JsonValue],
        Field(default_factory=dict, description="other changes: dotted path to value, as for --set"),
    ]
    expect: Expect


AnyVariant = Annotated[Variant, Shorthand("name")]
