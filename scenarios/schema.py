"""Schema of a scenario file. `scenario.schema.json`, its JSON Schema for editors, is generated from it.

::

    version: 1       extends: other.yaml               the format, and the scenario that this one changes
    name: ...        machine: ...     workload: ...    what runs, and where
    policy: ...      knowledge: ...   cost: ...        decisions
    memory: ...      noise: ...                        limits and variation
    iterations: ...  seed: ...  engine: ...  fold: ...
    faults: ...                                        parts of the machine that fail or become slow
    training_run: ...                                  many such steps, with failures
    compare: [...]                                     the same work under other policies
    expect: {...}                                      expected results

The machine's part is in `scenarios.fields.machine_fields`, each kind of workload in
`scenarios.workloads.workload`. An unknown key is an error, except in ``policy``, where it is an option of the
policy, which `scenarios.run.decisions` checks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, PlainValidator, ValidationInfo, create_model
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import ModelSchema

from devices.describe.field_types import fault, quantity_schema
from devices.describe.quantities import Count, File, Name, Strict, Whole, one_of
from scenarios.docstrings import read_docstring
from scenarios.fields import policy_fields
from scenarios.fields.machine_fields import PRESET, AnyMachine, machine_model
from scenarios.workloads.workload import Workload, every_kind, kind_names, kind_of, kinds_in
from sim.base.arrays import MOST_TASKS
from sim.base.errors import hint
from sim.base.units import BANDWIDTH, BYTES, DURATION, FLOP_RATE, FLOPS, FREQUENCY

SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"

# -- workload --------------------------------------------------------------------------------------


def _workload(value: Any, info: ValidationInfo) -> Workload:
    """Return ``workload:``, validated as the kind that it names; other kinds are not even imported.

    If the context of the validation has a workload that was read before, that one is returned.
    """
    if info.context is not None:
        workload: Workload = info.context["workload"]
        return workload
    if not isinstance(value, dict):
        raise fault(f"should be a mapping with just one of the keys {', '.join(kind_names())}, not {value!r}")
    named = kinds_in(value)
    if len(named) > 1:
        raise fault(f"names {len(named)} kinds of workload, {' and '.join(named)}; a scenario has one")
    kind = kind_of(named[0]) if named else None
    if kind is None:
        kinds = every_kind()
        unknown = [key for key in value if not any(key in model.model_fields for model in kinds.values())]
        near = hint(unknown[0], kinds) if unknown else f"; known: {', '.join(kinds)}"
        unknown_text = f"; {unknown[0]!r} is none" if unknown else ""
        raise fault(f"names no kind of workload{unknown_text}{near}")
    return kind.model_validate(value)


def _import_late(module: str, model: str) -> PlainValidator:
    """Return a validator by a model that is imported only if a scenario has the key; most have not."""

    def read(value: Any) -> Any:
        return None if value is None else getattr(import_module(module), model).model_validate(value)

    return PlainValidator(read)


# -- the whole -------------------------------------------------------------------------------------


class ScenarioFile(Strict):
    """A computation graph, the machine that it runs on, and the policy that decides the order.

    Attributes
    ----------
    schema_
        for editors
    version
        version of the format; default: the latest
    extends
        a scenario that this one changes, mapping by mapping
    name
        name in results; default: the file's name
    description
        what it shows, for readers
    machine
        devices, links and hosts, or a preset (`sim devices`); some workloads bring their own
    workload
        what runs: one of these kinds
    faults
        parts of the machine that fail, slow down and come back
    training_run
        many such steps, with failures, checkpoints and recovery
    policy
        who decides what runs next, and all else; default: ready-queue
    knowledge
        what policies know about durations; {estimate: 0.3}: estimates whose logarithm has that standard
        deviation, by default 0.2
    memory
        lifetimes of tensors, and what happens when memory is full
    noise
        how durations vary; default: not at all
    cost
        cost model of every device that names none: roofline, {table: FILE}, {fixed: 10us}
    fold
        simulate ranks that do the same at the same time once: auto: if there are more than 256; true: or say
        why that would not be exact
    iterations
        how many times the graph runs
    seed
        of all that is drawn: noise, failures
    engine
        all engines give the same result: simpy runs everything, kernel is much faster but does not run
        everything, auto takes the kernel where it can
    compare
        what `sim compare` compares without --policy
    expect
        results to conditions: makespan, utilisation.gpu0, start.OP, order, ... to {equals, at_most, at_least,
        tolerance} or a plain value; or the label of an entry of compare to such a mapping, in which {at_most:
        1.05 x gpipe} speaks of another entry
    """

    schema_: str | None = Field(None, alias="$schema")
    version: Annotated[Literal[1], BeforeValidator(lambda it: str(it) if it is True else it)] = 1  # True == 1
    extends: File | None = None
    name: Name | None = None
    description: str | None = None
    machine: AnyMachine | None = None
    workload: Annotated[Workload, PlainValidator(_workload)]
    policy: policy_fields.AnyPolicy = policy_fields.PolicyFields.model_construct(name="ready-queue")
    knowledge: policy_fields.Knowledge = "exact"
    memory: policy_fields.MemoryFields | None = None
    noise: policy_fields.NoiseFields | None = None
    faults: Annotated[Any, _import_late("scenarios.fields.fault_fields", "FaultFields")] = None
    cost: JsonValue = None
    fold: Literal["auto"] | bool = "auto"
    iterations: Annotated[Count, Field(le=MOST_TASKS)] = 1
    seed: Whole = 0
    training_run: Annotated[Any, _import_late("scenarios.training_run.fields", "TrainingRun")] = None
    engine: Literal["auto", "simpy", "kernel"] = "auto"
    compare: list[policy_fields.AnyVariant] = Field(default_factory=list)
    expect: policy_fields.ExpectOfRuns = Field(default_factory=dict)


def model_of(kinds: Mapping[str, type[Workload]]) -> type[ScenarioFile]:
    """Return a model of scenario files with these kinds of workload and all keys of a machine."""
    from scenarios.fields.fault_fields import FaultFields
    from scenarios.training_run.fields import TrainingRun

    workload = one_of(kinds)
    machine: Any = Annotated[machine_model(), PRESET]
    return create_model(
        "ScenarioFile",
        __base__=ScenarioFile,
        __doc__=ScenarioFile.__doc__,
        machine=(machine | None, None),
        workload=(workload, ...),
        faults=(FaultFields | None, None),
        training_run=(TrainingRun | None, None),
    )


def model_for(value: Any) -> type[ScenarioFile]:
    """Return the model of a whole file, with the kind of workload that it names, or else all kinds."""
    workload = value.get("workload") if isinstance(value, dict) else None
    named = kinds_in(workload) if isinstance(workload, dict) else []
    kind = kind_of(named[0]) if len(named) == 1 else None
    return model_of(every_kind() if kind is None else {named[0]: kind})


_SHARED = {
    "Duration": quantity_schema(DURATION),
    "Bytes": quantity_schema(BYTES),
    "Capacity": quantity_schema(BYTES, unlimited=True),
    "Bandwidth": quantity_schema(BANDWIDTH, unlimited=True),
    "Flops": quantity_schema(FLOPS),
    "Frequency": quantity_schema(FREQUENCY),
    "FlopRate": quantity_schema(FLOP_RATE, unlimited=True),
}


class _Described(GenerateJsonSchema):
    """Takes the descriptions of keys from the docstrings of models, in which they are attributes."""

    def model_schema(self, schema: ModelSchema) -> dict[str, Any]:
        """Return the schema of a model."""
        json_schema, model = super().model_schema(schema), schema["cls"]
        described = read_docstring(model).parameters
        for name, field in model.model_fields.items():
            if name in described:
                json_schema["properties"][field.alias or name]["description"] = described[name].meaning
        if "description" in json_schema:
            json_schema["description"] = json_schema["description"].partition("\n\nAttributes\n---")[0]
        return json_schema


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a scenario file."""
    from scenarios.reference import with_names

    schema = model_of(every_kind()).model_json_schema(by_alias=True, schema_generator=_Described)
    _share(schema)
    schema["$defs"] |= _SHARED
    with_names(schema)
    schema["anyOf"] = [{"required": schema.pop("required")}, {"required": ["extends"]}]  # the base has them
    return {"$schema": SCHEMA_ID, **schema, "title": "A scenario of sim"}


def _share(schema: Any) -> None:
    """Replace the long patterns of quantities by references, and drop defaults that say nothing.

    Limits of a number that a validator reads first come from pydantic as ``ge`` and ``le``, which JSON Schema
    does not know.
    """
    if isinstance(schema, list):
        for item in schema:
            _share(item)
    if not isinstance(schema, dict):
        return
    if "default" in schema and schema["default"] is None:  # an editor would offer it
        del schema["default"]
    for limit, keyword in (("ge", "minimum"), ("le", "maximum")):
        if isinstance(schema.get(limit), int):
            schema[keyword] = schema.pop(limit)
    for name, shared in _SHARED.items():
        if schema.get("anyOf") == shared["anyOf"]:
            del schema["anyOf"]
            schema["$ref"] = f"#/$defs/{name}"
            if schema.get("description") == shared["description"]:
                del schema["description"]
    for item in schema.values():
        _share(item)


def json_schema_text() -> str:
    """Return the text of `scenario.schema.json`."""
    return json.dumps(json_schema(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
