"""The ``policy:`` of a scenario, the entries of ``compare:``, and the conditions of ``expect:``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    WithJsonSchema,
)

from devices.describe.quantities import Name, Strict
from scenarios.fields.choices import AnyChoice
from sim.policy.policy import Synchronisation

__all__ = ["AnyPolicy", "AnyVariant", "Condition", "Expect", "Knowledge", "Policy", "Variant"]


Knowledge = Literal["exact", "mean", "estimate", "none"]


class Policy(Strict):
    """The policy and the other decisions; further keys are the policy's options."""

    model_config = ConfigDict(extra="allow")

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
    knowledge: Annotated[Knowledge | None, Field(description="replaces the scenario's `knowledge`")] = None

    @property
    def options(self) -> dict[str, Any]:
        """Options of the policy: keys that are no decision of their own."""
        return dict(self.__pydantic_extra__ or {})


def _policy(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


AnyPolicy = Annotated[Policy, BeforeValidator(_policy)]


class Condition(Strict):
    """What a result must be; `scenarios.fields.expect` reads the values, as their unit depends on the
    result.
    """

    equals: JsonValue = None
    at_most: JsonValue = None
    at_least: JsonValue = None
    tolerance: Annotated[
        JsonValue, Field(description="how far from `equals` it may be: a quantity, or a share such as 1%")
    ] = None


def _condition(value: Any) -> Any:
    return value if isinstance(value, dict) else {"equals": value}


_CONDITION_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": ["string", "number", "array"]},
        {
            "type": "object",
            "properties": {
                key: {"type": ["string", "number", "array"]}
                for key in ("equals", "at_most", "at_least", "tolerance")
            },
            "additionalProperties": False,
        },
    ]
}


Expect = Annotated[
    dict[str, Annotated[Condition, BeforeValidator(_condition), WithJsonSchema(_CONDITION_SCHEMA)]],
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


AnyVariant = Annotated[Variant, BeforeValidator(_policy)]
