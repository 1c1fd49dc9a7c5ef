"""What a policy says of itself as data, where it can be believed."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from sim.policy.order import Kind, Order, Per
from sim.words.answers import whole_numbers
from sim.words.arrays import UNSET, IntArray
from sim.words.errors import InputError, hint

if TYPE_CHECKING:
    from sim.job.job import Job
    from sim.policy.policy import Policy

__all__ = ["order_of"]


def order_of(policy: Policy, job: Job) -> Order | None:
    """Return the policy's order; None: it has none, or its class changes what another one said of itself.

    Parameters
    ----------
    policy : Policy
    job : Job

    Examples
    --------
    A class of one's own does not inherit the order of the one that it changes:

    >>> from policies.issue.ready_queue import ReadyQueue
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("one")
    >>> _ = b.op("a", duration_ns=10)
    >>> job = make_job(b.build(), Machine((Device("gpu0"),)))
    >>> class Never(ReadyQueue):
    ...     def next(self, issuer):
    ...         return None
    >>> order_of(ReadyQueue(), job).kind, order_of(Never(), job)
    ('fifo', None)
    """
    for cls in type(policy).__mro__:
        if "as_data" in vars(cls):
            break
        if not all(name.startswith("__") for name in vars(cls)):
            return None
    changed = {"prepare", "ready", "next", "ended", "as_data"} & vars(policy).keys()
    return None if changed else _checked(policy, job, policy.as_data(job))


def _checked(policy: Policy, job: Job, order: Order | None) -> Order | None:
    """Return an order whose numbers the kernel may believe."""
    if order is None:
        return None
    whose, names, n = f"{type(policy).__name__}.as_data", job.graph.op_names, len(job.graph)
    if not isinstance(order, Order):
        raise InputError(
            f"{whose} returned {type(order).__name__}, should be a sim.policy.order.Order or None"
        )
    for name, found, known in (("kind", order.kind, get_args(Kind)), ("per", order.per, get_args(Per))):
        if found not in known:
            raise InputError(f"{whose}: {name} is {found!r}{hint(str(found), known)}")
    most: Any
    for name, most in (("window", order.window), ("in_flight", order.in_flight)):
        if most is not None and (isinstance(most, bool) or not isinstance(most, Integral) or most < 1):
            raise InputError(f"{whose}: {name} is {most!r}, should be a whole number from 1 on, or None")
    if order.per != "group" and (order.kind != "place" or order.window != 1):
        raise InputError(f"{whose}: per is {order.per!r}, which takes the kind 'place' and a window of 1")

    def per_op(name: str, column: IntArray | None, least: int, below: int | None = None) -> IntArray | None:
        if column is None:
            return None
        return whole_numbers(column, f"{whose}: {name}", n, least=least, below=below, of=names)

    of_issuer = order.pool_of_issuer
    if of_issuer is not None:
        issuers = len(job.machine.issuers())
        of_issuer = whole_numbers(
            of_issuer, f"{whose}: pool_of_issuer", issuers, least=UNSET, below=n + 2 * issuers
        )
    order = order._replace(
        label=per_op("label", order.label, UNSET),
        cheap=per_op("cheap", order.cheap, 0, 2),
        pool=per_op("pool", order.pool, 0, n + 2 * len(job.machine.issuers())),
        pool_of_issuer=of_issuer,
    )
    if order.kind == "place":
        return order._replace(programs=_programs(whose, job, order))
    if order.kind in ("keep", "steal"):
        _check_pools(whose, job, order)
    return order


def _programs(whose: str, job: Job, order: Order) -> list[IntArray]:
    """Return the programs, if they have every task once, where an issuer may take it."""
    n, names = len(job.graph), job.graph.op_names
    tasks = n * job.iterations if order.per == "issuer" else n
    wanted = {"group": job.n_groups, "machine": 1, "issuer": len(job.machine.issuers())}[order.per]
    if not isinstance(order.programs, Sequence) or len(order.programs) != wanted:
        found = len(order.programs) if isinstance(order.programs, Sequence) else repr(order.programs)
        raise InputError(f"{whose}: programs are {found}, should be {wanted}, one for each {order.per}")
    programs = [whole_numbers(program, f"{whose}: a program", below=tasks) for program in order.programs]
    times = np.bincount(np.concatenate(programs), minlength=tasks)
    if (times != 1).any():
        key = int((times != 1).argmax())
        raise InputError(
            f"{whose}: the programs have op {names[key % n]!r} {times[key]} times, should have it once"
        ).about(names[key % n])
    for group, program in enumerate(programs if order.per == "group" else ()):
        if (elsewhere := job.group_of[program] != group).any():
            op = int(program[elsewhere.argmax()])
            raise InputError(
                f"{whose}: the program of group {group} has op {names[op]!r}, which is of group "
                f"{job.group_of[op]}"
            ).about(names[op])
    return programs


def _check_pools(whose: str, job: Job, order: Order) -> None:
    """Refuse pools whose issuers may not take their ops, or are no neighbours."""
    names = job.graph.op_names
    for name in ("pool", "pool_of_issuer", *(["cheap"] if order.kind == "steal" else ())):
        if getattr(order, name) is None:
            raise InputError(f"{whose}: the kind {order.kind!r} takes {name}, which is None")
    assert order.pool is not None
    assert order.pool_of_issuer is not None
    group = np.array([issuer.group for issuer in job.machine.issuers()])
    group_of = np.full(int(max(order.pool.max(initial=0), order.pool_of_issuer.max())) + 1, UNSET)
    for pool in np.unique(order.pool_of_issuer[order.pool_of_issuer >= 0]).tolist():
        members = np.flatnonzero(order.pool_of_issuer == pool)
        if len(np.unique(group[members])) > 1 or members[-1] - members[0] >= len(members):
            raise InputError(f"{whose}: the issuers of pool {pool} should be neighbours in one group")
        group_of[pool] = group[members[0]]
    takers = group_of[order.pool]
    wrong = (takers != job.group_of) & ((takers != UNSET) | (order.kind == "steal"))
    if wrong.any():
        op = int(wrong.argmax())
        raise InputError(
            f"{whose}: op {names[op]!r} is of pool {order.pool[op]}, whose issuers may not take it"
        ).about(names[op])
