# cython: language_level=3, annotation_typing=False, infer_types=True, initializedcheck=False
# cython: boundscheck=False, wraparound=False, cdivision=True
"""Passes over the edges of a graph, compiled with the kernel.

They are plain Python on int64 columns; `edge_passes.pxd` gives Cython the types.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Any

import numpy as np

from sim.base.arrays import FloatArray, IntArray

COMPILED = not __file__.endswith(".py")


def _as_read(*columns: IntArray | FloatArray) -> list[Any]:
    """Return columns in the form a pass reads: Python reads lists faster, and their numbers have no limit."""
    return [np.ascontiguousarray(column) if COMPILED else column.tolist() for column in columns]


# ----------------------------------------------------------------------------------------------------------
# Longest paths to and from each node of a flow: one pass forward over its edges, and one back.
#
# ::
#
#     head   ──────────►│ taken ─cost─► latency ─► start ▇▇▇▇ end │      edges in the order of their consumers
#     tail      over │◄── tail ── end ▇▇▇▇ start ◄── issued │             ... and in the reverse order


def heads_and_tails(*columns: IntArray) -> list[IntArray]:
    """Return, by edges alone, when each node is taken and may begin, and the time after its issue and end.

    Parameters
    ----------
    *columns : array of int64
        For each node its duration, its cost of issuing and its launch latency; for each edge, in the order of
        consumers, the producer, the consumer, and 1 if it counts when the producer is issued.
    """
    read = _as_read(*columns, *[np.zeros(len(columns[0]), np.int64) for _ in range(4)])
    sweep_both_ways(*read)
    return [np.asarray(column, np.int64) for column in read[len(columns) :]]


def sweep_both_ways(
    ns: Sequence[int],
    cost: Sequence[int],
    latency: Sequence[int],
    producer: Sequence[int],
    consumer: Sequence[int],
    early: Sequence[int],
    taken: MutableSequence[int],
    begin: MutableSequence[int],
    issued: MutableSequence[int],
    tail: MutableSequence[int],
) -> None:
    """Fill in the last four columns."""
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
        whole = cost[c] + max(issued[c], latency[c] + executed)
        if early[i]:
            issued[p] = max(issued[p], whole)
            tail[p] = max(tail[p], executed)
        else:
            tail[p] = max(tail[p], whole)


# ----------------------------------------------------------------------------------------------------------
# The longest chain of ops: one pass over all inputs, op after op in topological order.
#
# ::
#
#     iteration 0    a ─► b ─┐ distance 1        an op ends its own time after the last of its inputs or,
#     iteration 1            └─► a ─► b          if it is not strict, after the first of them

ALL, FIRST, NO_DATA, NOTHING = 0, 1, 2, 3
"""What an op waits for: all inputs, the first one, no input, or not even for control edges."""


def longest_ns(iterations: int, *columns: Any) -> int:
    """Return the latest end of any op.

    Parameters
    ----------
    iterations : int
    *columns : array of int64
        The topological order; for each op its duration and what it waits for (`ALL`, ...); the bounds of its
        inputs, and for each input the producer (-1: from outside), the distance and the travel time;
        the bounds of its control edges, and for each the producer and the distance.
    """
    read = _as_read(np.zeros(iterations * len(columns[0]), np.int64), *columns)
    sweep_ends(*read)
    return int(np.max(read[0]))


def sweep_ends(
    end: MutableSequence[int],
    order: Sequence[int],
    own: Sequence[int],
    waits: Sequence[int],
    first_input: Sequence[int],
    producer: Sequence[int],
    distance: Sequence[int],
    travel: Sequence[int],
    first_after: Sequence[int],
    follows: Sequence[int],
    behind: Sequence[int],
) -> None:
    """Fill in the ends of all ops in all iterations."""
    n = len(order)
    for base in range(0, len(end), n):
        for i in range(n):
            op = order[i]
            at, first, wait = 0, -1, waits[op]
            for j in range(first_input[op], first_input[op + 1]):
                from_end = base - distance[j] * n
                there = travel[j] if from_end >= 0 else 0  # it was there before the first iteration
                if producer[j] >= 0 and from_end >= 0:
                    there += end[from_end + producer[j]]
                if wait == ALL and there > at:
                    at = there
                elif wait == FIRST and (there < first or first < 0):
                    first = there
            for j in range(first_after[op], first_after[op + 1]):
                from_end = base - behind[j] * n
                if wait != NOTHING and from_end >= 0 and end[from_end + follows[j]] > at:
                    at = end[from_end + follows[j]]
            end[base + op] = max(at, first) + own[op]


# ----------------------------------------------------------------------------------------------------------
# An order for the steps of programs that wait for one another: each goes on until it lacks something.
#
# ::
#
#     program 0   makes a, makes b | needs d      a program sleeps until the key that it lacks has been made,
#     program 1   needs a, makes c | ...          and programs go on in the order in which they were woken


def steps_in_order(first: IntArray, n_keys: int, *columns: IntArray) -> tuple[IntArray, IntArray]:
    """Return the steps in order, and for each program the step at which it stops.

    Parameters
    ----------
    first : array of int64
        Number of each program's first step, and of all steps.
    n_keys : int
        Upper limit, exclusive, of the keys that are needed and made.
    *columns : array of int64
        The bounds of each step's needed keys, and those keys; the same for the keys that it makes.
    """
    n, steps = len(first) - 1, int(first[len(first) - 1])
    nobody, ranks = np.full(n_keys, -1), np.arange(n)
    state = [np.zeros(n_keys, np.int64), nobody, nobody.copy(), ranks, ranks.copy()]
    read = _as_read(first[:n].copy(), np.zeros(steps, np.int64), first[1:], *columns, *state)
    count = walk(*read)
    return np.array(read[1], np.int64)[:count], np.array(read[0], np.int64)


def walk(
    done: MutableSequence[int],
    order: MutableSequence[int],
    end: Sequence[int],
    first_need: Sequence[int],
    needed: Sequence[int],
    first_make: Sequence[int],
    made: Sequence[int],
    there: MutableSequence[int],
    asleep: MutableSequence[int],
    last: MutableSequence[int],
    behind: MutableSequence[int],
    awake: MutableSequence[int],
) -> int:
    """Fill in `order` and `done`; return the number of steps.

    Programs that lack a key are in a list from ``asleep[key]`` over ``behind[rank]`` to ``last[key]``;
    `awake` is a ring of those that can go on.
    """
    ranks, n_awake, at_front, n = len(done), len(done), 0, 0
    while n_awake:
        rank = awake[at_front]
        at_front = (at_front + 1) % ranks
        n_awake -= 1
        at, lacks = done[rank], -1
        while at < end[rank]:
            for j in range(first_need[at], first_need[at + 1]):
                if not there[needed[j]]:
                    lacks = needed[j]
                    break
            if lacks >= 0:
                break
            for j in range(first_make[at], first_make[at + 1]):
                key = made[j]
                there[key] = 1
                sleeper = asleep[key]
                while sleeper >= 0:
                    awake[(at_front + n_awake) % ranks] = sleeper
                    n_awake += 1
                    sleeper = behind[sleeper]
                asleep[key] = -1
            order[n] = at
            n += 1
            at += 1
        done[rank] = at
        if lacks >= 0:
            behind[rank] = -1
            if asleep[lacks] < 0:
                asleep[lacks] = rank
            else:
                behind[last[lacks]] = rank
            last[lacks] = rank
    return n


# ----------------------------------------------------------------------------------------------------------
# A list schedule: whenever one of some equal lanes is free, the first ready task of a list starts there.


def list_schedule(key: FloatArray, lanes: int, *columns: IntArray) -> tuple[IntArray, IntArray]:
    """Return when each task starts, and its lane, if the ready task with the least key goes first.

    Parameters
    ----------
    key : array of float64
        Key of each task; number 0 is not a task but the end of all.
    lanes : int
    *columns : array of int64
        For each task the earliest start, the number of tasks it follows, the time it keeps its lane, and the
        bounds of its followers; for each of these its number, and its least delay after the task's start.
    """
    none = np.zeros(len(key), np.int64)
    read = _as_read(columns[0].copy(), columns[1].copy(), none, none.copy(), np.zeros(lanes, np.int64))
    fill_lanes(*read, *_as_read(key, *columns[2:]))
    return np.asarray(read[0], np.int64), np.asarray(read[2], np.int64)


def fill_lanes(
    start: MutableSequence[int],
    waits: MutableSequence[int],
    lane: MutableSequence[int],
    ready: MutableSequence[int],
    free: MutableSequence[int],
    key: Sequence[float],
    ns: Sequence[int],
    first: Sequence[int],
    follow: Sequence[int],
    lag: Sequence[int],
) -> None:
    """Fill in `start` and `lane`; `ready` has tasks that wait only for a lane, `free` the lanes' times."""
    n_ready = 0
    for k in range(1, len(ns)):
        if not waits[k]:
            ready[n_ready] = k
            n_ready += 1
    while n_ready:
        where = 0
        for i in range(1, len(free)):
            if free[i] < free[where]:
                where = i
        place, when = -1, 0
        for i in range(n_ready):
            k = ready[i]
            at = max(start[k], free[where])
            if place < 0 or at < when or (at == when and key[k] < key[ready[place]]):
                place, when = i, at
        k = ready[place]
        n_ready -= 1
        ready[place] = ready[n_ready]
        start[k], lane[k], free[where] = when, where, when + ns[k]
        for i in range(first[k], first[k + 1]):
            other = follow[i]
            start[other] = max(start[other], when + lag[i])
            waits[other] -= 1
            if other and not waits[other]:
                ready[n_ready] = other
                n_ready += 1
