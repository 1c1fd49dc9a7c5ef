"""A decision of a scenario: the name of what decides, and its options.

::

    placement: heft                                 streams: {name: per-branch, spread: next}
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict

from devices.describe.quantities import Name, Shorthand, Strict

__all__ = ["AnyChoice", "Choice", "WithOptions"]


class WithOptions(Strict):
    """Keys that are known, and any others: the options of what is named."""

    model_config = ConfigDict(extra="allow")

    @property
    def options(self) -> dict[str, Any]:
        """The keys that are no field."""
        return dict(self.__pydantic_extra__ or {})


class Choice(WithOptions):
    """One decision: a name, and whatever options it has."""

    name: Name


AnyChoice = Annotated[Choice, Shorthand("name")]
