"""The ``machine:`` part of a scenario, as pydantic models made from the tables in `devices.describe.fields`.

A key of a device is defined once, there: what it means, how it is read, what it looks like. Here each
table becomes a model, so that a wrong value gets its place in the file, and editors get its description::

    Field("gap", "duration", "least time between two tasks of a stream")
        ──►  model field `gap`, checked by TYPES["duration"].read, JSON Schema "number and unit"

Values are checked and left as written: `devices.machine.make_machine` lays them over presets and reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema, create_model

from devices.describe.fields import DEVICE_FIELDS, HOST_FIELDS, LINK_FIELDS, MACHINE_FIELDS, TYPES
from devices.describe.fields import Field as Row
from devices.describe.quantities import Name, Shorthand, Strict, reader
from sim.words.errors import InputError

__all__ = ["AnyMachine", "MachineSpec"]


def _json_schema(row: Row) -> dict[str, Any]:
    schema = dict(TYPES[row.type].schema)
    kinds = f" ({', '.join(row.kinds)})" if row.kinds else ""
    return {**schema, "description": f"{row.doc}{kinds}; as in {row.shown}"}


def _checked(row: Row) -> Any:
    """Return the type of a value: checked by the table's reader, and kept as it was written."""

    def check(value: Any) -> Any:
        if value is None:
            raise InputError(f"has no value; accepted: {row.shown}")
        TYPES[row.type].read(value)
        return value

    return Annotated[Any, BeforeValidator(reader(check)), WithJsonSchema(_json_schema(row))]


def _model(name: str, doc: str, rows: Mapping[str, Row], **special: Any) -> type[BaseModel]:
    """Return a model with one field a row; `special` gives the types of those that are models themselves."""
    fields: dict[str, Any] = {}
    for row in rows.values():
        description = row.doc if row.name in special else None
        # Left out is fine, and `gap:` with nothing behind it is not: only the default goes unchecked.
        field = Field(default=None, alias=row.name, description=description, validate_default=False)
        fields[f"{row.name}_"] = (special.get(row.name, _checked(row)), field)
    return create_model(name, __base__=Strict, __doc__=doc, __module__=__name__, **fields)


_Device = _model(
    "Device", "A device: a preset, or a kind with its numbers; left out is the ideal.", DEVICE_FIELDS
)
_Link = _model("Link", "A link between devices.", LINK_FIELDS)
_Host = _model("Host", "Host threads that launch ops on several devices.", HOST_FIELDS)
MachineSpec = _model(
    "Machine",
    "Devices, the links between them, and the hosts that issue to them.",
    MACHINE_FIELDS,
    devices=dict[Name, _Device],  # type: ignore[valid-type]
    links=list[_Link],  # type: ignore[valid-type]
    hosts=dict[Name, _Host],  # type: ignore[valid-type]
)
"""What ``machine:`` may hold."""


if TYPE_CHECKING:
    AnyMachine = BaseModel
else:
    AnyMachine = Annotated[MachineSpec, Shorthand("preset")]
"""A machine, or the name of a preset."""
