# What Cython compiles `sms.py` with.
cimport cython

from sim.kernel.maxmin cimport i64

cdef i64 GROUPS, WIDTH

@cython.final
cdef class Sms:
    cdef public i64[::1] loads, waves, n_instants, instant, free_sms, turn_at, turn_sms, after_at, after_sms

    cpdef i64 first_free(self, i64 partition) noexcept
    cpdef i64 dispatch(self, i64 partition, i64 op, i64 ns, i64 now) noexcept
    cdef i64 dispatch_at_once(self, i64 partition, i64 start, i64 loads, i64 waves, i64 ns) noexcept
    cdef i64 dispatch_staggered(self, i64 partition, i64 loads, i64 waves, i64 ns, i64 now) noexcept
    cdef void keep_few(self, i64 partition, i64 n_after) noexcept

cdef void sort_pairs(i64[::1] first, i64[::1] second, i64 n) noexcept
