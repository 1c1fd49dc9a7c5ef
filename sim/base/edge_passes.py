# cython: language_level=3, annotation_typing=False, infer_types=True, initializedcheck=False
# cython: boundscheck=False, wraparound=False, cdivision=True
"""Passes over the edges of a graph, compiled with the kernel.

They are plain Python on int64 columns; `edge_passes.pxd` gives Cython the types.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from sim.base.arrays import LATEST_NS, FloatArray, IntArray

COMPILED = not __file__.endswith(".py")


def _as_read(columns: Iterable[IntArray | FloatArray]) -> list[Any]:
    """Return columns in the form a pass reads: Python reads lists faster, and their numbers have no limit."""
    if not COMPILED:
        return [column.tolist() for column in columns]
    return [column if column.flags.carray else column.copy() for column in columns]  # Cython wants to write


# ----------------------------------------------------------------------------------------------------------
# Longest paths to and from each node of a flow: one pass forward over its edges, and one back.
#
# ::
#
#     head   ──────────►│ taken ─cost─► latency ─► start ▇▇▇▇ end │      edges in the order of their consumers
#     tail      over │◄── tail ── end ▇▇▇▇ start ◄── issued │             ... and in the reverse order


def heads_and_tails(columns: list[IntArray]) -> list[IntArray]:
    """Return, by edges alone, when each node is taken and may begin, and the time after its issue and end.

    Parameters
    ----------
    columns : list of array of int64
        For each node its duration, its cost of issuing and its launch latency; for each edge, in the order of
        consumers, the producer, the consumer, and 1 if it counts when the producer is issued.
    """
    ns, cost, latency, producer, consumer, early = _as_read(columns)
    results = _as_read(np.zeros((4, len(ns)), np.int64))
    taken, begin, issued, tail = results
    edges = len(producer)
    for i in range(edges):
        p, c = producer[i], consumer[i]
        paid = taken[p] + cost[p]
        end = max(begin[p], paid + latency[p]) + ns[p]
        taken[c] = max(taken[c], paid if early[i] else end)
        begin[c] = max(begin[c], end)
    for back in range(edges):
        i = edges - 1 - back
        p, c = producer[i], consumer[i]
        executed = ns[c] + tail[c]
        total = cost[c] + max(issued[c], latency[c] + executed)
        if early[i]:
            issued[p] = max(issued[p], total)
            tail[p] = max(tail[p], executed)
        else:
            tail[p] = max(tail[p], total)
    return [np.asarray(column, np.int64) for column in results]


# ----------------------------------------------------------------------------------------------------------
# The longest chain of ops: one pass over all inputs, op after op in topological order.
#
# ::
#
#     iteration 0    a ─► b ─┐ distance 1        an op ends its own time after the last of its inputs or,
#     iteration 1            └─► a ─► b          if it is not strict, after the first of them

ALL, FIRST, NO_DATA, NOTHING = 0, 1, 2, 3
"""What an op waits for: all inputs, the first one, no input, or not even for control edges."""


def longest_ns(iterations: int, columns: list[IntArray]) -> int:
    """Return the latest end of any op.

    Parameters
    ----------
    iterations : int
    columns : list of array of int64
        The topological order; for each op its duration and what it waits for (`ALL`, ...); the bounds of its
        inputs, and for each input the producer (-1: from outside), the distance and the travel time;
        the bounds of its control edges, and for each the producer and the distance.
    """
    order, duration, waits, first_input, producer, distance, travel, *after = _as_read(columns)
    first_after, follows, behind = after
    (end,) = _as_read([np.zeros(iterations * len(order), np.int64)])
    n = len(order)
    for base in range(0, len(end), n):
        for i in range(n):
            op = order[i]
            latest, first, wait = 0, -1, waits[op]
            for j in range(first_input[op], first_input[op + 1]):
                from_end = base - distance[j] * n
                arrival = travel[j] if from_end >= 0 else 0  # it was there before the first iteration
                if producer[j] >= 0 and from_end >= 0:
                    arrival += end[from_end + producer[j]]
                if wait == ALL and arrival > latest:
                    latest = arrival
                elif wait == FIRST and (arrival < first or first < 0):
                    first = arrival
            for j in range(first_after[op], first_after[op + 1]):
                from_end = base - behind[j] * n
                if wait != NOTHING and from_end >= 0 and end[from_end + follows[j]] > latest:
                    latest = end[from_end + follows[j]]
            end[base + op] = max(latest, first) + duration[op]
    return int(np.max(end))


# ----------------------------------------------------------------------------------------------------------
# An order for the steps of programs that wait for one another: each goes on until it lacks something.
#
# ::
#
#     program 0   makes a, makes b | needs d      a program sleeps until the key that it lacks has been made,
#     program 1   needs a, makes c | ...          and programs go on in the order in which they were woken


def steps_in_order(first: IntArray, n_keys: int, columns: list[IntArray]) -> tuple[IntArray, IntArray]:
    """Return the steps in order, and for each program the step at which it stops.

    Programs that lack a key are in a list from ``asleep[key]`` over ``behind[rank]`` to ``last[key]``;
    `awake` is a ring of those that can go on.

    Parameters
    ----------
    first : array of int64
        Number of each program's first step, and of all steps.
    n_keys : int
        Upper limit, exclusive, of the keys that are needed and made.
    columns : list of array of int64
        The bounds of each step's needed keys, and those keys; the same for the keys that it makes.
    """
    first_need, needed, first_make, produced = _as_read(columns)
    n = len(first) - 1
    order, done, end = _as_read([np.zeros(first[n], np.int64), first[:n].copy(), first[1:]])
    is_made, asleep, last = _as_read([np.zeros(n_keys, np.int64), *np.full((2, n_keys), -1)])
    behind, awake = _as_read([np.arange(n), np.arange(n)])
    ranks, n_awake, at_front, n = n, n, 0, 0
    while n_awake:
        rank = awake[at_front]
        at_front = (at_front + 1) % ranks
        n_awake -= 1
        step, lacks = done[rank], -1
        while step < end[rank]:
            for j in range(first_need[step], first_need[step + 1]):
                if not is_made[needed[j]]:
                    lacks = needed[j]
                    break
            if lacks >= 0:
                break
            for j in range(first_make[step], first_make[step + 1]):
                key = produced[j]
                is_made[key] = 1
                sleeper = asleep[key]
                while sleeper >= 0:
                    awake[(at_front + n_awake) % ranks] = sleeper
                    n_awake += 1
                    sleeper = behind[sleeper]
                asleep[key] = -1
            order[n] = step
            n += 1
            step += 1
        done[rank] = step
        if lacks >= 0:
            behind[rank] = -1
            if asleep[lacks] < 0:
                asleep[lacks] = rank
            else:
                behind[last[lacks]] = rank
            last[lacks] = rank
    return np.array(order, np.int64)[:n], np.array(done, np.int64)


# ----------------------------------------------------------------------------------------------------------
# List schedules: whenever one of some equal lanes is free, the first ready task of a list starts there.


def list_schedule(
    key: FloatArray, lanes: int, columns: list[IntArray], bound: int, changes: IntArray
) -> tuple[IntArray, IntArray, FloatArray]:
    """Return when each task starts, and its lane, in the best schedule of some lists, and the last list.

    Parameters
    ----------
    key : array of float64
        Key of each task: the ready task with the least goes first. Number 0 is not a task but the end of all.
    lanes : int
    columns : list of array of int64
        For each task the earliest start, the number of tasks it follows, the time it keeps its lane, and the
        bounds of its followers; for each of these its number, and its least delay after the task's start.
    bound : int
        A schedule that ends then is the last.
    changes : array of int64
        A column for each list: two tasks that exchange their keys, and by how much the time after `bound`, of
        all lanes and the end, may grow; if it grows by more, they keep their keys.
    """
    release, follows, ns, first, follow, lag, one, other, worse, keys = _as_read(
        [*columns, *changes, key.copy()]
    )
    # `ready`: tasks that wait only for a lane; `free`: the lanes' times.
    start, waits, lane, ready, best, best_lane = _as_read(np.zeros((6, len(key)), np.int64))
    (free,) = _as_read([np.zeros(lanes, np.int64)])
    cost = best[0] = LATEST_NS
    for change in range(len(one)):
        a, b = one[change], other[change]
        keys[a], keys[b] = keys[b], keys[a]
        start[:], waits[:], n_ready = release, follows, 0
        for i in range(len(free)):
            free[i] = 0
        for k in range(1, len(ns)):
            if not waits[k]:
                ready[n_ready] = k
                n_ready += 1
        while n_ready:
            where = 0
            for i in range(1, len(free)):
                if free[i] < free[where]:
                    where = i
            pick, when = -1, 0
            for i in range(n_ready):
                k = ready[i]
                begin = max(start[k], free[where])
                if pick < 0 or begin < when or (begin == when and keys[k] < keys[ready[pick]]):
                    pick, when = i, begin
            k = ready[pick]
            n_ready -= 1
            ready[pick] = ready[n_ready]
            start[k], lane[k], free[where] = when, where, when + ns[k]
            for i in range(first[k], first[k + 1]):
                later = follow[i]
                start[later] = max(start[later], when + lag[i])
                waits[later] -= 1
                if later and not waits[later]:
                    ready[n_ready] = later
                    n_ready += 1
        excess = start[0] - bound
        for i in range(len(free)):
            excess += max(0, free[i] - bound)
        if excess - worse[change] > cost:
            keys[a], keys[b] = keys[b], keys[a]
        else:
            cost = excess
        if start[0] < best[0]:
            best[:], best_lane[:] = start, lane
            if best[0] <= bound:
                break
    return np.asarray(best, np.int64), np.asarray(best_lane, np.int64), np.asarray(keys)
