"""A policy as data: in which order issuers take what is eligible.

Most policies are a queue. One that says so (`sim.Policy.as_data`) need not be asked task by task, so that the
kernel (`sim.kernel`) can run it::

    fifo      first eligible, first taken         a queue for each group of issuers
    lifo      last eligible, first taken
    keep      an issuer keeps some of what it     a stack for each issuer, and a queue for all others
              made eligible, last in, first out
    steal     an issuer keeps what it made        a queue for each issuer of what is cheap, and a deque from
              eligible, others steal it           whose back others steal (`sim.kernel.stealing`)
    place     a program for each queue            window 1: its next task, eligible or not, and no other
              a b c d e f                         window 3: the first eligible of the three from the oldest
                [-----]                           that nobody took; no window: the first eligible of all
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from sim.words.arrays import IntArray

__all__ = ["Kind", "Order", "Per"]

Kind = Literal["fifo", "lifo", "place", "keep", "steal"]
Per = Literal["group", "machine", "issuer"]


class Order(NamedTuple):
    """How a policy chooses.

    Attributes
    ----------
    kind : str
        ``"fifo"``, ``"lifo"``, ``"place"``, ``"keep"`` or ``"steal"``.
    programs : sequence of array of int64
        Of ``"place"``: the ops of each queue in order, repeated every iteration; of a queue for each issuer
        its tasks, as ``iteration * ops + op``, which are not repeated.
    window : int or None
        Of ``"place"``: how many places may be looked at from the oldest that nobody took; None is all.
    per : str
        Who shares a queue: the issuers of a ``"group"``, of the ``"machine"``, or nobody (``"issuer"``). With
        the last two the window is 1.
    in_flight : int or None
        Of a window of 1: how many tasks of a queue may be taken and not done with, which they are when they
        end, or, launched under ``synchronisation = "issue"``, when they are on their stream.
    label : array of int64, optional
        Of ``"keep"``, one for each op: an issuer keeps those with the label of the op that made them
        eligible. Without it, it keeps the first.
    cheap : array of int64 of 0 and 1, optional
        Of ``"steal"``, one for each op.
    pool, pool_of_issuer : arrays of int64
        Of ``"keep"`` and ``"steal"``, one for each op and each issuer: who takes what. Issuers of one
        pool are neighbours; -1: an issuer that takes nothing.
    """

    kind: Kind
    programs: Sequence[IntArray] = ()
    window: int | None = None
    per: Per = "group"
    in_flight: int | None = None
    label: IntArray | None = None
    cheap: IntArray | None = None
    pool: IntArray | None = None
    pool_of_issuer: IntArray | None = None
