"""A decision of a scenario: the name of what decides, and its options.

::

    placement: heft                                 streams: {name: per-branch, spread: next}
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict

from devices.describe.quantities import Name, Shorthand, Strict

__all__ = ["AnyChoice", "Choice"]


class Choice(Strict):
    """One decision: a name, and whatever options it has."""

    model_config = ConfigDict(extra="allow")

    name: Name

    @property
    def options(self) -> dict[str, Any]:
        """What was given besides the name."""
        return dict(self.__pydantic_extra__ or {})


AnyChoice = Annotated[Choice, Shorthand("name")]
