"""What a policy says of itself as data, where it can be believed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.policy.order import Order

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
    return None if changed else policy.as_data(job)
