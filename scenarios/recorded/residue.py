"""How much of a makespan nothing explains: the delays of a recording on the executed path.

::

    stream 7    [a][ delay.1 ][b]                          a delay is what kept b, and nothing in the trace
    stream 20   [c                ][ delay.2 ][d]          says what; the path goes back from d: delay.2, c

A *delay* is idle time of a stream that no launch, no task and no event explains, beyond what the GPU itself
takes (`scenarios.importers.traces.overheads`). The executed path (`sim.explain.path`) leads from time 0 to
the end of the run without a hole: delays on it are part of the makespan, those beside it held nothing up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sim.trace import Trace

__all__ = ["Residue", "residue"]


class Residue(NamedTuple):
    """What nothing explains.

    Attributes
    ----------
    ns : int
        On the executed path.
    share : float
        That part of the makespan, from 0 to 1.
    delays : int
        How many there are in all.
    delays_ns : int
        How long they are together, on all streams.
    """

    ns: int
    share: float
    delays: int
    delays_ns: int

    def to_json(self) -> dict[str, Any]:
        """Return it as ``sim run --json`` prints it."""
        return self._asdict()


def residue(trace: Trace) -> Residue | None:
    """Return what part of a recording's run nothing explains; None: it is no recording."""
    if not trace.is_delay.any():
        return Residue(0, 0.0, 0, 0) if trace.job.graph.device_facts else None
    from sim.explain.path import executed_path

    lengths = trace.tasks["end_ns"] - trace.tasks["start_ns"]
    path = executed_path(trace)
    on_path = sum(step.end_ns - step.start_ns for step in path if step.reason == "unexplained")
    share = on_path / trace.makespan_ns if trace.makespan_ns else 0.0
    return Residue(on_path, share, int(trace.is_delay.sum()), int(lengths[trace.is_delay].sum()))
