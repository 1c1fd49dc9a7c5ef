# The types of loop.py, with which Cython compiles it.
cimport cython

from sim.kernel.maxmin cimport i64
from sim.kernel.network cimport Net
from sim.kernel.sms cimport Sms
from sim.kernel.stealing cimport Stealing

# Most of what a task costs is fetching it from memory, so that what counts tasks is 32 bits wide.
ctypedef int i32

cdef i64 EVENT, LAUNCH, RESOURCES, COMMUNICATOR, AT_ISSUE, AT_START, NEVER

# What every task comes through is inline: calls between such small steps would cost a tenth of the loop.


@cython.final
cdef class Run:
    cdef public i64 n, ends, n_ops, n_tasks, n_lanes, n_issuers, n_touched, n_devices, n_asked, maker
    cdef public i64 maker_label, n_made, stride, window, most_in_flight, n_events, now, round, n_ended
    cdef public i64 n_done, n_paid, n_placed, n_released, n_rows, n_last, takes, n_noted
    cdef public i64 n_groups, n_unhosted, n_retried
    cdef public bint once, drawn, at_issue, by_group, networked, limited, fifo, lifo, windowed, charged
    cdef public bint holding, counts_cores, cores_freed, something, keeping, keep_first, stealing, hosting
    cdef public bint meeting, mismatched, releasing
    cdef public Net net
    cdef public Sms sms
    cdef public Stealing threads
    cdef public i32[::1] device, lane_of, first_edge, edge, pending, running, follower, stream, issuer, last
    cdef public i32[::1] wait, slots, program, place, rows, noted, line, seat, signature, in_line, members
    cdef public i64[::1] line_first, line_issued, line_done, seat_issued, seat_started, party, party_size
    cdef public i64[::1] party_meetings, party_members, n_there, longest, agreed, retried
    cdef public i64[::1] ns, cost, holds, turn, ready, issue, start, end, gap, latency
    cdef public i64[::1] lane_device, head, tail, busy, free, touched, is_touched, partition, waking
    cdef public i64[::1] group, executed, hop, depth, outstanding, parked, parked_last
    cdef public i64[::1] cores, free_cores, waits, waits_last, issuer_group, issuer_lane, issuer_queue
    cdef public i64[::1] idle, idle_first, n_idle, asked, is_asked, queue_first, queue_head
    cdef public i64[::1] queue_tail, kept, label, pool, program_first, window_end
    cdef public i64[::1] noted_ns, host_group, host, unhosted, unhosted_last
    cdef public i64[::1] in_flight, event_key, event_task, ended, paid, placed, release, released

    @cython.locals(going=bint)
    cpdef bint run(self, i64 rounds) noexcept
    @cython.locals(node=i64, who=i64, task=i64)
    cpdef void open(self) noexcept
    cdef inline i64 node_of(self, i64 task) noexcept
    @cython.locals(task=i64, node=i64, k=i64)
    cdef inline void complete(self) noexcept
    cdef void note(self, i64 task) noexcept
    @cython.locals(device=i64, task=i64)
    cdef void free_lane(self, i64 lane) noexcept
    @cython.locals(base=i64, other=i64, follower=i64, left=i64, lane=i64, hop=i64, k=i64)
    cdef void record_event(self, i64 task, i64 node) noexcept
    @cython.locals(base=i64, moving=bint, other=i64, left=i64, first=i64, last=i64, consumer=i64, k=i64)
    cdef inline void count_down(self, i64 task, i64 node, i64 row) noexcept
    @cython.locals(group=i64, length=i64, place=i64)
    cdef inline void eligible(self, i64 task, i64 node) noexcept
    @cython.locals(group=i64, who=i64)
    cdef void move(self, i64 task, i64 node) noexcept
    cdef void issue_transfer(self, i64 task, i64 node) noexcept
    cdef void carry(self, i64 task) noexcept
    @cython.locals(task=i64, k=i64)
    cdef void note_begun(self) noexcept
    @cython.locals(who=i64, first=i64, mine=i64, queue=i64)
    cdef void keep_or_queue(self, i64 task, i64 node) noexcept
    cdef void done_with(self, i64 task) noexcept
    @cython.locals(task=i64, node=i64, k=i64)
    cdef void pay(self) noexcept
    @cython.locals(group=i64, task=i64, who=i64)
    cdef void give_hosts(self) noexcept
    @cython.locals(who=i64)
    cdef i64 first_idle(self, i64 group) noexcept
    @cython.locals(device=i64, need=i64)
    cdef inline void execute(self, i64 task, i64 node) noexcept
    @cython.locals(task=i64, node=i64, device=i64)
    cdef void give_cores(self) noexcept
    cdef void launch(self, i64 task, i64 node) noexcept
    @cython.locals(device=i64)
    cdef bint find_place(self, i64 task, i64 node) noexcept
    cdef void queue_up(self, i64[::1] first, i64[::1] last, i64 which, i64 task) noexcept
    @cython.locals(lane=i64)
    cdef void put_on_stream(self, i64 task, i64 node) noexcept
    cdef void ask(self) noexcept
    @cython.locals(n=i64, group=i64, who=i64, task=i64, k=i64, left=i64)
    cdef void ask_groups(self) noexcept
    @cython.locals(took=bint, task=i64, who=i64)
    cdef bint ask_everybody(self) noexcept
    @cython.locals(queue=i64, first=i64, task=i64, place=i64)
    cdef inline i64 choose(self, i64 who) noexcept
    @cython.locals(first=i64, length=i64)
    cdef i64 task_at(self, i64 queue, i64 place) noexcept
    @cython.locals(total=i64, head=i64, end=i64, place=i64)
    cdef void slide(self, i64 queue) noexcept
    @cython.locals(node=i64, cost=i64)
    cdef inline void take(self, i64 task, i64 who) noexcept
    cdef void spend(self, i64 task, i64 who, i64 cost) noexcept
    @cython.locals(group=i64)
    cdef inline void free_issuer(self, i64 who) noexcept
    @cython.locals(group=i64)
    cdef inline void occupy(self, i64 who) noexcept
    cdef inline void ask_later(self, i64 group) noexcept
    cdef inline void touch(self, i64 lane) noexcept
    @cython.locals(n=i64, lane=i64, task=i64, at=i64, k=i64, left=i64, meets=bint)
    cdef void start_heads(self) noexcept
    cdef void wake(self, i64 lane, i64 at) noexcept
    @cython.locals(ns=i64)
    cdef inline void begin(self, i64 task, i64 node, i64 at) noexcept
    @cython.locals(line=i64, seat=i64, meeting=i64)
    cdef void enter_line(self, i64 task, i64 node) noexcept
    @cython.locals(line=i64)
    cdef bint is_first(self, i64 task, i64 node) noexcept
    @cython.locals(task=i64, node=i64)
    cdef void leave_line(self, i64 line) noexcept
    @cython.locals(seat=i64, party=i64, meeting=i64, first=i64, key=i64, k=i64)
    cdef void meet(self, i64 task, i64 node, i64 ns) noexcept
    cdef inline void note_start(self, i64 task, i64 at) noexcept
    @cython.locals(ns=i64, at=i64)
    cdef void begin_on_sms(self, i64 task, i64 node, i64 partition) noexcept
    cdef inline bint earlier(self, i64 a, i64 b) noexcept
    @cython.locals(key=i64, task=i64, k=i64)
    cdef inline bint next_round(self) noexcept
    cdef inline void schedule(self, i64 key, i64 task) noexcept
    @cython.locals(first=i64, last=i64, at=i64, kid=i64, before=i64, key=i64)
    cdef inline i64 pop_event(self) noexcept
    @cython.locals(up=i64, above=i64)
    cdef inline void place_event(self, i64 at, i64 key, i64 task) noexcept
    @cython.locals(at=i64, up=i64)
    cdef inline void push_slot(self, i64 first, i64 n, i64 value) noexcept
    @cython.locals(least=i64, value=i64, at=i64, kid=i64)
    cdef inline i64 pop_slot(self, i64 first, i64 n) noexcept
