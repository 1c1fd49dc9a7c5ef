"""Types of values in a file, for pydantic: quantities with units, names, counts, files.

Each is a pydantic type: it reads what YAML gives, refuses the rest in words, and describes itself to
editors through the JSON Schema. Units are read by `sim.base.units` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Annotated, Any, Union

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    WithJsonSchema,
)
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_before_validator_function

from devices.describe.field_types import TYPES, fault
from sim.base.errors import clip_repr


class Strict(BaseModel):
    """A mapping whose keys are known; anything else in it is an error."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, validate_default=True, defer_build=True
    )


@dataclass(frozen=True, eq=False)
class Shorthand:
    """Lets a plain value stand for a mapping with one key, for pydantic and in the JSON Schema.

    Attributes
    ----------
    key : str
        ``placement: heft`` stands for ``placement: {name: heft}`` with the key ``name``.
    plain : str or mapping
        The plain value: a type of `devices.describe.field_types`, or a JSON Schema.
    """

    key: str
    plain: str | Mapping[str, Any] = "word"

    def whole(self, value: Any) -> Any:
        """Return the mapping that a value stands for: of a word only text does."""
        if isinstance(value, dict | BaseModel):
            return value
        if self.plain == "word" and not isinstance(value, str):
            raise fault(f"should be a {self.key} or a mapping (KEY: VALUE), not {clip_repr(value)}")
        return {self.key: value}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return how pydantic reads it."""
        return no_info_before_validator_function(self.whole, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the JSON Schema: that of the plain value, or of the whole."""
        plain = TYPES[self.plain].schema if isinstance(self.plain, str) else self.plain
        return {"anyOf": [dict(plain), handler(core)]}


def one_of(kinds: Mapping[str, type[BaseModel]], kind: Callable[[Any], str | None] | None = None) -> Any:
    """Return the type of a value that is one of several kinds of mapping.

    Parameters
    ----------
    kinds : mapping of str to type
        Name -> model.
    kind : callable, optional
        Returns the name of the kind that a value is; by default the one name among its keys.
    """
    if len(kinds) == 1:
        return Annotated[next(iter(kinds.values())), Tag(f"<{next(iter(kinds))}>")]

    def by_key(value: Any) -> str | None:
        named = [name for name in kinds if isinstance(value, Mapping) and name in value]
        return named[0] if len(named) == 1 else None

    ask = kind or by_key
    members = tuple(Annotated[model, Tag(f"<{name}>")] for name, model in kinds.items())
    error: Any = {"message": f"should be a mapping with just one of the keys {', '.join(kinds)}", "path": ()}
    discriminator = Discriminator(lambda value: f"<{ask(value)}>", "scenario", "{message}", error)
    return Annotated[Union[members], discriminator]  # noqa: UP007


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


def _relative(path: str) -> str:
    if PurePosixPath(path).is_absolute() or PureWindowsPath(path).drive or path.startswith("~"):
        raise fault(
            f"{path!r} is an absolute path; name it relative to the scenario (elsewhere: --allow-outside)"
        )
    return path


File = Annotated[str, Field(min_length=1), AfterValidator(_relative)]
"""A file, relative to the scenario that names it."""
