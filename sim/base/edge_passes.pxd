# What Cython compiles `edge_passes.py` with.
ctypedef long long i64

cdef i64 ALL, FIRST, NO_DATA, NOTHING

cpdef void sweep_both_ways(
    const i64[::1] ns, const i64[::1] cost, const i64[::1] latency, const i64[::1] producer,
    const i64[::1] consumer, const i64[::1] early, i64[::1] taken, i64[::1] begin, i64[::1] issued,
    i64[::1] tail,
) noexcept

cpdef void sweep_ends(
    i64[::1] end, const i64[::1] order, const i64[::1] own, const i64[::1] waits, const i64[::1] first_input,
    const i64[::1] producer, const i64[::1] distance, const i64[::1] travel, const i64[::1] first_after,
    const i64[::1] follows, const i64[::1] behind,
) noexcept

cpdef i64 walk(
    i64[::1] done, i64[::1] order, const i64[::1] end, const i64[::1] first_need, const i64[::1] needed,
    const i64[::1] first_make, const i64[::1] made, i64[::1] there, i64[::1] asleep, i64[::1] last,
    i64[::1] behind, i64[::1] awake,
) noexcept

cpdef void fill_lanes(
    i64[::1] start, i64[::1] waits, i64[::1] lane, i64[::1] ready, i64[::1] free, const double[::1] key,
    const i64[::1] ns, const i64[::1] first, const i64[::1] follow, const i64[::1] lag,
) noexcept
