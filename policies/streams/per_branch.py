"""One stream per branch: dependent ops share a stream, independent ones do not.

::

        a ── b ── c ──┐           stream 0:  a  b  c  f        a chain needs no event,
        └─── d ── e ──┴─ f        stream 1:     d  e           a fork and a join one each

The graph is cut into chains. In program order, an op continues the stream of its first producer
whose stream nobody has continued yet; an op without such a producer begins a chain. Nimble (Kwon et
al. 2020, "Nimble: lightweight and parallel GPU task scheduling for deep learning", NeurIPS) maps graphs
to CUDA streams so, with the fewest chains, found by matching; here the cover is greedy, in linear time.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.option_checks import one_of
from sim import Job

__all__ = ["PerBranch"]


class PerBranch:
    """Chains of dependent ops, each on one stream.

    Parameters
    ----------
    spread : str
        Where a chain begins. ``"least-loaded"``: on the stream of the device with the least work so
        far, in known durations (then the one with the fewest chains, then the first). ``"next"``: on the
        streams in turn. Either way no stream gets a second chain before every stream has one.

    Raises
    ------
    InputError
        Another word.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("fork and join")
    >>> ops = {"a": [], "b": ["a"], "c": ["b"], "d": ["a"], "e": ["d"], "f": ["c", "e"]}
    >>> for name, inputs in ops.items():
    ...     _ = b.op(name, inputs=inputs, duration_ns=10)
    >>> PerBranch().assign(make_job(b.build(), Machine((Device("gpu0", streams=4),))))
    [0, 0, 0, 1, 1, 0]
    """

    def __init__(self, spread: str = "least-loaded") -> None:
        self.spread = one_of("per-branch", "spread", spread, ("least-loaded", "next"))

    def assign(self, job: Job) -> Sequence[int]:
        """Return one stream number per op, counted within the op's device."""
        producers = job.graph.dag().predecessors
        device_of, known_ns = job.device_of.tolist(), job.known_ns.tolist()
        work = [[0] * device.lanes for device in job.machine.devices]
        chains = [[0] * device.lanes for device in job.machine.devices]
        continued = bytearray(len(device_of))
        stream = [0] * len(device_of)
        for op in job.order.tolist():
            d = device_of[op]
            for p in producers[op]:
                if device_of[p] == d and not continued[p]:
                    continued[p] = 1
                    stream[op] = stream[p]
                    break
            else:
                stream[op] = self._begin(work[d], chains[d])
                chains[d][stream[op]] += 1
            work[d][stream[op]] += known_ns[op]
        return stream

    def _begin(self, work: list[int], chains: list[int]) -> int:
        """Return the stream for a new chain."""
        first = work if self.spread == "least-loaded" else chains
        return min(range(len(work)), key=lambda s: (first[s], chains[s]))
