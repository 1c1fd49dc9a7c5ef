"""Where the transfers of a job go, as the columns that the kernel's network runs over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, runtime_checkable

from sim.words.arrays import IntArray

if TYPE_CHECKING:
    from sim.job.job import Job
    from sim.job.transfers import Flow

__all__ = ["LARGEST", "NEVER", "InColumns", "Routes"]

NEVER: Final = (1 << 62) - 1
"""Later than any instant."""

LARGEST: Final = 1 << 60
"""Work, bandwidths and spans of time stay below it."""


class Routes(NamedTuple):
    """Where transfers go, in columns. A *way* is what transfers between the same two devices have in common.

    Attributes
    ----------
    way : sequence of int
        Of each move (a transfer of the graph): which way it takes.
    work : sequence of int
        What each move asks of shared links, in units of work; 0 if it is alone or has nothing to send.
    alone_ns : sequence of int
        How long each move takes if it does not use shared links, the latency included.
    latency_ns : sequence of int
        Of each way.
    held_first, held : sequences of int
        Way w holds the keys ``held[held_first[w]:held_first[w + 1]]`` (serial links, copy engines).
    route : sequence of int
        The route over shared links of each way, -1 if it is alone.
    first, links : sequences of int
        Route r uses the shared links ``links[first[r]:first[r + 1]]``.
    capacity : sequence of int
        Units of work a ns of each shared link.
    """

    way: Sequence[int] | IntArray
    work: Sequence[int] | IntArray
    alone_ns: Sequence[int] | IntArray
    latency_ns: Sequence[int]
    held_first: Sequence[int]
    held: Sequence[int]
    route: Sequence[int]
    first: Sequence[int]
    links: Sequence[int]
    capacity: Sequence[int]


@runtime_checkable
class InColumns(Protocol):
    """What makes the network of a run (`sim.Machine.network`), where the kernel can run that network too."""

    def columns(self, job: Job, flow: Flow) -> Routes | str:
        """Return where the transfers of a job go, or in words why the kernel cannot count what they carry."""
