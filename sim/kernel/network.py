# cython: language_level=3, annotation_typing=False, infer_types=True, initializedcheck=False
# cython: boundscheck=False, wraparound=False, cdivision=True
"""The network of a run on columns: serial links, copy engines, latency, and links shared max-min fairly.

It matches `devices.network.Carrier` to the nanosecond. The loop of the kernel calls::

    net.start(task, move, now)    a transfer is ready: it begins now, or when what it holds is free
    net.next_ns                   time of the next event (NEVER: nothing is on its way)
    net.advance(now)              at that time, at the beginning of a round: fills `ended` and `begun`
    net.settle(now)               once all events of this instant are known: new rates and ends

    net.ended[:net.n_ended]       tasks that ended, since the loop set n_ended = 0
    net.begun[:net.n_begun]       tasks that began (``start_ns`` is now), since the loop set n_begun = 0
    net.status                    not 0: this arithmetic cannot go on; rerun everything on the SimPy engine

A transfer that takes no time ends at the next call of `advance` at the same instant.

Flows of one route have one rate, so a route is a queue in virtual time: a flow ends when virtual time, which
is the work done per flow since the route was last empty, has passed its tag. The unit of work is the greatest
common divisor of all bandwidths, times one second, so bandwidths are whole numbers per ns.

Exactness without long numbers: virtual time is kept to 2**-124 units of work, rounded down, together with
the number of roundings and a common denominator of all addends. Any value compared with it differs from
it by a multiple of one over that denominator, so a difference smaller than the rounding is exactly zero, as
long as the denominator is small enough; if it is not, and only then, `status` becomes `TIE`. A rate that
does not fit into 64 bits (its denominator is 0, see `sim.kernel.maxmin`) is multiplied and divided with
Python integers, to the same number of places.
"""

from __future__ import annotations

from sim.kernel.columns import LARGEST, NEVER, RouteColumns
from sim.kernel.maxmin import NONE, MaxMin, column, gcd, zeros

TOO_LARGE, TIE = 1, 2

LIMIT = 1 << 62
MASK = LIMIT - 1
BITS = 62
PLACES = 62  # the same, as a Python integer
WIDE = LIMIT
WIDE <<= BITS


def join_parts(coarse: int, part_1: int, part_2: int) -> int:
    """Return an amount and its two fractional parts as one whole number, a Python integer."""
    return (coarse << 2 * PLACES) + (part_1 << PLACES) + part_2


