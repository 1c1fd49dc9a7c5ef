"""The engine: one loop over instants, on SimPy.

At each instant, in this order::

    1. all completions, in the order in which they were scheduled     (_complete)
    2. memory is released, then tasks become eligible                 (_complete)
    3. every free issuer is asked, in machine order,                  (_ask_groups, _ask_all)
       until none takes a task
    4. streams start their heads, in machine order                    (_start_heads)
    5. devices and links share what they have among those who run     (_settle)

SimPy keeps the queue of future instants; callbacks only note what fired, and the whole instant is
settled at once when no event of the same time is left. That is what makes the order above hold
whatever the order of events inside an instant, and what makes ties reproducible.

A task's way through it::

    eligible ─ policy.next ─► taken ─ issue cost ─► issued on a stream ─ head, events, launch ─► start ─► end
                                └─ a CPU worker executes what it takes ──────────────────────────►┘
"""

from sim.engine.hooks import Memory, Observer
from sim.engine.loop import Engine, simulate
from sim.engine.state import State

__all__ = ["Engine", "Memory", "Observer", "State", "simulate"]
