"""Why a request was late: its time divided into parts that add up to the nanosecond.

::

    arrival                first step                                                     last token
      │ queue: next step │ blocks, budget, seats │ prefill │ decode │ shared │ preempted │ recompute │

    next step    until the engine looked at it, because a step was under way
    blocks       the first waiting request did not fit into the cache; budget, seats: or into the step
    prefill      steps with a part of its prompt; lost: the part of them that a prefix would have saved if its
                 blocks had not been taken
    decode       steps that sampled one token; shared: together with prompts of others
    budget       between two of its steps it was running, but others took the whole step (`turn`)
    preempted    it had lost its blocks; recompute: steps that compute lost tokens again
    pull         keys and values of its prompt were being transferred
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from policies.serving.batcher import Request
from scenarios.serving.engine import EngineEvent, Serve
from sim.base.arrays import IntArray, group_pairs
from sim.base.units import round_half_up

QUEUE: Final = ("next step", "blocks", "budget", "seats")
PARTS: Final = (*QUEUE, "pull", "prefill", "lost", "decode", "shared", "turn", "preempted", "recompute")
_CODE: Final = {part: code for code, part in enumerate(PARTS)}
_STEPS: Final = ("prefill", "recompute")


class _Replica:
    """The passes of a replica in columns, with one at the beginning that did nothing."""

    def __init__(self, passes: pd.DataFrame) -> None:
        self.scheduled = np.append(0, passes["scheduled_ns"])
        self.why = np.append(0, [_CODE[why] for why in passes["why"].fillna(QUEUE[0])])
        self.heads = [None, *passes["head"]]
        steps = passes[passes["tokens"] > 0]
        self.numbers, self.ends = steps.index.to_numpy(), steps["end_ns"].to_numpy()

    def latest(self, begin: int, until: int) -> tuple[slice, IntArray]:
        """Return the passes that were the latest one between two moments, and for how long each was."""
        first = int(self.scheduled.searchsorted(begin, "right")) - 1
        window = slice(first, int(self.scheduled.searchsorted(until)))
        return window, np.diff(self.scheduled[window].clip(begin), append=until)


class Lateness:
    """Divides the time of requests into parts.

    Attributes
    ----------
    passes : DataFrame
        Passes of all engines.
    first, all : DataFrame
        Time of each request to its first and to its last token in ns: a row for each id, a column for each
        of `PARTS`.
    """

    def __init__(self, serve: Serve, requests: Sequence[Request]) -> None:
        self.passes = pd.DataFrame(serve.passes)
        self._replicas = {i: _Replica(of) for i, of in self.passes.groupby("replica")}
        self._columns = {name: of.to_numpy() for name, of in self.passes.items()}
        events = group_pairs((event[0].id, event) for event in serve.events)
        divided = [self._divide(each, events.get(each.id, [])) for each in requests]
        ids = [each.id for each in requests]
        self.first, self.all = (pd.DataFrame([*of], ids, PARTS) for of in zip(*divided, strict=True))

    def _divide(self, request: Request, events: Sequence[EngineEvent]) -> list[IntArray]:
        """Return the time of a request to its first and to its last token, by part."""
        replica, columns = self._replicas[request.replica], self._columns
        chunks = [number for _, number, what in events if what in _STEPS]
        sampled = replica.numbers[replica.ends.searchsorted(request.token_ns)]
        steps = np.sort(np.append(sampled, chunks)).astype(int)
        steps = steps[np.diff(steps, prepend=-1) > 0]
        start, end = columns["start_ns"][steps], columns["end_ns"][steps]
        before = np.append(request.arrival_ns, end[:-1])
        waits, waited = np.full(len(steps), _CODE["turn"]), start - before
        spent = np.where(columns["chunks"][steps] > 0, _CODE["shared"], _CODE["decode"])
        more = np.zeros(len(PARTS), np.int64)  # of parts that come before the first token
        queued = {0: start[0]}  # step → until when it was in a queue before
        for asked, number, what in events:
            i = int(steps.searchsorted(number))
            if i == len(steps):  # preempted when its last token was under way
                continue
            (spent if what in _STEPS else waits)[i] = _CODE[what]
            if what == "pull":
                queued[i] = columns["scheduled_ns"][number]
            elif what == "prefill" and asked.lost:
                missing = max(1, asked.prompt - (asked.hits or 0))
                lost = round_half_up((end[i] - start[i]) * min(1.0, asked.lost / missing))
                more[[_CODE["lost"], _CODE["prefill"]]] += lost, -lost
        for i, until in queued.items():
            queue = self._replicas[columns["replica"][steps[i]]]
            window, ns = queue.latest(before[i], until)
            more += np.bincount(queue.why[window], ns, len(PARTS)).astype(np.int64)
            waited[i] -= until - before[i]
        codes, ns = np.stack([waits, spent], axis=1), np.stack([waited, end - start], axis=1)
        first = int(end.searchsorted(request.token_ns[0])) + 1
        return [
            more + np.bincount(codes[:n].ravel(), ns[:n].ravel(), len(PARTS)).astype(np.int64)
            for n in (first, len(steps))
        ]

    def behind(self, request: Request) -> dict[str, int]:
        """Return the requests longest at the head of the queue while a request waited, and how long in ns."""
        assert request.scheduled_ns is not None
        replica = self._replicas[request.replica]
        window, ns = replica.latest(request.arrival_ns, request.scheduled_ns)
        heads = pd.Series(ns, replica.heads[window]).groupby(level=0, sort=False).sum()
        found: dict[Any, int] = heads[(heads > 0) & (heads.index != request.id)].nlargest(3).to_dict()
        return found
