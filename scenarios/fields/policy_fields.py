"""The ``policy:`` of a scenario, the entries of ``compare:``, and the conditions of ``expect:``."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, JsonValue, Tag, WithJsonSchema

from devices.describe.quantities import Name, Shorthand, Strict, Whole
from scenarios.fields.choices import AnyChoice, WithOptions
from scenarios.fields.results import RESULTS
from sim.policy.policy import Synchronisation
from sim.words.errors import nearest

__all__ = [
    "AnyPolicy",
    "AnyVariant",
    "Condition",
    "Expect",
    "ExpectOfRuns",
    "Knowledge",
    "Policy",
    "Variant",
]


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
    """What a result must be: values in the unit of the result, or as ``1.05 x gpipe``, of another run."""

    equals: Annotated[_Value, Field(description="exactly this, or within `tolerance` of it")] = None
    at_most: Annotated[_Value, Field(description="no more than this")] = None
    at_least: Annotated[_Value, Field(description="no less than this")] = None
    tolerance: Annotated[
        _Value, Field(description="how far from `equals` it may be: a quantity, or a share such as 1%")
    ] = None


_AnyCondition = Annotated[Condition, Shorthand("equals", _PLAIN)]
_CONDITIONS: Final = (
    "results to conditions: makespan, utilisation.gpu0, start.OP, order, ... "
    "to {equals, at_most, at_least, tolerance} or a plain value"
)

Expect = Annotated[dict[str, _AnyCondition], Field(default_factory=dict, description=_CONDITIONS)]


def _of_a_run(value: Any) -> str:
    """Tell conditions on several results from a condition on one, misspelt keys included."""
    keys = [str(key) for key in value] if isinstance(value, dict) else []
    if not keys or any(key in Condition.model_fields for key in keys):
        return "<condition>"
    results = [nearest(key.partition(".")[0], RESULTS) for key in keys]
    mapping = any(isinstance(each, dict) for each in value.values())
    near = any(nearest(key, Condition.model_fields) for key in keys)
    return "<run>" if mapping or (any(results) and not near) else "<condition>"


_RESULT: Final = {"propertyNames": {"pattern": rf"^({'|'.join(RESULTS)})(\..+)?$"}}

ExpectOfRuns = Annotated[
    dict[
        str,
        Annotated[
            Annotated[_AnyCondition, Tag("<condition>")]
            | Annotated[dict[str, _AnyCondition], Field(json_schema_extra=_RESULT), Tag("<run>")],
            Discriminator(_of_a_run),
        ],
    ],
    Field(
        default_factory=dict,
        description=f"{_CONDITIONS}; or the label of an entry of compare to such a mapping, "
        "in which {at_most: 1.05 x gpipe} speaks of another entry",
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
