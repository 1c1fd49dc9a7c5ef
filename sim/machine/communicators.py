"""How long a collective of a communicator takes on a machine: what a model is asked, and what it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from sim.base.arrays import UNSET


class Call(NamedTuple):
    """A collective as its ranks call it.

    Attributes
    ----------
    kind : str
        ``all_reduce``, ``all_gather``, ...; of a pair ``send``.
    nbytes : int
        What nccl-tests calls size: the buffer of ``all_reduce``, ``broadcast`` and ``reduce``, all that is
        gathered, all that is to be scattered, all that a rank sends (``all_to_all``), the message.
    ranks : tuple of int
        Its devices, in the order of the communicator; of a pair the sender first.
    root : int
        Device from which, or to which, all goes; -1: there is none.
    communicator : str
        The name of the communicator; empty where nobody asked for it.
    sends : tuple of tuple of int
        Of an ``all_to_all`` that is uneven: the bytes from each rank to each, those that stay included.
        `nbytes` is then that of an even one in which each rank sends, and gets, as much as here the one that
        has most. Empty: all messages are the same.
    """

    kind: str
    nbytes: int
    ranks: tuple[int, ...]
    root: int = UNSET
    communicator: str = ""
    sends: tuple[tuple[int, ...], ...] = ()


def even_nbytes(sends: Sequence[Sequence[int]]) -> int:
    """Return what each rank sends in an even exchange that is as much for all as this one is for the busiest.

    Parameters
    ----------
    sends : sequence of sequence of int
        Bytes from each rank to each, those that stay included.

    Examples
    --------
    Rank 0 gets 160 bytes: as in an even one in which each sends two thirds of 240.

    >>> even_nbytes([[0, 0, 0], [100, 0, 0], [60, 0, 0]])
    240
    """
    n = len(sends)
    out = [sum(row) - row[r] for r, row in enumerate(sends)]
    back = [sum(column) - column[r] for r, column in enumerate(zip(*sends, strict=True))]
    most: int = max(*out, *back, 0)
    return -(-most * n // max(1, n - 1))


class CollectiveModel(Protocol):
    """Says how long collectives take, where their ops do not say it themselves."""

    def time_ns(self, call: Call, machine: Any) -> int:
        """Return the ns from the moment when the last rank is there to the end.

        Parameters
        ----------
        call : Call
        machine : sim.machine.machine.Machine

        Raises
        ------
        InputError
            The model does not know such a call.
        """


@runtime_checkable
class HoldsSms(CollectiveModel, Protocol):
    """A model of collectives that says how many SMs they hold, where their ops do not say it themselves."""

    def sms(self, call: Call, machine: Any) -> int:
        """Return the SMs of each rank that a call holds from its start to its end.

        Parameters
        ----------
        call : Call
        machine : sim.machine.machine.Machine

        Raises
        ------
        InputError
            The model does not know such a call.
        """


@runtime_checkable
class ToldCollectives(CollectiveModel, Protocol):
    """A model that nobody chose, and of which results say in a line which one it is."""

    @property
    def told(self) -> str:
        """The line."""


class CollectiveCarrier(Protocol):
    """Carries out the collectives of a run, message by message."""

    def begin(self, call: Call, done: Callable[[], None]) -> None:
        """Begin a call, whose ranks are all there; call ``done()`` at the instant at which it is over."""


@runtime_checkable
class CarriedCollectives(CollectiveModel, Protocol):
    """A model whose collectives share the links with all that travels; `time_ns` is what they take alone."""

    def carrier(self, machine: Any, context: Any, network: Any) -> CollectiveCarrier:
        """Return what carries the collectives of a run.

        Parameters
        ----------
        machine : sim.machine.machine.Machine
        context : sim.job.context.Context
        network : sim.machine.links.Network
        """
