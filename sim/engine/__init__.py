"""The engine: what happens at an instant, on SimPy. It is the definition of what a run is.

At one time there may be several *rounds*: what takes no time begins in one round and ends in the next. In a
round, in this order::

    1. complete   what ends now, by (start, round, lane, id): issuers, streams, shared resources and memory
                  come free, then tasks become eligible, and transfers among them start
    2. pay        issuers whose launch is paid for, in machine order: workers execute, hosts put on streams
    3. ask        free issuers, in machine order, until the policy gives none of them a task
    4. heads      streams start their first task, in machine order, if its events and its launch have arrived
    5. settle     devices and links share what they have among those who run

SimPy keeps the queue of what lies ahead. Its callbacks only note what fired, and a round begins when all of
an instant has been noted, so **the order inside an instant is a function of what happened, never of how it
was computed**: an observer, noise of width zero or another engine changes nothing.

A task's way through it::

    eligible ─ policy.next ─► taken ─ issue cost ─► issued on a stream ─ head, events, launch ─► start ─► end
                                └─ a CPU worker executes what it takes ──────────────────────────►┘
"""

from sim.engine.hooks import Memory, Observer

__all__ = ["Memory", "Observer"]  # `sim.engine.engine` imports simpy, which many a run does without
