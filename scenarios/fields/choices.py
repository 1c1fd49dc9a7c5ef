"""A decision of a scenario: the name of what decides, and its options.

::

    placement: heft                                 streams: {name: per-branch, spread: next}
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, WithJsonSchema

from devices.describe.quantities import Name, Strict

__all__ = ["AnyChoice", "Choice"]


class Choice(Strict):
    """One decision: a name, and whatever options it has."""

    model_config = ConfigDict(extra="allow")

    name: Name

    @property
    def options(self) -> dict[str, Any]:
        """What was given besides the name."""
        return dict(self.__pydantic_extra__ or {})


def _choice(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


AnyChoice = Annotated[
    Choice,
    BeforeValidator(_choice),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "properties": {"name": {"type": "string"}},
                    "required": ["name"],
                    "additionalProperties": True,
                },
            ]
        }
    ),
]
