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
    # Sizes and switches. `once`: there is one iteration, so that a task's number is its node's. `drawn`:
    # durations are those of tasks, not of nodes. `at_issue`: a launched op makes others eligible when it is
    # issued. `by_group`: only groups in which something changed are asked. `networked`: there are transfers.
    # `limited`: some launch queue has a bound. `windowed`: the least place in the window goes first; else,
    # but for `fifo` and `lifo`, each queue follows its program strictly.
    cdef public i64 n, n_ops, n_tasks, n_lanes, n_issuers, n_devices, n_groups
    cdef public bint once, drawn, at_issue, by_group, networked, limited, fifo, lifo, windowed

    # One entry per node, or per task if noise is drawn.
    cdef public i64[::1] ns

    # One entry per node. `device`: for transfers, one after all others. `lane_of`: the stream on which it is
    # launched. `charged`: some ops have a `cost` for their issuer. `holding`: some ops keep their host thread
    # until they end. `ends`: the first row of `edge` that counts when a node ends; earlier ones count when it
    # is issued. `first_edge`: rows of `edge`, whose entries are distance * n + consumer. `release`: the
    # earliest time at which an op is eligible. `gap`: what each op leaves behind it on its stream.
    cdef public i32[::1] device, lane_of, first_edge, edge
    cdef public bint charged, holding, releasing
    cdef public i64 ends
    cdef public i64[::1] cost, holds, release, gap

    # One entry per task. `pending`: edges that have not counted. `last`: a stack of tasks whose last edge has
    # counted. `running`: events that have not arrived. `follower`: the next task in the same queue; it links
    # all queues, as a task is in one at a time. `turn`: place among the starts of one time, by round, then
    # lane; for a task being paid, its issuer. `end`: before the end, when the last of its events arrives on
    # its stream.
    cdef public i32[::1] pending, last, running, follower, stream, issuer, wait
    cdef public i64[::1] turn, ready, issue, start, end
    cdef public i64 n_last

    # One entry per lane. `head`, `tail`: first and last task in the queue. `free`: when it is free, including
    # the gap. `touched`: lanes to look at.
    cdef public i64[::1] latency, lane_device, head, tail, busy, free, touched, is_touched
    cdef public i64 n_touched

    # SMs that kernels share. `partition`: for each lane; -1: its kernels share nothing. `waking`: when the
    # head of each lane will be looked at.
    cdef public Sms sms
    cdef public i64[::1] partition, waking

    # One entry per device. `group`: -1 for transfers. `executed`: by a worker; else launched on a stream.
    # `hop`: time that an event of another stream takes to arrive. `parked`, `parked_last`: first and last
    # launch that found no place. `cores`: for each node, cores that it needs; 0 if they are not counted.
    # `waits`, `waits_last`: first and last task that waits for cores.
    cdef public i64[::1] group, executed, hop, depth, outstanding, parked, parked_last
    cdef public i64[::1] cores, free_cores, waits, waits_last
    cdef public bint counts_cores, cores_freed

    # Issuers and their groups. The idle ones of a group are a heap in `slots`, least index first; after them
    # there is room for another heap, in which groups or lanes are sorted. `issuer_queue`: index of its queue
    # or program. `asked`: groups to ask; empty unless asking is by group. `something`: whether anything
    # changed for an issuer.
    cdef public i64[::1] issuer_group, issuer_lane, issuer_queue, idle, idle_first, n_idle, asked, is_asked
    cdef public i64 n_asked
    cdef public bint something

    # Queues of eligible tasks, one per group or program: a heap of places, a stack or a queue in `slots`.
    cdef public i32[::1] slots
    cdef public i64[::1] queue_first, queue_head, queue_tail

    # Executors in which an issuer keeps some of the tasks that it made eligible, last in, first out.
    # `keep_first`: only the first; else those with the label of the task that it ended. `kept`: for each
    # issuer, the last one kept. `pool`: for each op, the queue that it goes to, which decides who may take
    # it. In others, `threads` steal.
    cdef public bint keeping, keep_first, stealing
    cdef public i64[::1] kept, label, pool
    cdef public i64 maker, maker_label, n_made
    cdef public Stealing threads

    # Programs, repeated each iteration. `stride`: distance from a task of one repetition to the same one of
    # the next.
    cdef public i32[::1] program, place
    cdef public i64[::1] program_first, window_end, in_flight
    cdef public i64 stride, window, most_in_flight

    # Future events. `event_key`: twice the time, plus one for a task of no time: it ends in a round of its
    # own. `placed`: launches that were parked and have a place now.
    cdef public i64[::1] event_key, event_task, ended, paid, placed
    cdef public i64 n_events, now, round, n_ended, n_done, n_paid, n_placed

    # Transfers. `released`: those whose event has arrived.
    cdef public Net net
    cdef public i64[::1] released
    cdef public i64 n_released

    # Takes of memory and ends of tasks, in order (`sim.kernel.columns`). `takes`: when memory is taken; 0
    # never, 1 at issue, 2 at the start.
    cdef public i64 takes, n_noted
    cdef public i32[::1] noted
    cdef public i64[::1] noted_ns

    # Copies that a host thread makes (`sim.job.transfers`). `host_group`: for each transfer's node, the group
    # that may make it; -1: none has to. `host`: for each task, the issuer that makes it. `unhosted`,
    # `unhosted_last`: for each group, first and last transfer that waits for a thread.
    cdef public bint hosting
    cdef public i64[::1] host_group, host, unhosted, unhosted_last
    cdef public i64 n_unhosted

    # Communicators (`sim.job.collectives`): for each op its line and its seat, -1: none; and a number for
    # everything that has to be the same for all that meet. `in_line`: the tasks of each line, in the order of
    # issue, from `line_first` on. `party`: for each seat. `party_meetings`: the number of its first meeting.
    # `party_members`: where the members of its first meeting begin in `members`, the tasks that have come to
    # each meeting. For each meeting: `n_there` tasks, the `longest` duration, and the signature `agreed` on
    # (-1: none yet). `retried`: workers' tasks that are now first in their line.
    cdef public bint meeting, mismatched
    cdef public i32[::1] line, seat, signature, in_line, members
    cdef public i64[::1] line_first, line_issued, line_done, seat_issued, seat_started, party, party_size
    cdef public i64[::1] party_meetings, party_members, n_there, longest, agreed, retried
    cdef public i64 n_retried

    # Ops in the order in which their starts became known.
    cdef public i32[::1] rows
    cdef public i64 n_rows

    cpdef bint run(self, i64 rounds) noexcept
    cpdef void open(self) noexcept
    cdef inline i64 node_of(self, i64 task) noexcept
    cdef inline void complete(self) noexcept
    cdef void note(self, i64 task) noexcept
    cdef void free_lane(self, i64 node, i64 lane) noexcept
    @cython.locals(hop=i64)
    cdef void record_event(self, i64 task, i64 node) noexcept
    @cython.locals(last=i64)
    cdef inline void count_down(self, i64 task, i64 node, i64 row, i64 issuer) noexcept
    cdef inline void eligible(self, i64 task, i64 node) noexcept
    cdef void move(self, i64 task, i64 node) noexcept
    cdef void issue_transfer(self, i64 task, i64 node) noexcept
    cdef void carry(self, i64 task) noexcept
    cdef void note_begun(self) noexcept
    @cython.locals(first=bint, keeps=bint)
    cdef void keep_or_queue(self, i64 task, i64 node) noexcept
    cdef void done_with(self, i64 task) noexcept
    cdef void pay(self) noexcept
    cdef void give_hosts(self) noexcept
    cdef i64 first_idle(self, i64 group) noexcept
    cdef inline void execute(self, i64 task, i64 node) noexcept
    cdef void give_cores(self) noexcept
    cdef void launch(self, i64 task, i64 node) noexcept
    cdef bint find_place(self, i64 task, i64 node) noexcept
    cdef void queue_up(self, i64[::1] first, i64[::1] last, i64 queue, i64 task) noexcept
    cdef void put_on_stream(self, i64 task, i64 node) noexcept
    cdef void ask(self) noexcept
    cdef void ask_groups(self) noexcept
    cdef bint ask_everybody(self) noexcept
    cdef inline i64 choose(self, i64 issuer) noexcept
    cdef i64 task_at(self, i64 queue, i64 place) noexcept
    cdef void slide(self, i64 queue) noexcept
    cdef inline void take(self, i64 task, i64 issuer) noexcept
    cdef inline void free_issuer(self, i64 issuer) noexcept
    cdef inline void occupy(self, i64 issuer) noexcept
    cdef inline void ask_later(self, i64 group) noexcept
    cdef inline void touch(self, i64 lane) noexcept
    @cython.locals(meets=bint)
    cdef void start_heads(self) noexcept
    cdef inline void begin(self, i64 task, i64 node, i64 start) noexcept
    cdef void enter_line(self, i64 task, i64 node) noexcept
    cdef bint is_first(self, i64 task, i64 node) noexcept
    cdef void leave_line(self, i64 line) noexcept
    cdef void meet(self, i64 task, i64 node, i64 ns) noexcept
    cdef inline void note_start(self, i64 task, i64 start) noexcept
    cdef void begin_on_sms(self, i64 task, i64 node, i64 partition) noexcept
    cdef inline bint earlier(self, i64 a, i64 b) noexcept
    cdef inline bint next_round(self) noexcept
    cdef inline void schedule(self, i64 key, i64 task) noexcept
    @cython.locals(kid=i64)
    cdef inline i64 pop_event(self) noexcept
    cdef inline void place_event(self, i64 gap, i64 key, i64 task) noexcept
    cdef inline void push_slot(self, i64 first, i64 n, i64 value) noexcept
    cdef inline i64 pop_slot(self, i64 first, i64 n) noexcept
