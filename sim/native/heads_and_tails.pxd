# What Cython compiles `ways.py` with.
cimport cython

ctypedef long long i64

@cython.locals(
    edges=i64, i=i64, back=i64, p=i64, c=i64, paid=i64, end=i64, executed=i64, whole=i64,
)
cpdef void sweep(
    const i64[::1] ns,
    const i64[::1] cost,
    const i64[::1] latency,
    const i64[::1] producer,
    const i64[::1] consumer,
    const i64[::1] early,
    i64[::1] taken,
    i64[::1] begin,
    i64[::1] issued,
    i64[::1] tail,
) noexcept
