# What Cython compiles `network.py` with.
cimport cython

from sim.kernel.maxmin cimport MaxMin, gcd, i64, i128

cdef i64 NEVER, TOO_LARGE, TIE, LIMIT, LARGEST, MASK, BITS
cdef i128 WIDE

@cython.final
cdef class Net:
    cdef public i64 status, next_ns, n_slots, n_free, n_ended, n_begun, n_due, places, n_timers, n_ends
    cdef public MaxMin rates
    cdef public i64[::1] way, work, alone_ns, latency_ns, route, held_first, held
    cdef public i64[::1] task, move, free, ended, begun, due, before, behind, front, back
    cdef public i64[::1] timer_ns, timer
    cdef public i64[::1] virtual, virtual_1, virtual_2, speed_n, speed_d, since_ns, rounded, common_1, common_2
    cdef public list speed_long
    cdef public i64[::1] root, tag, tag_1, tag_2, child, sibling, flowing
    cdef public i64[::1] end_ns, end, end_place

    @cython.locals(slot=i64, way=i64, before=i64, place=i64, k=i64, key=i64)
    cpdef void start(self, i64 task, i64 move, i64 now) noexcept
    @cython.locals(over=i64, i=i64, slot=i64)
    cpdef void advance(self, i64 now) noexcept
    @cython.locals(rates=MaxMin, i=i64, route=i64, n=i64, d=i64)
    cpdef void settle(self, i64 now) noexcept
    @cython.locals(at=i64)
    cdef void _look_ahead(self) noexcept
    @cython.locals(move=i64, latency=i64)
    cdef void _begin(self, i64 slot, i64 now) noexcept
    @cython.locals(way=i64, place=i64, k=i64, key=i64, following=i64, other=i64)
    cdef void _arrive(self, i64 slot, i64 now) noexcept
    @cython.locals(route=i64)
    cdef void _flow(self, i64 slot, i64 now) noexcept
    cdef void _note(self, i64 slot) noexcept
    @cython.locals(passed=i64, n=i64, d=i64, wide=i128, whole=i128, rest=i64)
    cdef void _advance_route(self, i64 route, i64 now) noexcept
    cdef void _advance_long(self, i64 route, passed) noexcept
    @cython.locals(wide=i128, part_1=i64, part_2=i64, left=i64)
    cdef void _add_part(self, i64 route, i64 rest, i64 d) noexcept
    @cython.locals(past=i64, slot=i64)
    cdef void _rebase(self, i64 route) noexcept
    @cython.locals(wide=i128, bound=i128)
    cdef bint _is_decided(self, i64 route, i64 more) noexcept
    @cython.locals(wide=i128)
    cdef bint _is_over(self, i64 slot, i64 route) noexcept
    @cython.locals(slot=i64, d=i64, whole=i64, part_1=i64, part_2=i64, steps=i64, place=i64)
    cdef void _foresee(self, i64 route, i64 now) noexcept
    cdef i64 _steps_long(self, i64 route, whole, part_1, part_2) noexcept
    @cython.locals(n=i64, d=i64, left=i128, fine=i128, coarse=i128, steps=i128, bound=i128)
    cdef i64 _steps(self, i64 route, i64 whole, i64 part_1, i64 part_2) noexcept
    @cython.locals(over=i64, slot=i64)
    cdef void _take_out(self, i64 route, i64 now) noexcept
    cdef i64 _meld(self, i64 one, i64 other) noexcept
    @cython.locals(pairs=i64, one=i64, other=i64, following=i64)
    cdef i64 _without_root(self, i64 root) noexcept
    @cython.locals(place=i64, up=i64)
    cdef void _foresee_slot(self, i64 slot, i64 at) noexcept
    @cython.locals(size=i64, at=i64, slot=i64, place=i64, kid=i64)
    cdef void _drop_timer(self) noexcept
    @cython.locals(place=i64, last=i64)
    cdef void _drop_end(self, i64 route) noexcept
    @cython.locals(at=i64, up=i64, other=i64, kid=i64)
    cdef void _sift_end(self, i64 route, i64 place) noexcept
