# What Cython compiles `longest.py` with.
cimport cython

ctypedef long long i64

cdef i64 ALL, FIRST, NO_DATA, NOTHING

@cython.locals(n=i64, base=i64, i=i64, j=i64, op=i64, at=i64, first=i64, wait=i64, there=i64, from_end=i64)
cpdef void sweep(
    i64[::1] end,
    const i64[::1] order,
    const i64[::1] own,
    const i64[::1] waits,
    const i64[::1] first_input,
    const i64[::1] producer,
    const i64[::1] distance,
    const i64[::1] travel,
    const i64[::1] first_after,
    const i64[::1] follows,
    const i64[::1] behind,
) noexcept
