# cython: language_level=3, annotation_typing=False, infer_types=True, boundscheck=False
# cython: wraparound=False, initializedcheck=False, cdivision=True
"""SMs of GPUs, which kernels get in the order of their arrival (see `devices.sm_processor`)."""

from __future__ import annotations

from collections.abc import Sequence

from sim.base.arrays import IntArray
from sim.kernel.maxmin import Column, column, zeros

GROUPS = 8  # number of distinct times at which SMs come free
WIDTH = 24  # room for more of them while they are merged


class Sms:
    """The times at which SMs of each partition come free.

    Parameters
    ----------
    sms : sequence of int
        Number of SMs of each partition.
    loads, waves : sequences of int
        For each op: the number of SMs that it fills, at once or in sequence, and its waves on all SMs; with 0
        waves it fills that many SMs with loads of 1 ns.

    Examples
    --------
    On 4 SMs, 6 loads of 10 ns; when the first come, 2 loads are left, and the next op gets the other 2 SMs:

    >>> sms = Sms([4], [6, 2], [1, 1])
    >>> sms.dispatch(0, 0, 10, 0), sms.first_free(0), sms.dispatch(0, 1, 10, 0)
    (20, 10, 20)
    """

    def __init__(
        self, sms: Sequence[int], loads: Sequence[int] | IntArray, waves: Sequence[int] | IntArray
    ) -> None:
        self.loads, self.waves = column(loads), column(waves)
        # For each partition: the times at which some of its SMs come free, earliest first, and how many.
        self.n_instants = column([1] * len(sms))
        self.instant, self.free_sms = zeros(len(sms) * WIDTH), zeros(len(sms) * WIDTH)
        for partition, count in enumerate(sms):
            self.free_sms[partition * WIDTH] = count
        # Scratch space.
        self.turn_at, self.turn_sms = zeros(WIDTH), zeros(WIDTH)
        self.after_at, self.after_sms = zeros(WIDTH), zeros(WIDTH)

    def first_free(self, partition: int) -> int:
        """Return when the first SMs of a partition come free, which may be in the past."""
        return self.instant[partition * WIDTH]

    def dispatch(self, partition: int, op: int, ns: int, now: int) -> int:
        """Give an op the SMs of a partition as they come free; return when it ends."""
        loads = self.loads[op]
        waves = self.waves[op]
        if waves == 0:
            loads *= ns
            waves = ns = 1
        last = partition * WIDTH + self.n_instants[partition] - 1
        if self.n_instants[partition] > 1 and self.instant[last] > now:
            return self.dispatch_staggered(partition, loads, waves, ns, now)
        start = max(self.instant[partition * WIDTH], now)
        return self.dispatch_at_once(partition, start, loads, waves, ns)

    def dispatch_at_once(self, partition: int, start: int, loads: int, waves: int, ns: int) -> int:
        """Do the same if all of them are free at one time."""
        first = partition * WIDTH
        sms = 0
        for k in range(first, first + self.n_instants[partition]):
            sms += self.free_sms[k]
        rounds = loads // sms
        remainder = loads % sms
        last = start + (rounds * ns + waves - 1) // waves
        end = last
        if remainder:
            end = start + ((rounds + 1) * ns + waves - 1) // waves
        self.n_instants[partition] = 1
        self.instant[first] = end
        self.free_sms[first] = sms
        if end > last:
            self.n_instants[partition] = 2
            self.instant[first] = last
            self.free_sms[first] = sms - remainder
            self.instant[first + 1] = end
            self.free_sms[first + 1] = remainder
        return end

    def dispatch_staggered(self, partition: int, loads: int, waves: int, ns: int, now: int) -> int:
        """Do the same if they come free at several times; in units of 1 / waves ns, a load takes `ns`."""
        first = partition * WIDTH
        n = self.n_instants[partition]
        remaining = 0
        total = 0
        last = n - 1
        while last >= 0:  # otherwise all loads are dispatched before the last of these come free
            last_free = max(self.instant[first + last], now) * waves
            remaining = loads
            total = 0
            for k in range(last + 1):
                begin = max(self.instant[first + k], now) * waves
                rounds = (last_free - begin + ns - 1) // ns
                remaining -= rounds * self.free_sms[first + k]
                total += self.free_sms[first + k]
                self.turn_at[k] = begin + rounds * ns
                self.turn_sms[k] = self.free_sms[first + k]
            if remaining > 0:
                break
            last -= 1
        sort_pairs(self.turn_at, self.turn_sms, last + 1)
        n_after = 0
        for k in range(last + 1, n):
            self.after_at[n_after] = self.instant[first + k]
            self.after_sms[n_after] = self.free_sms[first + k]
            n_after += 1
        full = remaining // total
        remainder = remaining % total
        end = 0
        for k in range(last + 1):
            sms = self.turn_sms[k]
            end_of_full = self.turn_at[k] + full * ns
            if remainder < sms:
                self.after_at[n_after] = (end_of_full + waves - 1) // waves
                self.after_sms[n_after] = sms - remainder
                n_after += 1
                if remainder == 0:
                    end = max(end, end_of_full)
                    continue
                sms = remainder
            remainder -= sms  # these take one more
            end = end_of_full + ns
            self.after_at[n_after] = (end + waves - 1) // waves
            self.after_sms[n_after] = sms
            n_after += 1
        sort_pairs(self.after_at, self.after_sms, n_after)
        self.keep_few(partition, n_after)
        return (end + waves - 1) // waves

    def keep_few(self, partition: int, n_after: int) -> None:
        """Merge SMs that come free at the same time, and the nearest times if there are too many."""
        first = partition * WIDTH
        n = 0
        for k in range(n_after):
            if n and self.instant[first + n - 1] == self.after_at[k]:
                self.free_sms[first + n - 1] += self.after_sms[k]
            else:
                self.instant[first + n] = self.after_at[k]
                self.free_sms[first + n] = self.after_sms[k]
                n += 1
        while n > GROUPS:
            near = first
            for k in range(first, first + n - 1):
                if self.instant[k + 1] - self.instant[k] < self.instant[near + 1] - self.instant[near]:
                    near = k
            sms = self.free_sms[near] + self.free_sms[near + 1]
            area = self.instant[near] * self.free_sms[near] + self.instant[near + 1] * self.free_sms[near + 1]
            self.instant[near] = (area + sms - 1) // sms
            self.free_sms[near] = sms
            for k in range(near + 1, first + n - 1):
                self.instant[k] = self.instant[k + 1]
                self.free_sms[k] = self.free_sms[k + 1]
            n -= 1
        self.n_instants[partition] = n


def sort_pairs(first: Column, second: Column, n: int) -> None:
    """Sort a few pairs."""
    for k in range(1, n):
        a = first[k]
        b = second[k]
        gap = k
        while gap > 0 and (first[gap - 1] > a or (first[gap - 1] == a and second[gap - 1] > b)):
            first[gap] = first[gap - 1]
            second[gap] = second[gap - 1]
            gap -= 1
        first[gap] = a
        second[gap] = b
