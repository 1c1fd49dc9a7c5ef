# What Cython compiles `maxmin.py` with: 64 bits, and 128 for products.
cimport cython

cdef extern from *:
    """
    typedef __int128 sim_i128;
    """
    ctypedef long long i128 "sim_i128"
ctypedef long long i64

cdef i64 LIMIT, SHORT
cdef i64 IDLE, PRESUMED, OPEN

cpdef i64 gcd(i64 a, i64 b) noexcept

@cython.locals(left=i128, right=i128)
cdef bint not_above(i64 n, i64 d, i64 other_n, i64 other_d) noexcept

@cython.final
cdef class MaxMin:
    cdef public i64 n_changed, n_marked, n_touched, size
    cdef public i64[::1] slack_n, slack_d, open_flows, held, head, level_n, level_d
    cdef public i64[::1] first, links, route_of, after, before
    cdef public i64[::1] flows, counted, state, rate_n, rate_d, bottleneck, is_marked, marked, changed
    cdef public list slack_long, level_long, key_long, rate_long
    cdef public i64[::1] heap, place, key_n, key_d, fills, touched, is_touched

    cpdef void count(self, i64 route, i64 more) noexcept

    cpdef void solve(self) noexcept

    cdef void _open(self, i64 route) noexcept

    cdef i64 _update_heap(self) noexcept

    cdef void _touch(self, i64 link) noexcept

    cdef void _note(self, i64 route) noexcept

    @cython.locals(top=i128, more=i128, bottom=i128)
    cdef void _add_slack(self, i64 link, i64 flows, i64 route) noexcept

    cdef void _add_slack_long(self, i64 link, flows, i64 route) noexcept

    @cython.locals(asks=bint, fills=bint, wide=i128)
    cdef void _ask(self, i64 link) noexcept

    cdef void _key_long(self, i64 link, flows) noexcept

    cdef bint _is_above_level(self, i64 link) noexcept

    cdef bint _has_more(self, i64 route, i64 link) noexcept

    cdef bint _asks_above(self, i64 link, i64 other) noexcept

    cdef i64 _open_higher(self, i64 link) noexcept

    cdef void _open_held(self, i64 link) noexcept

    cdef void _fill(self, i64 link) noexcept

    cdef void _sift(self, i64 link, i64 place) noexcept
