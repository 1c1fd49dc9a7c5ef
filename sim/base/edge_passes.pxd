# What Cython compiles `edge_passes.py` with.
cimport cython

ctypedef long long i64

cdef i64 ALL, FIRST, NO_DATA, NOTHING

@cython.locals(
    ns=i64[::1], cost=i64[::1], latency=i64[::1], producer=i64[::1], consumer=i64[::1], early=i64[::1],
    taken=i64[::1], begin=i64[::1], issued=i64[::1], tail=i64[::1],
)
cpdef list heads_and_tails(list columns)

@cython.locals(
    order=i64[::1], duration=i64[::1], waits=i64[::1], first_input=i64[::1], producer=i64[::1], distance=i64[::1],
    travel=i64[::1], first_after=i64[::1], follows=i64[::1], behind=i64[::1], end=i64[::1],
)
cpdef object longest_ns(i64 iterations, list columns)

@cython.locals(
    first_need=i64[::1], needed=i64[::1], first_make=i64[::1], produced=i64[::1], order=i64[::1], done=i64[::1],
    end=i64[::1], is_made=i64[::1], asleep=i64[::1], last=i64[::1], behind=i64[::1], awake=i64[::1],
)
cpdef tuple steps_in_order(object first, i64 n_keys, list columns)

@cython.locals(
    release=i64[::1], follows=i64[::1], ns=i64[::1], first=i64[::1], follow=i64[::1], lag=i64[::1],
    one=i64[::1], other=i64[::1], worse=i64[::1], keys=cython.double[::1], start=i64[::1], waits=i64[::1],
    lane=i64[::1], ready=i64[::1], best=i64[::1], best_lane=i64[::1], free=i64[::1], cost=i64, excess=i64,
)
cpdef tuple list_schedule(object key, i64 lanes, list columns, i64 bound, object changes)
