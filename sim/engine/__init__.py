"""The engine: the events of each instant, on SimPy. It defines what a run is.

An instant may have several *rounds*: a task that takes no time begins in one round and ends in the next. In
a round, in this order::

    1. complete   what ends now, by (start, round, lane, id): issuers, streams, shared resources and memory
                  come free, then tasks become eligible, and transfers among them start
    2. pay        issuers whose launch is paid for, in machine order: workers execute, hosts put on streams
    3. ask        free issuers, in machine order, until the policy gives none of them a task
    4. heads      streams start their first task, in machine order, if its events and its launch have arrived
    5. settle     devices and links divide their capacity among the running tasks

SimPy keeps the queue of future events. Its callbacks only note what fired, and a round begins when everything
at an instant has been noted, so **the order inside an instant is a function of what happened, never of how it
was computed**: an observer, noise of width zero or another engine changes nothing.

The path of a task::

    eligible ─ policy.next ─► taken ─ issue cost ─► issued on a stream ─ head, events, launch ─► start ─► end
                                └─ a CPU worker executes what it takes ──────────────────────────►┘
"""

from sim.engine.hooks import Memory, Observer

__all__ = ["Memory", "Observer"]  # `sim.engine.engine` imports simpy, which many runs do not need
