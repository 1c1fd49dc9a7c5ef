"""Models of how long a collective of a communicator takes: their input and their interfaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from sim.base.arrays import UNSET


class Call(NamedTuple):
    """A collective call, common to all its ranks.

    Attributes
    ----------
    kind : str
        ``all_reduce``, ``all_gather``, ...; ``send`` for a pair.
    nbytes : int
        The size in the sense of nccl-tests: the buffer of ``all_reduce``, ``broadcast`` and ``reduce``, all
        gathered data, all data to be scattered, all data that a rank sends (``all_to_all``), the message.
    ranks : tuple of int
        Its devices, in the order of the communicator; for a pair, the sender first.
    root : int
        The device that all data comes from or goes to; -1: there is none.
    communicator : str
        The name of the communicator; empty if it was not requested.
    sends : tuple of tuple of int
        For an uneven ``all_to_all``: bytes from each rank to each, including those that stay; empty: all
        messages are equal. `nbytes` is then that of an even one with the load of this one's busiest rank.
    """

    kind: str
    nbytes: int
    ranks: tuple[int, ...]
    root: int = UNSET
    communicator: str = ""
    sends: tuple[tuple[int, ...], ...] = ()


def even_nbytes(sends: Sequence[Sequence[int]]) -> int:
    """Return the bytes that each rank sends in an even exchange with the load of this one's busiest rank.

    Parameters
    ----------
    sends : sequence of sequence of int
        Bytes from each rank to each, including those that stay.

    Examples
    --------
    Rank 0 gets 160 bytes, as in an even exchange in which each rank sends two thirds of 240.

    >>> even_nbytes([[0, 0, 0], [100, 0, 0], [60, 0, 0]])
    240
    """
    n = len(sends)
    sent = [sum(row) - row[r] for r, row in enumerate(sends)]
    received = [sum(column) - column[r] for r, column in enumerate(zip(*sends, strict=True))]
    busiest: int = max(*sent, *received, 0)
    return -(-busiest * n // max(1, n - 1))


class CollectiveModel(Protocol):
    """A model of the duration of collectives whose ops give none."""

    def time_ns(self, call: Call, machine: Any) -> int:
        """Return the ns from the arrival of the last rank to the end.

        Parameters
        ----------
        call : Call
        machine : sim.machine.machine.Machine

        Raises
        ------
        InputError
            The model does not support this call.
        """


@runtime_checkable
class HoldsSms(CollectiveModel, Protocol):
    """A model of collectives that also says how many SMs they hold, if their ops do not say."""

    def sms(self, call: Call, machine: Any) -> int:
        """Return the number of SMs of each rank that a call holds from its start to its end.

        Parameters
        ----------
        call : Call
        machine : sim.machine.machine.Machine

        Raises
        ------
        InputError
            The model does not support this call.
        """


@runtime_checkable
class ToldCollectives(CollectiveModel, Protocol):
    """A model that was not chosen explicitly, so results name it in a line."""

    @property
    def told(self) -> str:
        """The line that names the model."""


class CollectiveCarrier(Protocol):
    """Executes the collectives of a run, message by message."""

    def begin(self, call: Call, done: Callable[[], None]) -> None:
        """Begin a call whose ranks have all arrived; call ``done()`` at the instant when it ends."""


@runtime_checkable
class CarriedCollectives(CollectiveModel, Protocol):
    """A model whose collectives compete with other traffic for links; `time_ns` is the uncontended time."""

    def carrier(self, machine: Any, context: Any, network: Any) -> CollectiveCarrier:
        """Return the carrier for the collectives of a run.

        Parameters
        ----------
        machine : sim.machine.machine.Machine
        context : sim.job.context.Context
        network : sim.machine.links.Network
        """
