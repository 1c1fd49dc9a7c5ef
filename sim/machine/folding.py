"""Folding: devices that do the same at the same time, of which one is simulated.

::

    gpu0 ... gpu16383, gpu17 slower     ──►    gpu0  stands for 16,383
                                               gpu17 stands for itself     they meet on ``data parallel``

The machine of such a run has one device of each sort. What its collectives take is asked of the whole machine
and for all ranks: `FoldedCollectives` does that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sim.machine.communicators import Call, CollectiveModel, HoldsSms
from sim.words.arrays import UNSET

__all__ = ["FoldedCollectives", "Folding", "folded_model"]


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

    Examples
    --------
    >>> Folding({"gpu0": ("gpu0", "gpu1")}, {}).seen_as("gpu1/backward")
    'gpu0/backward'
    """

    members: Mapping[str, tuple[str, ...]]
    differs: Mapping[str, str]
    unused: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        """How many devices were folded."""
        return sum(map(len, self.members.values()))

    @cached_property
    def _simulated(self) -> dict[str, str]:
        return {name: one for one, names in self.members.items() for name in names}

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


@dataclass(frozen=True)
class FoldedCollectives:
    """What collectives of a folded machine take: what its model says of all ranks.

    Parameters
    ----------
    model : CollectiveModel
    whole : sim.machine.machine.Machine
        The machine that it is asked about.
    ranks : mapping of str to tuple of int
        Communicator → its ranks there.
    """

    model: CollectiveModel
    whole: Any
    ranks: Mapping[str, tuple[int, ...]]

    def of_all(self, call: Call) -> Call:
        """Return a call as all its ranks make it."""
        ranks = self.ranks[call.communicator]
        return call._replace(ranks=ranks, root=UNSET if call.root == UNSET else ranks[0])

    def time_ns(self, call: Call, machine: Any) -> int:
        """Return the ns that a call takes among all ranks."""
        return self.model.time_ns(self.of_all(call), self.whole)


class _HoldingSms(FoldedCollectives):
    def sms(self, call: Call, machine: Any) -> int:
        """Return the SMs that it holds on each."""
        assert isinstance(self.model, HoldsSms)
        return self.model.sms(self.of_all(call), self.whole)


def folded_model(model: CollectiveModel, whole: Any, ranks: Mapping[str, tuple[int, ...]]) -> CollectiveModel:
    """Return the model of a folded machine; one that holds SMs, if that of the whole does."""
    return (_HoldingSms if isinstance(model, HoldsSms) else FoldedCollectives)(model, whole, ranks)
