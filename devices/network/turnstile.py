"""Who may go on when several things must be free at once: links held whole, copy engines.

A transfer over two serial links holds both. It stands in the queue of each, and begins when it is at the
front of all its queues::

    link a   [1][3]        1 holds a, 2 holds b;
    link b   [2][3]        3 needs both and begins when 1 and 2 have left

Everybody enters all queues at one moment, so nobody is ever held up by someone who came later: each queue
is first come, first served, and there is no deadlock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

__all__ = ["Turnstile"]

T = TypeVar("T")


class _Ticket(Generic[T]):
    """Somebody in queues, and in how many of them others stand before."""

    __slots__ = ("behind", "who")

    def __init__(self, who: T, behind: int) -> None:
        self.who, self.behind = who, behind


class Turnstile(Generic[T]):
    """Queues for exclusive use, one for each key.

    Examples
    --------
    >>> gate = Turnstile()
    >>> gate.enter("first", ["a"]), gate.enter("second", ["a", "b"]), gate.enter("third", ["b"])
    (True, False, False)
    >>> gate.leave(["a"]), gate.leave(["a", "b"])
    (['second'], ['third'])
    """

    def __init__(self) -> None:
        self._queues: dict[Hashable, deque[_Ticket[T]]] = {}

    def enter(self, who: T, keys: Sequence[Hashable]) -> bool:
        """Queue up for all `keys` (distinct); return whether `who` may begin at once."""
        queues = [self._queues.setdefault(key, deque()) for key in keys]
        ticket = _Ticket(who, sum(map(bool, queues)))
        for queue in queues:
            queue.append(ticket)
        return not ticket.behind

    def leave(self, keys: Sequence[Hashable]) -> list[T]:
        """Whoever holds `keys` gives them back; return who may begin now, in the order of the keys."""
        begin = []
        for key in keys:
            queue = self._queues[key]
            queue.popleft()
            if queue:
                queue[0].behind -= 1
                if not queue[0].behind:
                    begin.append(queue[0].who)
        return begin
