"""Types of values in a file, for pydantic: quantities with units, names, counts, files.

Each is a pydantic type: it reads what YAML gives, refuses the rest in words, and describes itself to
editors through the JSON Schema. Units are read by `sim.words.units` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from devices.describe.field_types import TYPES
from sim.words.errors import InputError

__all__ = [
    "Bandwidth",
    "Bytes",
    "Count",
    "Duration",
    "File",
    "FlopRate",
    "Flops",
    "Name",
    "Size",
    "Sizes",
    "Strict",
    "Whole",
    "fault",
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


def _of(name: str) -> tuple[BeforeValidator, WithJsonSchema]:
    """Return how pydantic reads a value of a type in `devices.describe.field_types`, and its JSON Schema."""
    type_ = TYPES[name]
    return BeforeValidator(reader(type_.read)), WithJsonSchema(dict(type_.schema))


Duration = Annotated[int, *_of("duration")]
"""A duration, in ns once read."""

Bytes = Annotated[int, *_of("size")]
"""An amount of data, in bytes once read."""

Flops = Annotated[int, *_of("flops")]
"""An amount of computation, in flop once read."""

Bandwidth = Annotated[int, *_of("rate")]
"""Bytes a second."""

FlopRate = Annotated[int, *_of("flop rate")]
"""Flop a second."""

Sizes = Annotated[Mapping[Any, int], *_of("sizes")]
"""Amounts of data by name, in bytes once read."""


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
