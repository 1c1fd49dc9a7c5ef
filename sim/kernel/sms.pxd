# What Cython compiles `sms.py` with.
cimport cython

from sim.kernel.maxmin cimport i64

cdef i64 GROUPS, WIDTH

@cython.final
cdef class Sms:
    cdef public i64[::1] loads, waves, n_instants, instant, free_sms, turn_at, turn_sms, after_at, after_sms

    cpdef i64 first_free(self, i64 partition) noexcept
    @cython.locals(loads=i64, waves=i64, last=i64, at=i64)
    cpdef i64 dispatch(self, i64 partition, i64 op, i64 ns, i64 now) noexcept
    @cython.locals(first=i64, sms=i64, rounds=i64, rest=i64, last=i64, end=i64, k=i64)
    cdef i64 dispatch_at_once(self, i64 partition, i64 at, i64 loads, i64 waves, i64 ns) noexcept
    @cython.locals(first=i64, n=i64, left=i64, total=i64, last=i64, at=i64, begin=i64, rounds=i64, n_after=i64, full=i64, rest=i64, end=i64, sms=i64, end_of_full=i64, k=i64)
    cdef i64 dispatch_staggered(self, i64 partition, i64 loads, i64 waves, i64 ns, i64 now) noexcept
    @cython.locals(first=i64, n=i64, near=i64, sms=i64, area=i64, k=i64)
    cdef void keep_few(self, i64 partition, i64 n_after) noexcept

@cython.locals(a=i64, b=i64, at=i64, k=i64)
cdef void sort_pairs(i64[::1] first, i64[::1] second, i64 n) noexcept
