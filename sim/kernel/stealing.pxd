# What Cython compiles `stealing.py` with.
cimport cython

from sim.kernel.maxmin cimport i64

cdef i64 NOBODY, FROM_THE_START

@cython.final
cdef class Stealing:
    cdef public i64 n_nodes, maker, held
    cdef public i64[::1] cheap, pool, pool_of, first, size, before, behind
    cdef public i64[::1] queue, queue_last, deque, deque_last, root, root_last, n_queued

    cpdef void begin(self, i64 maker) noexcept
    cpdef void add(self, i64 task, i64 op) noexcept
    cpdef void finish(self) noexcept
    cpdef i64 take(self, i64 issuer) noexcept
    cdef void append(self, i64[::1] head, i64[::1] last, i64 index, i64 task) noexcept
    cdef void push(self, i64 issuer, i64 task) noexcept
