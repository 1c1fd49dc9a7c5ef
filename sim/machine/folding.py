"""Folding: devices that do the same at the same time, of which one is simulated.

::

    gpu0 ... gpu16383, gpu17 slower     ──►    gpu0  stands for 16,383
                                               gpu17 stands for itself     they meet on ``data parallel``

The machine of such a run has one device of each sort. What its collectives take was asked of the whole
machine and for all ranks (`policies.compile.parallel.fold.folding`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

__all__ = ["Folding"]


@dataclass(frozen=True)
class Folding:
    """Which devices each simulated one stands for.

    Attributes
    ----------
    members : mapping of str to tuple of str
        Simulated device → all that do the same, itself the first.
    differs : mapping of str to str
        Simulated device → what sets it apart from the first one.
    unused : tuple of str
        What else the whole machine has, switches left out: it runs nothing.
    ranks : mapping of str to int
        Communicator → how many ranks it has.
    order : tuple of str
        All that are folded, in machine order.

    Examples
    --------
    >>> Folding({"gpu0": ("gpu0", "gpu1")}, {}).seen_as("gpu1/backward")
    'gpu0/backward'
    """

    members: Mapping[str, tuple[str, ...]]
    differs: Mapping[str, str]
    unused: tuple[str, ...] = ()
    ranks: Mapping[str, int] = field(default_factory=dict)
    order: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        """How many devices were folded."""
        return sum(map(len, self.members.values()))

    @cached_property
    def _simulated(self) -> dict[str, str]:
        return {name: one for one, names in self.members.items() for name in names}

    def stands_for(self, name: str) -> str:
        """Return a simulated device's name as pictures and traces show it."""
        n = len(self.members[name])
        return name if n == 1 else f"{name}, as {n - 1:,} more"

    def told(self) -> str:
        """Return in a few words what a run is of.

        Examples
        --------
        >>> Folding({"gpu0": ("gpu0", "gpu1")}, {}).told()
        '2 devices folded into 1'
        """
        return f"{self.devices:,} devices folded into {len(self.members):,}"

    def seen_as(self, name: str) -> str:
        """Return what a device, or an op ``DEVICE/...``, is called in the simulation."""
        device, rest = name, ""
        while device not in self._simulated and "/" in device:
            device, _, last = device.rpartition("/")
            rest = f"/{last}{rest}"
        return self._simulated[device] + rest if device in self._simulated else name

    def report(self) -> dict[str, Any]:
        """Return what results say of it."""
        return {
            "devices": self.devices,
            "into": {
                name: {"stands_for": len(members), "differs": self.differs.get(name)}
                for name, members in self.members.items()
            },
        }
