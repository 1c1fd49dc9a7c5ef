"""Who issues: the free issuers of each group, in machine order; who is asked, and who copies.

A transfer of pageable memory (`sim.job.pageable`) takes a free issuer when it is issued and keeps it to its
end. Without one it waits, first come first served, before any op.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Mapping, Set
from operator import attrgetter

from sim.graph.graph import Graph
from sim.machine.machine import Machine
from sim.machine.task import Issuer, Task
from sim.policy.policy import Policy
from sim.words.errors import InputError

__all__ = ["Issuers", "refuse_wrong"]

_by_index = attrgetter("index")


class Issuers:
    """The issuers of a machine that are free.

    Parameters
    ----------
    machine : Machine
    policy : Policy
        Whom they ask.
    copies : mapping of int to int
        Node → group, for the transfers that one of its issuers has to make.

    Attributes
    ----------
    idle : list of lists of Issuer
        The free issuers of each group.
    changed : set of int
        Groups in which a task has become eligible, or an issuer free, since they were asked; all of them,
        always, unless the policy has ``scope = "group"``.
    stopped : set of int
        Groups that take nothing more.
    """

    def __init__(self, machine: Machine, policy: Policy, copies: Mapping[int, int]) -> None:
        self.policy, self.copies = policy, copies
        self._copying: dict[int, Issuer] = {}  # id of a transfer → who makes it
        self._waiting: dict[int, deque[Task]] = {group: deque() for group in sorted(set(copies.values()))}
        self.idle: list[list[Issuer]] = [[] for _ in machine.hosts_in_order]
        self.changed: set[int] = set()
        self.stopped: set[int] = set()
        for issuer in machine.issuers():
            self.free(issuer)

    def free(self, issuer: Issuer | None) -> None:
        """Let an issuer be asked from now on."""
        assert issuer is not None
        if issuer.group in self.stopped:
            return
        insort(self.idle[issuer.group], issuer, key=_by_index)
        self.changed.add(issuer.group)

    def stop(self, groups: Set[int]) -> None:
        """Let nobody of these groups take, or copy, anything from now on."""
        self.stopped |= groups
        for group in groups:
            self.idle[group].clear()

    def ask(self, take: Callable[[Issuer, Task], None]) -> None:
        """Ask until none takes a task; ``take(issuer, task)`` says what becomes of one that is taken.

        Of a policy with ``scope = "group"`` only the groups are asked where something has changed.
        """
        ask = self.policy.next
        if self.policy.scope == "group":
            while self.changed:
                groups = sorted(self.changed)
                self.changed.clear()
                for group in groups:
                    idle = self.idle[group]
                    while idle and (task := ask(idle[0])) is not None:
                        take(idle.pop(0), task)
            return
        took = True
        while took:
            took = False
            for idle in self.idle:
                for issuer in idle[:]:
                    if issuer in idle and (task := ask(issuer)) is not None:
                        took = True
                        idle.remove(issuer)
                        take(issuer, task)

    def begin_copy(self, transfer: Task) -> bool:
        """Let `transfer` have an issuer if it needs one; return whether it can be issued now."""
        group = self.copies.get(transfer.op)
        if group is None or transfer.dead:
            return True
        if self.idle[group] and not self._waiting[group]:
            self._copying[transfer.id] = self.idle[group].pop(0)
            return True
        self._waiting[group].append(transfer)
        return False

    def next_copy(self) -> Task | None:
        """Return a transfer that waited for an issuer and has one now."""
        for group, waiting in self._waiting.items():
            if waiting and self.idle[group]:
                transfer = waiting.popleft()
                self._copying[transfer.id] = self.idle[group].pop(0)
                return transfer
        return None

    def end_copy(self, transfer: Task) -> None:
        """Let who made `transfer`, if anybody did, be asked again."""
        issuer = self._copying.pop(transfer.id, None)
        if issuer is not None:
            self.free(issuer)


def refuse_wrong(policy: Policy, graph: Graph, n_nodes: int, issuer: Issuer, task: Task) -> None:
    """Refuse what a policy gave an issuer and should not have.

    Raises
    ------
    InputError
        It is no task, or one that was taken before, is not eligible, is for another group of issuers, or is
        another one than it was.
    """
    gave = f"policy {type(policy).__name__} gave {issuer.name}"
    if not isinstance(task, Task):
        raise InputError(f"{gave} {task!r}, which is no task: next() returns a task or None")
    try:
        changed = task.frame is None and task.id != task.iteration * n_nodes + task.op
        changed = changed or not 0 <= task.op < len(graph)
    except TypeError:
        changed = True
    if changed:
        raise InputError(f"{gave} {task!r} with id {task.id}, which it has changed: tasks are to be read")
    if task.issuer is not None or task.ready_ns < 0 or task.group != issuer.group:
        raise InputError(
            f"{gave} op {graph.op_names[task.op]!r}, "
            + ("which was taken before" if task.issuer is not None else "which it may not take (now)")
        )
