# What Cython compiles `network.py` with.
cimport cython

from sim.kernel.maxmin cimport MaxMin, gcd, i64, i128

cdef i64 NEVER, TOO_LARGE, TIE, LIMIT, LARGEST, MASK, BITS
cdef i128 WIDE

@cython.final
cdef class Net:
    cdef public i64 status, next_ns, n_slots, n_free, n_ended, n_begun, n_due, places, n_routes, n_events
    cdef public MaxMin rates
    cdef public i64[::1] way, work, alone_ns, latency_ns, route, held_first, held
    cdef public i64[::1] task, move, free, ended, begun, due, before, behind, front, back
    cdef public i64[::1] virtual, virtual_1, virtual_2, speed_n, speed_d, since_ns, rounded, common_1, common_2
    cdef public list speed_long
    cdef public i64[::1] root, tag, tag_1, tag_2, child, sibling, flowing
    cdef public i64[::1] at_ns, heap, heap_place

    cpdef void start(self, i64 task, i64 move, i64 now) noexcept
    cpdef void advance(self, i64 now) noexcept
    cpdef void settle(self, i64 now) noexcept
    cdef void _begin(self, i64 slot, i64 now) noexcept
    cdef void _arrive(self, i64 slot, i64 now) noexcept
    cdef void _flow(self, i64 slot, i64 now) noexcept
    cdef void _note(self, i64 slot) noexcept
    @cython.locals(wide=i128, whole=i128)
    cdef void _advance_route(self, i64 route, i64 now) noexcept
    cdef void _advance_long(self, i64 route, passed) noexcept
    @cython.locals(wide=i128)
    cdef void _add_part(self, i64 route, i64 remainder, i64 d) noexcept
    @cython.locals(wide=i128, bound=i128)
    cdef bint _is_decided(self, i64 route, i64 more) noexcept
    @cython.locals(wide=i128)
    cdef bint _is_over(self, i64 slot, i64 route) noexcept
    cdef void _predict(self, i64 route, i64 now) noexcept
    cdef i64 _steps_long(self, i64 route, whole, part_1, part_2) noexcept
    @cython.locals(remaining=i128, fine=i128, coarse=i128, steps=i128, bound=i128)
    cdef i64 _steps(self, i64 route, i64 whole, i64 part_1, i64 part_2) noexcept
    cdef void _note_finished(self, i64 route, i64 now) noexcept
    cdef i64 _meld(self, i64 one, i64 other) noexcept
    cdef i64 _without_root(self, i64 root) noexcept
    cdef void _schedule(self, i64 event, i64 time_ns) noexcept
    cdef void _drop(self, i64 event) noexcept
    cdef void _sift(self, i64 event, i64 place) noexcept
