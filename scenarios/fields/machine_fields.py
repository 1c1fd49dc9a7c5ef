"""The ``machine:`` part of a scenario, as pydantic models made from the tables in `devices.describe.fields`.

A key of a device is defined only there: its meaning, how it is read, an example. Here each table becomes a
model, so that an error has its place in the file, and editors show the description::

    gap: {type: duration, doc: least time between two tasks of a stream}
        ──►  model field `gap`, checked by TYPES["duration"].read, JSON Schema "number and unit"

Values are checked and kept as written: `devices.machine.make_machine` lays them over presets and reads them.
A file uses few of a hundred keys: models of just these keys read it; the model of all keys explains errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, Field, PlainValidator, WithJsonSchema, create_model

from devices.describe.field_types import TYPES, reader
from devices.describe.fields import DEVICE_FIELDS, HOST_FIELDS, LINK_FIELDS, MACHINE_FIELDS
from devices.describe.fields import Field as Row
from devices.describe.quantities import Name, Shorthand, Strict
from sim.base.errors import InputError


def _check_row(row: Row) -> Any:
    """Return the type of a value: checked by the table's reader, but kept as it was written."""

    def check(value: Any) -> Any:
        if value is None:
            raise InputError(f"has no value; accepted: {row.shown}")
        TYPES[row.type].read(value)
        return value

    kinds = f" ({', '.join(row.kinds)})" if row.kinds else ""
    schema = {**TYPES[row.type].schema, "description": f"{row.doc}{kinds}; as in {row.shown}"}
    return Annotated[Any, BeforeValidator(reader(check)), WithJsonSchema(schema)]


PRESET: Final = Shorthand("preset")
"""The name of a preset stands for a machine, or for a device."""


def _model(
    name: str, doc: str, rows: Mapping[str, Row], named: frozenset[str] | None, **special: Any
) -> type[BaseModel]:
    """Return a model with a field for each row in `named`; `special` gives the types that are models."""
    fields: dict[str, Any] = {}
    for row in rows.values():
        if named is not None and row.name not in named:
            continue
        description = row.doc if row.name in special else None
        # A key may be left out, but `gap:` without a value is an error: only the default goes unchecked.
        field = Field(default=None, alias=row.name, description=description, validate_default=False)
        fields[f"{row.name}_"] = (special.get(row.name, _check_row(row)), field)
    return create_model(name, __base__=Strict, __doc__=doc, __module__=__name__, **fields)


@cache
def machine_model(named: frozenset[str] | None = None) -> type[BaseModel]:
    """Return a model of ``machine:`` with the given keys, or with all."""
    about = "A device: a preset, or a kind with its numbers; left out is the ideal."
    device = _model("Device", about, DEVICE_FIELDS, named)
    link = _model("Link", "A link between devices.", LINK_FIELDS, named)
    host = _model("Host", "Host threads that launch ops on several devices.", HOST_FIELDS, named)
    return _model(
        "Machine",
        "Devices, the links between them, and the hosts that issue to them.",
        MACHINE_FIELDS,
        named,
        devices=dict[Name, Annotated[device, PRESET]],  # type: ignore[valid-type]
        links=list[link],  # type: ignore[valid-type]
        hosts=dict[Name, host],  # type: ignore[valid-type]
    )


def _keys(value: Any) -> Iterator[Any]:
    """Yield every key in a value."""
    if isinstance(value, dict):
        yield from value
        value = [*value.values()]
    if isinstance(value, list):
        for below in value:
            yield from _keys(below)


def _read(value: Any) -> BaseModel:
    mapping = PRESET.whole(value)
    return machine_model(frozenset(_keys(mapping)) | {"preset"}).model_validate(mapping)


AnyMachine = Annotated[BaseModel, PlainValidator(_read)]
"""A machine, or the name of a preset."""
