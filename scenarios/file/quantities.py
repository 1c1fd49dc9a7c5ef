"""Types of values in a scenario: quantities with units, names, counts, files.

Each is a pydantic type: it reads what YAML gives, refuses the rest in words, and describes itself to
editors through the JSON Schema. Units are read by `sim.words.units` and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePosixPath, PureWindowsPath
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from sim.words import units
from sim.words.dimensions import BYTES, DURATION, FLOPS, Dimension
from sim.words.errors import InputError

__all__ = [
    "Bytes",
    "Count",
    "Duration",
    "File",
    "Flops",
    "Name",
    "Size",
    "Strict",
    "Whole",
    "fault",
    "quantity_schema",
    "reader",
]


class Strict(BaseModel):
    """A mapping whose keys are known; anything else in it is an error."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, validate_default=True, defer_build=True
    )


def fault(message: str, path: tuple[str | int, ...] = ()) -> PydanticCustomError:
    """Return an error that pydantic reports with exactly this message, and with its path before `path`."""
    return PydanticCustomError("scenario", "{message}", {"message": message, "path": path})


def reader(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `read` with errors of `sim` turned into pydantic's."""

    def read_value(value: Any) -> Any:
        try:
            return read(value)
        except InputError as error:
            raise fault(error.message, error.path) from None

    return read_value


def quantity_schema(dimension: Dimension, *, unlimited: bool = False) -> dict[str, Any]:
    """Return the JSON Schema of a quantity: a number and one of the dimension's units.

    Examples
    --------
    >>> schema = quantity_schema(DURATION)
    >>> bool(re.search(schema["anyOf"][0]["pattern"], "10us")), schema["anyOf"][1]
    (True, {'const': 0})
    """
    # Longest first, so that a program which stops at the first match finds the whole unit.
    known = sorted(dimension.units, key=lambda unit: (-len(unit), unit))
    number = r"\+?([0-9][0-9_]*\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?"
    pattern = rf"^\s*{number}\s*({'|'.join(map(re.escape, known))})\s*$"
    choices: list[dict[str, Any]] = [{"type": "string", "pattern": pattern}]
    if dimension.zero_allowed:
        choices.append({"const": 0})
    if unlimited:
        choices.append({"const": "unlimited"})
    return {"anyOf": choices, "description": f"{dimension.name}: {dimension.shown}"}


def _quantity(parse: Callable[..., int], dimension: Dimension) -> tuple[BeforeValidator, WithJsonSchema]:
    return (
        BeforeValidator(reader(lambda value: parse(value, what=""))),
        WithJsonSchema(quantity_schema(dimension)),
    )


Duration = Annotated[int, *_quantity(units.parse_duration, DURATION)]
"""A duration, in ns once read."""

Bytes = Annotated[int, *_quantity(units.parse_bytes, BYTES)]
"""An amount of data, in bytes once read."""

Flops = Annotated[int, *_quantity(units.parse_flops, FLOPS)]
"""An amount of computation, in flop once read."""


def _whole(value: Any) -> Any:
    """Let ``1e3`` stand for a whole number; text and booleans do not."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=2**63 - 1)]
"""A whole number, 0 or more."""

Count = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=2**63 - 1)]
"""A whole number, 1 or more."""


Size = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=1_000_000)]
"""How many of something there are that is made one by one: layers, micro-batches, branches."""


def _name(value: Any) -> Any:
    """Let a name that looks like a whole number be one: ``inputs: [1]``."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Name = Annotated[
    str,
    BeforeValidator(_name),
    Field(min_length=1),
    WithJsonSchema({"anyOf": [{"type": "string", "minLength": 1}, {"type": "integer"}]}),
]
"""The name of an op, a device, a policy, ..."""

_HOME: Final = "~"


def _relative(path: str) -> str:
    if PurePosixPath(path).is_absolute() or PureWindowsPath(path).drive or path.startswith(_HOME):
        raise fault(f"{path!r} is an absolute path; a scenario names files relative to itself")
    return path


File = Annotated[str, Field(min_length=1), AfterValidator(_relative)]
"""A file, relative to the scenario that names it."""
