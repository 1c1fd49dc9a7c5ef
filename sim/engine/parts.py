"""What a run is put together from: its nodes and their readiness, host threads, the network."""

from __future__ import annotations

from sim.engine.failing import Failing
from sim.engine.hooks import Memory
from sim.graph.frames import has_control_flow
from sim.graph.rendezvous_keys import rendezvous_keys
from sim.job.context import Context
from sim.job.job import Job
from sim.job.pageable import host_groups
from sim.job.transfers import Flow, check_routes
from sim.machine.link import Network
from sim.policy.policy import Policy
from sim.readiness.counters import CounterReadiness, Readiness
from sim.readiness.decided_outcomes import decided
from sim.readiness.rendezvous import Rendezvous, with_keyed_transfers
from sim.readiness.runs_in_turn import RunsInTurn
from sim.readiness.tokens import TaggedTokenReadiness
from sim.words.arrays import UNSET
from sim.words.errors import InfeasibleError

__all__ = ["groups_that_copy", "make_network", "make_nodes", "make_readiness"]


def make_nodes(job: Job, flow: Flow) -> Flow:
    """Return the nodes and edges of a run: those of `flow`, and the transfers that Sends set off by key."""
    keys = rendezvous_keys(job.graph)
    return with_keyed_transfers(job, flow, keys) if keys.recvs else flow


def make_readiness(
    job: Job,
    own: Flow,
    flow: Flow,
    policy: Policy,
    context: Context,
    memory: Memory | None,
    taken: list[tuple[int, int]],
    failing: Failing | None = None,
) -> tuple[Readiness, Rendezvous | None, RunsInTurn | None]:
    """Return what says when the tasks of a run are eligible, and what stands before that.

    Parameters
    ----------
    job : Job
    own : Flow
        What `make_flow` gives.
    flow : Flow
        What `make_nodes` makes of it.
    policy : Policy
    context : Context
    memory : Memory or None
        Told where tokens go, and who meets.
    taken : list
        Filled with what switches say: id of the task, and which of its outputs is live.
    failing : Failing or None
        Knows which steps are aborted, where ops may fail.
    """
    keys = rendezvous_keys(job.graph)
    readiness: Readiness
    if has_control_flow(job.graph):
        readiness = tokens = TaggedTokenReadiness(
            job, flow, policy.synchronisation, decided(job, flow), memory.watcher if memory else None
        )
        tokens.sides = taken
    else:
        alone = keys.recvs if policy.asks_in_turn else ()
        readiness = CounterReadiness(job, flow, policy.synchronisation, alone)
    runs = rendezvous = None
    if policy.runs_in_turn and job.iterations > 1:
        readiness = runs = RunsInTurn(readiness, job, own)
    if keys.recvs:
        never = (lambda task: False) if failing is None else failing.aborted
        tell = (lambda send, recv: None) if memory is None else memory.met
        readiness = rendezvous = Rendezvous(
            readiness, job, flow, keys, context, policy.asks_in_turn, never, tell
        )
    return readiness, rendezvous, runs


def groups_that_copy(job: Job, flow: Flow) -> dict[int, int]:
    """Return the transfers (nodes) that a host thread has to make, and the group of issuers that it is of."""
    groups = host_groups(job, flow.tensor, flow.source, flow.destination).tolist()
    return {flow.n_ops + k: group for k, group in enumerate(groups) if group != UNSET}


def make_network(job: Job, flow: Flow, context: Context) -> Network | None:
    """Return what carries the transfers of a run; None: they take no time.

    Raises
    ------
    InfeasibleError
        Links without a network, or devices that no route connects.
    """
    machine = job.machine
    if (flow.n_nodes == flow.n_ops and not job.carried.any()) or not machine.links:
        return None
    if machine.network is None:
        raise InfeasibleError("the machine has links but no network to carry transfers over them")
    check_routes(job, flow)
    return machine.network(machine, context)
