"""Where the time of every device went, in four words that add up to the makespan.

::

    compute      an op executes that is no communication (`sim.explain.facts.communication`)
    communicate  nothing computes, and a collective or copy executes, or the next op's input travels
    wait         neither, and the device has ops left to run: `sim.explain.idle` says what each waits for;
                 collectives that have started and wait for a late rank among them
    idle         no op is left for it, or it never had one

    lanes        ▇▇▇▇▇matmul▇▇▇▇▇            ▇▇▇matmul▇▇▇
                        ▇▇all_reduce▇▇▇▇
                 ├── compute ────┤├ comm. ┤├ wait ┤├ compute ┤├── idle ──┤ makespan

Communication that hides behind computing takes no time of its own, so that overlapping shows: what
Holistic Trace Analysis calls the temporal breakdown (https://hta.readthedocs.io, "Temporal Breakdown") has
the same order of precedence. A device with cores or several streams computes when any of them does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from sim.explain.facts.communication import communicates, computes_until_ns
from sim.explain.facts.derived_columns import Facts
from sim.explain.facts.where import EVERYWHERE, Where
from sim.explain.idle import idle_reasons
from sim.words.intervals import union

if TYPE_CHECKING:
    from sim.record.record import Record

__all__ = ["WORD_OF_REASON", "time_use"]

WORD_OF_REASON: Final = {"transfer": "communicate", "finished": "idle", "unused": "idle"}
"""What time without a running op is called, by its reason (`sim.explain.idle.REASONS`); else ``wait``."""


def time_use(
    trace: Record, reasons: Mapping[str, Mapping[str, int]] | None = None, where: Where = EVERYWHERE
) -> dict[str, dict[str, int]]:
    """Return, for each device, the ns of ``compute``, ``communicate``, ``wait`` and ``idle``.

    Parameters
    ----------
    trace : Trace
    reasons : mapping, optional
        What `sim.explain.idle.idle_reasons` returned of this trace and place, when the caller has it already.
    where : Where
        What counts; the words then add up to its time.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("ping")
    >>> _ = b.op("a", duration_ns=10, device="gpu0")
    >>> _ = b.op("b", duration_ns=7, device="gpu1", inputs=["a"], kind="all_reduce")
    >>> use = time_use(simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), ReadyQueue()))
    >>> use["gpu0"]
    {'compute': 10, 'communicate': 0, 'wait': 0, 'idle': 7}
    >>> use["gpu1"]
    {'compute': 0, 'communicate': 7, 'wait': 10, 'idle': 0}
    """
    facts = Facts(trace)
    reasons = reasons or idle_reasons(trace, facts, where)
    begin, end = where.from_ns, where.end_ns(facts)
    counts = where.tasks(facts)
    computes = np.flatnonzero(counts & ~communicates(trace) & ~trace.is_delay)
    until = computes_until_ns(trace)
    # where all that executes computes, what is busy computes
    only_compute = len(computes) == int(counts.sum()) and until is trace.tasks["end_ns"]
    start, stop = (np.clip(at[computes], begin, end) for at in (trace.tasks["start_ns"], until))
    n = len(trace.job.machine.devices)
    compute = [] if only_compute else union(start, stop, trace.device[computes]).lengths(n).tolist()
    use = {}
    for name, why in reasons.items():
        busy = end - begin - sum(why.values())
        here = busy if only_compute else compute[trace.job.machine.device_index(name)]
        use[name] = {"compute": here, "communicate": busy - here, "wait": 0, "idle": 0}
        for reason, ns in why.items():
            use[name][WORD_OF_REASON.get(reason, "wait")] += ns
    return use
