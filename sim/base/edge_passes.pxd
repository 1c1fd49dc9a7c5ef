# What Cython compiles `edge_passes.py` with.
cimport cython

ctypedef long long i64

@cython.locals(
    edges=i64, i=i64, back=i64, p=i64, c=i64, paid=i64, end=i64, executed=i64, whole=i64,
)
cpdef void sweep_both_ways(
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

cdef i64 ALL, FIRST, NO_DATA, NOTHING

@cython.locals(n=i64, base=i64, i=i64, j=i64, op=i64, at=i64, first=i64, wait=i64, there=i64, from_end=i64)
cpdef void sweep_ends(
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

@cython.locals(ranks=i64, n_awake=i64, at_front=i64, n=i64, rank=i64, at=i64, lacks=i64, j=i64, key=i64, sleeper=i64)
cpdef i64 walk(
    i64[::1] done,
    i64[::1] order,
    const i64[::1] end,
    const i64[::1] first_need,
    const i64[::1] needed,
    const i64[::1] first_make,
    const i64[::1] made,
    i64[::1] there,
    i64[::1] asleep,
    i64[::1] last,
    i64[::1] behind,
    i64[::1] awake,
) noexcept

@cython.locals(n_ready=i64, k=i64, where=i64, i=i64, place=i64, when=i64, at=i64, other=i64)
cpdef void fill_lanes(
    i64[::1] start,
    i64[::1] waits,
    i64[::1] lane,
    i64[::1] ready,
    i64[::1] free,
    const double[::1] key,
    const i64[::1] ns,
    const i64[::1] first,
    const i64[::1] follow,
    const i64[::1] lag,
) noexcept
