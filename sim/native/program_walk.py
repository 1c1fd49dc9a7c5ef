# cython: language_level=3, annotation_typing=False, initializedcheck=False
# cython: boundscheck=False, wraparound=False, cdivision=True
"""An order of the steps of programs that wait for one another: each goes on until it lacks something.

::

    program 0   makes a, makes b | needs d      a program sleeps until what it lacks has been made,
    program 1   needs a, makes c | ...          and goes on in the order in which sleepers were woken

This is plain Python on int64 columns; `programs.pxd` gives Cython the types.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Any

import numpy as np

from sim.base.arrays import IntArray

COMPILED = not __file__.endswith(".py")


def steps_in_order(first: IntArray, n_keys: int, *columns: IntArray) -> tuple[IntArray, IntArray]:
    """Return the steps in order, and for each program the step at which it stops.

    Parameters
    ----------
    first : array of int64
        Number of each program's first step, and of all steps.
    n_keys : int
        What is needed and made has numbers below it.
    *columns : array of int64
        The bounds of what each step needs, and the numbers of that; the same for what it makes.
    """
    n, steps = len(first) - 1, int(first[len(first) - 1])
    nobody, ranks = np.full(n_keys, -1), np.arange(n)
    state = [np.zeros(n_keys, np.int64), nobody, nobody.copy(), ranks, ranks.copy()]
    arrays = [first[:n].copy(), np.zeros(steps, np.int64), first[1:], *columns, *state]
    as_read: Any = np.ascontiguousarray if COMPILED else np.ndarray.tolist  # Python reads lists faster
    read = list(map(as_read, arrays))
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
    """Fill in `order` and `done`; return how many steps there are.

    Who lacks a key is in a list from ``asleep[key]`` over ``behind[rank]`` to ``last[key]``; `awake` is a
    ring of those who can go on.
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