class Net:
    """The network of one run.

    Parameters
    ----------
    routes : RouteColumns
    n_transfers : int
        Number of transfers in the run: as many can be on their way at once.

    Attributes
    ----------
    status : int
        0; 1: a number is too large; 2: two instants or amounts are too close to tell whether they are equal.
    next_ns : int
        Time at which `advance` has something to do.
    ended, begun : columns of int64
        Tasks; the first `n_ended` and `n_begun` entries count, and the loop resets those numbers to 0.

    Examples
    --------
    Two transfers of 10 units share a link of 1 unit a ns:

    >>> routes = RouteColumns([0, 0], [10, 10], [0, 0], [0], [0, 0], [], [0], [0, 1], [0], [1])
    >>> net = Net(routes, 2)
    >>> net.start(7, 0, 0)
    >>> net.start(8, 1, 0)
    >>> net.settle(0)
    >>> net.next_ns
    20
    >>> net.advance(20)
    >>> list(net.ended[:net.n_ended]), list(net.begun[:net.n_begun])
    ([7, 8], [7, 8])
    """

    def __init__(self, routes: RouteColumns, n_transfers: int) -> None:
        n_ways, n_routes = len(routes.latency_ns), len(routes.first) - 1
        n_keys = max(routes.held, default=-1) + 1
        self.status = 0
        self.next_ns = NEVER
        self.way, self.work = column(routes.way), column(routes.work)
        self.alone_ns, self.latency_ns = column(routes.alone_ns), column(routes.latency_ns)
        self.route, self.held_first = column(routes.route), column(routes.held_first)
        self.held = column(routes.held)
        self.rates = MaxMin(routes.capacity, routes.first, routes.links)
        # Slots: transfers on their way; a free one is reused, so that few are touched.
        self.task, self.move, self.free = zeros(n_transfers), zeros(n_transfers), zeros(n_transfers)
        self.n_slots = self.n_free = 0
        self.ended, self.begun = zeros(n_transfers), zeros(n_transfers)
        self.n_ended = self.n_begun = 0
        self.due, self.n_due = zeros(n_transfers), 0
        # Queues for held resources; a slot is in those of its keys, with as many places as a way has keys.
        self.places = max((routes.held_first[w + 1] - routes.held_first[w] for w in range(n_ways)), default=0)
        self.before, self.behind = zeros(n_transfers), zeros(n_transfers * self.places)
        self.front, self.back = column([-1] * n_keys), column([-1] * n_keys)
        # Routes in virtual time: whole units and two times 62 fractional bits.
        self.virtual, self.virtual_1, self.virtual_2 = zeros(n_routes), zeros(n_routes), zeros(n_routes)
        self.speed_n, self.speed_d = zeros(n_routes), column([1] * n_routes)
        self.speed_long = [NONE] * n_routes  # if the denominator is 0
        self.since_ns, self.rounded = zeros(n_routes), zeros(n_routes)
        self.common_1, self.common_2 = column([1] * n_routes), column([1] * n_routes)
        # Flows by tag: a pairing heap for each route.
        self.root = column([-1] * n_routes)
        self.tag, self.tag_1, self.tag_2 = zeros(n_transfers), zeros(n_transfers), zeros(n_transfers)
        self.child, self.sibling, self.flowing = zeros(n_transfers), zeros(n_transfers), zeros(n_transfers)
        # A heap of future events by time: of a route, the end of its first flow; after the routes, of a slot,
        # the arrival of the first byte, or of the last one of a transfer that is alone.
        self.n_routes, self.n_events = n_routes, 0
        self.at_ns, self.heap = zeros(n_routes + n_transfers), zeros(n_routes + n_transfers)
        self.heap_place = zeros(n_routes + n_transfers)  # -1: it is not in the heap
        for route in range(n_routes):
            self.heap_place[route] = -1

    # -- calls from the loop

    def start(self, task: int, move: int, now: int) -> None:
        """Take a transfer that is ready."""
        if self.n_free:
            self.n_free -= 1
            slot = self.free[self.n_free]
        else:
            slot = self.n_slots
            self.n_slots += 1
            self.heap_place[self.n_routes + slot] = -1
        self.task[slot] = task
        self.move[slot] = move
        way = self.way[move]
        before = 0
        place = slot * self.places
        for k in range(self.held_first[way], self.held_first[way + 1]):
            key = self.held[k]
            if self.front[key] < 0:
                self.front[key] = place
            else:
                self.behind[self.back[key]] = place
                before += 1
            self.back[key] = place
            self.behind[place] = -1
            place += 1
        self.before[slot] = before
        if not before:
            self._begin(slot, now)

    def advance(self, now: int) -> None:
        """End the transfers that end at this instant, and begin those that waited for them."""
        self.n_due = 0
        while self.next_ns <= now:
            event = self.heap[0]
            self._drop(event)
            if event < self.n_routes:
                self._note_finished(event, now)
            else:
                self._note(event - self.n_routes)
        for i in range(self.n_due):
            slot = self.due[i]
            if self.work[self.move[slot]] and not self.flowing[slot]:
                self._flow(slot, now)
            else:
                self._arrive(slot, now)

    def settle(self, now: int) -> None:
        """Update the rates that the changes of this instant reach, and predict the ends of their flows."""
        rates = self.rates
        if rates.n_marked:
            rates.solve()
            for i in range(rates.n_changed):
                route = rates.changed[i]
                n, d = rates.rate_n[route], rates.rate_d[route]
                if (
                    n != self.speed_n[route]
                    or d != self.speed_d[route]
                    or self.since_ns[route] == now
                    or (not d and rates.rate_long[route] != self.speed_long[route])
                ):
                    self._advance_route(route, now)
                    self.speed_n[route], self.speed_d[route] = n, d
                    if not d:
                        self.speed_long[route] = rates.rate_long[route]
                    self._predict(route, now)

    # -- the stages of a transfer

    def _begin(self, slot: int, now: int) -> None:
        """Begin a transfer that holds everything it needs."""
        self.begun[self.n_begun] = self.task[slot]
        self.n_begun += 1
        move = self.move[slot]
        if self.work[move]:
            latency = self.latency_ns[self.way[move]]
            if latency:
                self._schedule(self.n_routes + slot, now + latency)
            else:
                self._flow(slot, now)
        else:
            self._schedule(self.n_routes + slot, now + self.alone_ns[move])

    def _arrive(self, slot: int, now: int) -> None:
        """End a transfer, and give back what it held."""
        self.ended[self.n_ended] = self.task[slot]
        self.n_ended += 1
        self.free[self.n_free] = slot
        self.n_free += 1
        self.flowing[slot] = 0
        way = self.way[self.move[slot]]
        place = slot * self.places
        for k in range(self.held_first[way], self.held_first[way + 1]):
            key = self.held[k]
            following = self.behind[place]
            self.front[key] = following
            place += 1
            if following >= 0:
                other = following // self.places
                self.before[other] -= 1
                if not self.before[other]:
                    self._begin(other, now)

    def _flow(self, slot: int, now: int) -> None:
        """Start the flow of a transfer's bytes."""
        route = self.route[self.way[self.move[slot]]]
        self._advance_route(route, now)
        self.tag[slot] = self.virtual[route] + self.work[self.move[slot]]
        self.tag_1[slot], self.tag_2[slot] = self.virtual_1[route], self.virtual_2[route]
        self.child[slot] = self.sibling[slot] = -1
        self.flowing[slot] = 1
        self.root[route] = slot if self.root[route] < 0 else self._meld(self.root[route], slot)
        self.rates.count(route, 1)

    def _note(self, slot: int) -> None:
        self.due[self.n_due] = slot
        self.n_due += 1

    # -- virtual time

    def _advance_route(self, route: int, now: int) -> None:
        """Bring the virtual time of a route up to date."""
        passed = now - self.since_ns[route]
        self.since_ns[route] = now
        n, d = self.speed_n[route], self.speed_d[route]
        if not passed or not n:
            return
        if not d:
            self._advance_long(route, passed)
            return
        wide = n
        wide *= passed
        whole = wide if d == 1 else wide // d
        if whole >= LARGEST - self.virtual[route]:
            self.status = TOO_LARGE
            return
        self.virtual[route] += whole
        if d > 1:
            remainder = wide % d
            if remainder:
                self._add_part(route, remainder, d)

    def _advance_long(self, route: int, passed: int) -> None:
        """Do the same at a speed that is too long for columns."""
        n, d = self.speed_long[route]
        fine, remainder = divmod(n * passed << 2 * PLACES, d)
        fine += join_parts(self.virtual[route], self.virtual_1[route], self.virtual_2[route])
        if fine >> 2 * PLACES >= LARGEST:
            self.status = TOO_LARGE
            return
        self.virtual[route] = fine >> 2 * PLACES
        self.virtual_1[route], self.virtual_2[route] = fine >> PLACES & MASK, fine & MASK
        if remainder:
            self.rounded[route] += 1
        self.common_2[route] = 0  # the denominator is too long

    def _add_part(self, route: int, remainder: int, d: int) -> None:
        """Add rest / d, less than 1, to the virtual time of a route."""
        wide = remainder
        wide <<= BITS
        part_1 = wide // d
        low = wide % d
        part_2 = 0
        if low:
            wide = low
            wide <<= BITS
            part_2 = wide // d
            if wide % d:
                self.rounded[route] += 1
        part_2 += self.virtual_2[route]
        part_1 += self.virtual_1[route] + (part_2 >> BITS)
        self.virtual_2[route] = part_2 & MASK
        self.virtual_1[route] = part_1 & MASK
        self.virtual[route] += part_1 >> BITS
        if self.common_1[route] % d == 0 or not self.common_2[route] or self.common_2[route] % d == 0:
            return
        d //= gcd(d, remainder)
        wide = d // gcd(self.common_1[route], d)
        wide *= self.common_1[route]
        if wide < LIMIT:
            self.common_1[route] = wide
            return
        wide = d // gcd(self.common_2[route], d)
        wide *= self.common_2[route]
        self.common_2[route] = wide if wide < LIMIT else 0  # 0: no common denominator is known any more

    def _is_decided(self, route: int, more: int) -> bool:
        """Whether a difference below the rounding, times `more`, can only be zero."""
        wide = self.common_1[route]
        wide *= self.common_2[route]
        if not wide:
            return False
        bound = self.rounded[route]
        bound *= more
        return wide < WIDE // bound

    def _is_over(self, slot: int, route: int) -> bool:
        """Whether the virtual time of a route has passed the tag of a flow."""
        wide = self.tag[slot] - self.virtual[route]
        if wide > 1:
            return False
        wide <<= BITS
        wide += self.tag_1[slot] - self.virtual_1[route]
        if wide > 1 or wide < -1:
            return wide < 0
        wide <<= BITS
        wide += self.tag_2[slot] - self.virtual_2[route]
        if wide <= 0:
            return True
        if wide >= self.rounded[route]:
            return False
        if not self._is_decided(route, 1):
            self.status = TIE
        return True

    def _predict(self, route: int, now: int) -> None:
        """Predict when the first flow of a route ends if its speed stays; virtual time must be up to date."""
        slot = self.root[route]
        d = self.speed_d[route]
        whole = self.tag[slot] - self.virtual[route]
        part_1 = self.tag_1[slot] - self.virtual_1[route]
        part_2 = self.tag_2[slot] - self.virtual_2[route]
        if part_2 < 0:
            part_2 += LIMIT
            part_1 -= 1
        if part_1 < 0:
            part_1 += LIMIT
            whole -= 1
        if d:
            steps = self._steps(route, whole, part_1, part_2)
        else:
            steps = self._steps_long(route, whole, part_1, part_2)
        if steps >= LARGEST:
            self.status = TOO_LARGE
            return
        self._schedule(route, now + steps)

    def _steps_long(self, route: int, whole: int, part_1: int, part_2: int) -> int:
        """Return the ns needed for an amount of work, at a speed that is too long for columns."""
        n, d = self.speed_long[route]
        steps, remainder = divmod(join_parts(whole, part_1, part_2) * d, n << 2 * PLACES)
        denominator = d * self.common_1[route] * self.common_2[route] * self.rounded[route]
        if remainder >= d * self.rounded[route]:
            steps += remainder > 0
        elif remainder and not 0 < denominator < 1 << 2 * PLACES:  # maybe one ns less
            self.status = TIE
        return min(steps, LARGEST)

    def _steps(self, route: int, whole: int, part_1: int, part_2: int) -> int:
        """Return the ns needed for an amount of work."""
        n, d = self.speed_n[route], self.speed_d[route]
        # The remainder, times d: the rate is then a whole number, and the parts matter only if decisive.
        remaining = whole
        remaining *= d
        fine = 0
        if part_1 or part_2:
            fine = part_2
            fine *= d
            coarse = part_1
            coarse *= d
            coarse += fine >> BITS
            fine &= MASK
            remaining += coarse >> BITS
            fine += (coarse & MASK) << BITS
        steps = remaining // n
        remaining -= steps * n
        if remaining or fine:
            steps += 1
        if not remaining and fine and self.rounded[route]:
            bound = self.rounded[route]
            bound *= d
            if fine < bound:  # maybe one ns less
                if not self._is_decided(route, d):
                    self.status = TIE
                steps -= 1
        return steps if steps < LARGEST else LARGEST

    def _note_finished(self, route: int, now: int) -> None:
        """Note the flows of a route that are over at this instant."""
        self._advance_route(route, now)
        n_over = 0
        slot = self.root[route]
        while slot >= 0 and self._is_over(slot, route):
            self._note(slot)
            n_over += 1
            slot = self._without_root(slot)
        self.root[route] = slot
        if slot < 0:  # restart, with small numbers
            self.virtual[route] = self.virtual_1[route] = self.virtual_2[route] = self.rounded[route] = 0
            self.common_1[route] = self.common_2[route] = 1
            self.speed_n[route] = 0
        self.rates.count(route, -n_over)

    # -- heaps

    def _meld(self, one: int, other: int) -> int:
        """Return the first of two flows by tag; the second becomes the first of its children."""
        if self.tag[other] < self.tag[one] or (
            self.tag[other] == self.tag[one]
            and (
                self.tag_1[other] < self.tag_1[one]
                or (self.tag_1[other] == self.tag_1[one] and self.tag_2[other] < self.tag_2[one])
            )
        ):
            one, other = other, one
        self.sibling[other] = self.child[one]
        self.child[one] = other
        return one

    def _without_root(self, root: int) -> int:
        """Return the root of the rest of a pairing heap after removing its root; -1: it is empty."""
        pairs, one = -1, self.child[root]
        while one >= 0:
            other = self.sibling[one]
            following = -1
            if other >= 0:
                following = self.sibling[other]
                one = self._meld(one, other)
            self.sibling[one] = pairs
            pairs, one = one, following
        one = -1
        while pairs >= 0:
            other = self.sibling[pairs]
            one = pairs if one < 0 else self._meld(one, pairs)
            pairs = other
        return one

    def _schedule(self, event: int, time_ns: int) -> None:
        """Let an event come at a time, in place of the time that it may have."""
        self.at_ns[event] = time_ns
        place = self.heap_place[event]
        if place < 0:
            place = self.n_events
            self.n_events += 1
        self._sift(event, place)
        self.next_ns = self.at_ns[self.heap[0]]

    def _drop(self, event: int) -> None:
        """Remove an event from the heap."""
        place = self.heap_place[event]
        self.heap_place[event] = -1
        self.n_events -= 1
        last = self.heap[self.n_events]
        if last != event:
            self._sift(last, place)
        self.next_ns = self.at_ns[self.heap[0]] if self.n_events else NEVER

    def _sift(self, event: int, place: int) -> None:
        """Move an event to its place in the heap, starting from a vacant place."""
        time_ns = self.at_ns[event]
        while place > 0:
            up = (place - 1) >> 1
            other = self.heap[up]
            if self.at_ns[other] <= time_ns:
                break
            self.heap[place] = other
            self.heap_place[other] = place
            place = up
        while True:
            kid = 2 * place + 1
            if kid >= self.n_events:
                break
            if kid + 1 < self.n_events and self.at_ns[self.heap[kid + 1]] < self.at_ns[self.heap[kid]]:
                kid += 1
            other = self.heap[kid]
            if time_ns <= self.at_ns[other]:
                break
            self.heap[place] = other
            self.heap_place[other] = place
            place = kid
        self.heap[place] = event
        self.heap_place[event] = place
