"""What a policy says of itself as data, where it can be believed."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

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
    tasks = n * job.iterations if order.per == "issuer" else n
    programs = tuple(whole_numbers(program, f"{whose}: a program", below=tasks) for program in order.programs)

    def per_op(name: str, column: IntArray | None, least: int, below: int | None = None) -> IntArray | None:
        if column is None:
            return None
        return whole_numbers(column, f"{whose}: {name}", n, least=least, below=below, of=names)

    of_issuer, pools = order.pool_of_issuer, None
    if of_issuer is not None:
        n_issuers = len(job.machine.issuers())
        of_issuer = whole_numbers(of_issuer, f"{whose}: pool_of_issuer", n_issuers, least=UNSET)
        if order.kind == "steal":
            pools = int(of_issuer.max(initial=UNSET)) + 1
    return order._replace(
        programs=programs,
        label=per_op("label", order.label, UNSET),
        cheap=per_op("cheap", order.cheap, 0, 2),
        pool=per_op("pool", order.pool, 0, pools),
        pool_of_issuer=of_issuer,
    )
