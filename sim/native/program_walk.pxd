# What Cython compiles `programs.py` with.
cimport cython

ctypedef long long i64

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
