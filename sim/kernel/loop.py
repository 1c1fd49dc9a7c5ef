# cython: language_level=3, annotation_typing=False, infer_types=True, boundscheck=False
# cython: wraparound=False, initializedcheck=False, cdivision=True
"""The fast path: the events of each instant, as plain Python over columns of whole numbers.

::

    next round ──► complete ──► pay ──► ask ──► heads ──► settle ──► next round
                   what ended   issue   free     of       rates
                   and what it  costs   issuers  streams  of links
                   makes ready

The source runs unchanged, over lists; with the types in ``loop.pxd`` Cython compiles it, over arrays. It
follows the same definition as the engine on SimPy (`sim.engine`), and tests check that their traces are equal
in every column. `sim.kernel.columns` makes the columns of a job.

A task's number is ``iteration * n + node``, as in a trace; ops are the nodes below `n_ops`, transfers the
others.
Every list inside is a column with a counter beside it, because C has nothing else.
"""

from __future__ import annotations

from sim.kernel.maxmin import Column

EVENT = 4
LAUNCH = 5
RESOURCES = 6
COMMUNICATOR = 8
AT_ISSUE = 1  # as in `sim.kernel.columns`
AT_START = 2
NEVER = (1 << 63) - 2


class Run:
    """One run: the columns of a job, the state of its queues, and the results of every task.

    `sim.kernel.columns` sets the columns, and ``loop.pxd`` describes them. Call `open` first, then `run`
    until nothing can happen any more.
    """

    def run(self, rounds: int) -> bool:
        """Run at most `rounds` rounds; return whether any event lies ahead."""
        going = True
        while going and rounds:
            rounds -= 1
            if self.n_ended:
                self.complete()
            if self.n_paid or self.n_placed or self.cores_freed or self.n_unhosted or self.n_retried:
                self.pay()
            if self.something:
                self.ask()
            if self.n_touched:
                self.start_heads()
            if self.networked:
                self.net.settle(self.now)
            going = self.next_round()
        return going

    def open(self) -> None:
        """Begin at time 0: every issuer is idle, and tasks that wait for nothing are eligible."""
        self.maker = -1
        for issuer in range(self.n_issuers):
            self.free_issuer(issuer)
        for task in range(self.n_tasks):
            if self.pending[task] == 0:
                node = self.node_of(task)
                if node < self.n_ops:
                    self.eligible(task, node)
        for task in range(self.n_tasks if self.networked else 0):
            if self.pending[task] == 0 and self.node_of(task) >= self.n_ops:
                self.move(task, self.node_of(task))

    def node_of(self, task: int) -> int:
        """Return the node that `task` executes."""
        return task if self.once else task % self.n

    # 1. Completions.

    def complete(self) -> None:
        """End the tasks that ended, all of them before any consequences."""
        for k in range(self.n_ended):
            task = self.ended[k]
            node = self.node_of(task)
            self.end[task] = self.now
            if self.takes:
                self.note(-1 - task)
            if node >= self.n_ops:
                if self.hosting and self.host_group[node - self.n_ops] >= 0:
                    self.free_issuer(self.host[task])
                continue
            if self.meeting and self.line[node] >= 0:
                self.leave_line(self.line[node])
            if self.executed[self.device[node]]:
                self.free_issuer(self.issuer[task])
                if self.counts_cores and self.cores[node]:
                    self.free_cores[self.device[node]] += self.cores[node]
                    self.cores_freed = True
            else:
                self.free_lane(node, self.stream[task])
                if self.holding and self.holds[node]:
                    self.free_issuer(self.issuer[task])
        for k in range(self.n_ended):
            task = self.ended[k]
            node = self.node_of(task)
            if self.at_issue:
                self.record_event(task, node)
            issuer = self.issuer[task]
            if node < self.n_ops and (self.executed[self.device[node]] or not self.at_issue):
                self.done_with(task)
            elif not (self.holding and node < self.n_ops and self.holds[node]):
                issuer = -1  # the issuer of a launched task has gone on
            self.count_down(task, node, self.ends + node, issuer)
        self.n_done += self.n_ended
        self.n_ended = 0
        for k in range(self.n_released):
            self.carry(self.released[k])
        self.n_released = 0

    def note(self, task: int) -> None:
        """Record that a task takes its memory, or that it has ended (-1 - task)."""
        self.noted[self.n_noted] = task
        self.noted_ns[self.n_noted] = self.now
        self.n_noted += 1

    def free_lane(self, node: int, lane: int) -> None:
        """Free the stream of an ended task, and its place in the launch queue."""
        self.busy[lane] = 0
        self.free[lane] = self.now + self.gap[node]
        if self.head[lane] >= 0:
            self.touch(lane)
        if self.limited:
            device = self.lane_device[lane]
            task = self.parked[device]
            if task < 0:
                self.outstanding[device] -= 1
            else:
                self.parked[device] = self.follower[task]
                self.placed[self.n_placed] = task
                self.n_placed += 1

    def record_event(self, task: int, node: int) -> None:
        """Notify the tasks issued behind `task` that it is over, on other streams a hop later."""
        base = task - node
        for k in range(self.first_edge[node], self.first_edge[node + 1]):
            other = base + self.edge[k]
            if other < self.n_tasks:
                follower = self.node_of(other)
                remaining = self.running[other] - 1
                self.running[other] = remaining
                lane = self.lane_of[follower]
                hop = self.hop[self.device[follower]] * (lane != self.stream[task])
                self.end[other] = max(self.end[other], self.now + hop)
                if follower < self.n_ops:
                    if (remaining == 0) & (self.head[lane] == other):  # one branch, for better prediction
                        self.touch(lane)
                elif remaining == 0 and self.issue[other] >= 0:
                    self.released[self.n_released] = other
                    self.n_released += 1

    def count_down(self, task: int, node: int, row: int, issuer: int) -> None:
        """Count an edge for each consumer; one with none left is eligible, and `issuer` made it so."""
        base = task - node
        if self.keeping:
            self.maker = issuer
            if self.maker >= 0 and not self.keep_first:
                self.maker_label = self.label[node]
            self.n_made = 0
        elif self.stealing:
            self.threads.begin(issuer)
        first = self.n_last
        last = first
        for k in range(self.first_edge[row], self.first_edge[row + 1]):
            other = base + self.edge[k]
            if other < self.n_tasks:
                remaining = self.pending[other] - 1
                self.pending[other] = remaining
                self.last[last] = other
                last += remaining == 0  # a sum, since a branch would be mispredicted half of the time
        moving = False
        for k in range(first, last):
            consumer = self.node_of(self.last[k])
            if consumer < self.n_ops:
                self.eligible(self.last[k], consumer)
            else:
                moving = True
        if self.stealing:
            self.threads.finish()
        if moving:  # transfers begin after all others are announced
            self.n_last = last
            for k in range(first, last):
                consumer = self.node_of(self.last[k])
                if consumer >= self.n_ops:
                    self.move(self.last[k], consumer)
            self.n_last = first

    def eligible(self, task: int, node: int) -> None:
        """Stamp a task whose inputs are there, and queue it, now or when it is released."""
        if self.releasing and self.release[node] > self.now:
            self.schedule(2 * self.release[node], task)
            return
        self.ready[task] = self.now
        group = self.group[self.device[node]]
        self.ask_later(group)
        if self.keeping:
            self.keep_or_queue(task, node)
        elif self.stealing:
            self.threads.add(task, node)
        elif self.fifo or self.lifo:
            self.slots[self.queue_first[group] + self.queue_tail[group]] = task
            self.queue_tail[group] += 1
        elif self.windowed:
            length = self.program_first[group + 1] - self.program_first[group]
            place = self.place[node] if self.once else self.place[node] + task // self.n * length
            if place < self.window_end[group]:
                self.push_slot(self.queue_first[group], self.queue_tail[group], place)
                self.queue_tail[group] += 1

    def move(self, task: int, node: int) -> None:
        """Issue a transfer, without asking the policy, unless it has to wait for a host thread."""
        self.ready[task] = self.now
        if self.hosting and self.host_group[node - self.n_ops] >= 0:
            group = self.host_group[node - self.n_ops]
            issuer = self.first_idle(group)
            if issuer < 0 or self.unhosted[group] >= 0:
                self.queue_up(self.unhosted, self.unhosted_last, group, task)
                self.n_unhosted += 1
                return
            self.occupy(issuer)
            self.host[task] = issuer
        self.issue_transfer(task, node)

    def issue_transfer(self, task: int, node: int) -> None:
        """Issue a transfer, and start it once its tensor is there."""
        self.issue[task] = self.now
        if self.at_issue:
            self.count_down(task, node, node, self.issuer[task])
            if self.running[task]:
                return
        self.carry(task)

    def carry(self, task: int) -> None:
        """Give a transfer to the network."""
        if self.takes:
            self.note(task)
        self.net.start(task, self.node_of(task) - self.n_ops, self.now)
        self.note_begun()

    def note_begun(self) -> None:
        """Stamp the transfers that the network began."""
        for k in range(self.net.n_begun):
            task = self.net.begun[k]
            self.start[task] = self.now
            self.turn[task] = self.round * (self.n_lanes + 1)
        self.net.n_begun = 0

    def keep_or_queue(self, task: int, node: int) -> None:
        """Let the issuer that made a task eligible keep it if it may take it, else queue it."""
        issuer = self.maker
        first = self.n_made == 0
        self.n_made += 1
        queue = self.pool[node]
        if issuer >= 0 and self.issuer_queue[issuer] == queue:
            keeps = first if self.keep_first else self.label[node] == self.maker_label
            if keeps:
                self.follower[task] = self.kept[issuer]
                self.kept[issuer] = task
                return
        self.slots[self.queue_first[queue] + self.queue_tail[queue]] = task
        self.queue_tail[queue] += 1

    def done_with(self, task: int) -> None:
        """Decrement the tasks in flight: one was computed, or issued if that is enough."""
        if self.most_in_flight:
            self.in_flight[self.issuer_queue[self.issuer[task]]] -= 1
            self.something = True

    # 2. Issue costs that are paid, and places in launch queues that came free.

    def pay(self) -> None:
        """Continue tasks that waited for cores, parked launches, and paid tasks, the last by issuer."""
        for k in range(self.n_retried):
            task = self.retried[k]
            self.execute(task, self.node_of(task))
        self.n_retried = 0
        if self.cores_freed:
            self.give_cores()
        for k in range(self.n_placed):
            task = self.placed[k]
            self.launch(task, self.node_of(task))
        self.n_placed = 0
        for k in range(self.n_paid):
            task = self.paid[k]
            node = self.node_of(task)
            if self.executed[self.device[node]]:
                self.execute(task, node)
            elif self.find_place(task, node):
                self.launch(task, node)
        self.n_paid = 0
        if self.n_unhosted:
            self.give_hosts()

    def give_hosts(self) -> None:
        """Issue the transfers that waited for a host thread, starting with the first group that has one."""
        group = 0
        while group < self.n_groups:
            task = self.unhosted[group]
            issuer = self.first_idle(group) if task >= 0 else -1
            if issuer < 0:
                group += 1
                continue
            self.unhosted[group] = self.follower[task]
            self.n_unhosted -= 1
            self.occupy(issuer)
            self.host[task] = issuer
            self.issue_transfer(task, self.node_of(task))
            group = 0

    def first_idle(self, group: int) -> int:
        """Return the least index of a free issuer of a group; -1: none is free."""
        issuer = self.idle_first[group]
        if self.by_group:
            return self.slots[issuer] if self.n_idle[group] else -1
        while issuer < self.n_issuers and self.issuer_group[issuer] == group:
            if self.idle[issuer]:
                return issuer
            issuer += 1
        return -1

    def execute(self, task: int, node: int) -> None:
        """Let a worker execute its task; if cores are counted, in turn when they are free."""
        if self.meeting and self.line[node] >= 0 and not self.is_first(task, node):
            return
        if self.takes == AT_START:
            self.note(task)
        if self.counts_cores:
            device = self.device[node]
            need = self.cores[node]
            if need and (self.waits[device] >= 0 or need > self.free_cores[device]):
                self.wait[task] = RESOURCES
                self.queue_up(self.waits, self.waits_last, device, task)
                return
            self.free_cores[device] -= need
        self.begin(task, node, self.now)

    def give_cores(self) -> None:
        """Start tasks that waited for the cores that came free, first come, first served."""
        self.cores_freed = False
        for device in range(self.n_devices):
            task = self.waits[device]
            while task >= 0:
                node = self.node_of(task)
                if self.cores[node] > self.free_cores[device]:
                    break
                self.free_cores[device] -= self.cores[node]
                self.waits[device] = self.follower[task]
                self.begin(task, node, self.now)
                task = self.waits[device]

    def launch(self, task: int, node: int) -> None:
        """Put a launch on its stream; free its issuer unless the task holds it until it ends."""
        if not (self.holding and self.holds[node]):
            self.free_issuer(self.issuer[task])
        self.put_on_stream(task, node)

    def find_place(self, task: int, node: int) -> bool:
        """Take a place in the device's launch queue, or park `task`."""
        if not self.limited:
            return True
        device = self.device[node]
        if self.outstanding[device] < self.depth[device]:
            self.outstanding[device] += 1
            return True
        self.queue_up(self.parked, self.parked_last, device, task)
        return False

    def queue_up(self, first: Column, last: Column, queue: int, task: int) -> None:
        """Append a task to one of the queues that are linked from follower to follower."""
        self.follower[task] = -1
        if first[queue] < 0:
            first[queue] = task
        else:
            self.follower[last[queue]] = task
        last[queue] = task

    def put_on_stream(self, task: int, node: int) -> None:
        """Queue a launch; if issuing is enough, count it as an input of its consumers."""
        lane = self.lane_of[node]
        self.issue[task] = self.now
        self.stream[task] = lane
        if self.meeting and self.line[node] >= 0:
            self.enter_line(task, node)
        if self.head[lane] < 0 and not self.busy[lane]:
            self.touch(lane)
        self.queue_up(self.head, self.tail, lane, task)
        if self.at_issue:
            self.done_with(task)
            self.count_down(task, node, node, self.issuer[task])

    # 3. Free issuers.

    def ask(self) -> None:
        """Ask free issuers until none takes a task."""
        self.something = False
        if self.by_group:
            while self.n_asked:
                self.ask_groups()
        else:
            while self.ask_everybody():
                pass

    def ask_groups(self) -> None:
        """Ask the groups where something changed, in machine order; later changes come after them."""
        n = self.n_asked
        self.n_asked = 0
        for k in range(n):
            self.push_slot(self.n_issuers, k, self.asked[k])
        for size in range(n, 0, -1):
            group = self.pop_slot(self.n_issuers, size)
            self.is_asked[group] = 0
            while self.n_idle[group]:
                issuer = self.slots[self.idle_first[group]]
                task = self.choose(issuer)
                if task < 0:
                    break
                self.take(task, issuer)

    def ask_everybody(self) -> bool:
        """Ask every free issuer of the machine once; return whether one took a task."""
        took = False
        for issuer in range(self.n_issuers):
            if self.idle[issuer]:
                task = self.choose(issuer)
                if task >= 0:
                    took = True
                    self.take(task, issuer)
        return took

    def choose(self, issuer: int) -> int:
        """Return the task that the free issuer `issuer` takes now; -1: none."""
        queue = self.issuer_queue[issuer]
        first = self.queue_first[queue]
        if self.keeping and self.kept[issuer] >= 0:
            task = self.kept[issuer]
            self.kept[issuer] = self.follower[task]
        elif self.stealing:
            task = self.threads.take(issuer)
            if task < 0:
                return -1
        elif self.fifo:
            if self.queue_head[queue] == self.queue_tail[queue]:
                return -1
            task = self.slots[first + self.queue_head[queue]]
            self.queue_head[queue] += 1
        elif self.lifo:
            if self.queue_tail[queue] == 0:
                return -1
            self.queue_tail[queue] -= 1
            task = self.slots[first + self.queue_tail[queue]]
        elif self.windowed:
            if self.queue_tail[queue] == 0:
                return -1
            place = self.pop_slot(first, self.queue_tail[queue])
            self.queue_tail[queue] -= 1
            task = self.task_at(queue, place)
            self.issuer[task] = issuer  # so that the window slides over it
            if place == self.queue_head[queue]:
                self.slide(queue)
        else:
            if self.queue_head[queue] == self.queue_tail[queue]:
                return -1
            task = self.task_at(queue, self.queue_head[queue])
            device = self.device[self.node_of(task)]
            if self.ready[task] < 0 or self.group[device] != self.issuer_group[issuer]:
                return -1
            if self.most_in_flight:
                if self.in_flight[queue] == self.most_in_flight:
                    return -1
                self.in_flight[queue] += 1
            self.queue_head[queue] += 1
        self.issuer[task] = issuer
        return task

    def task_at(self, queue: int, place: int) -> int:
        """Return the task at a place of a program, which is repeated each iteration."""
        first = self.program_first[queue]
        if self.once:
            return self.program[first + place]
        length = self.program_first[queue + 1] - first
        return place // length * self.stride + self.program[first + place % length]

    def slide(self, queue: int) -> None:
        """Move the window to the oldest place not yet taken; queue the eligible tasks at its end."""
        total = self.queue_first[queue + 1] - self.queue_first[queue]
        head = self.queue_head[queue]
        while head < total and self.issuer[self.task_at(queue, head)] >= 0:
            head += 1
        self.queue_head[queue] = head
        end = min(head + self.window, total)
        for place in range(self.window_end[queue], end):
            if self.ready[self.task_at(queue, place)] >= 0:
                self.push_slot(self.queue_first[queue], self.queue_tail[queue], place)
                self.queue_tail[queue] += 1
        self.window_end[queue] = end

    def take(self, task: int, issuer: int) -> None:
        """Let the issuer pay for the task it took, and go on at once if that costs nothing."""
        node = self.node_of(task)
        cost = self.cost[node] if self.charged else 0
        if self.takes == AT_ISSUE:
            self.note(task)
        executed = self.executed[self.device[node]]
        if not executed and not cost and self.find_place(task, node):
            if self.holding and self.holds[node]:
                self.occupy(issuer)
            self.put_on_stream(task, node)
            return
        self.occupy(issuer)
        if executed:
            self.stream[task] = self.issuer_lane[issuer]
            self.issue[task] = self.now
            if self.meeting and self.line[node] >= 0:
                self.enter_line(task, node)
        if cost:
            self.turn[task] = issuer
            self.schedule(2 * (self.now + cost), task)
        elif executed:
            self.execute(task, node)

    def free_issuer(self, issuer: int) -> None:
        """Make an issuer idle, so that it is asked again."""
        group = self.issuer_group[issuer]
        self.idle[issuer] = 1
        if self.by_group:
            self.push_slot(self.idle_first[group], self.n_idle[group], issuer)
            self.n_idle[group] += 1
        self.ask_later(group)

    def occupy(self, issuer: int) -> None:
        """Stop asking an issuer. With asking by group, it is always the first of its group."""
        self.idle[issuer] = 0
        if self.by_group:
            group = self.issuer_group[issuer]
            self.pop_slot(self.idle_first[group], self.n_idle[group])
            self.n_idle[group] -= 1

    def ask_later(self, group: int) -> None:
        """Note that something changed in a group of issuers."""
        self.something = True
        if self.n_idle[group] and not self.is_asked[group]:
            self.is_asked[group] = 1
            self.asked[self.n_asked] = group
            self.n_asked += 1

    # 4. Heads of streams.

    def touch(self, lane: int) -> None:
        """Mark a stream, so that its head is looked at in this round."""
        if not self.is_touched[lane]:
            self.is_touched[lane] = 1
            self.touched[self.n_touched] = lane
            self.n_touched += 1

    def start_heads(self) -> None:
        """Start the heads whose stream is free and whose events are there.

        If a head may start later, nothing can change that, so its start is recorded at once.
        """
        n = self.n_touched
        self.n_touched = 0
        for k in range(n):
            self.push_slot(self.n_issuers, k, self.touched[k])
        for size in range(n, 0, -1):
            lane = self.pop_slot(self.n_issuers, size)
            self.is_touched[lane] = 0
            task = self.head[lane]
            if task < 0 or self.busy[lane]:
                continue
            if self.at_issue and self.running[task]:
                self.wait[task] = EVENT
                continue
            start = max(self.issue[task] + self.latency[lane], self.free[lane])
            if self.at_issue:
                start = max(start, self.end[task])
            meets = self.meeting and self.line[self.node_of(task)] >= 0
            if start > self.now:
                if not self.wait[task]:
                    self.wait[task] = LAUNCH
                # In these cases others may still come before it, so the stream is looked at again.
                if self.partition[lane] >= 0 or self.takes == AT_START or meets:
                    if self.waking[lane] != start:  # its event is numbered after those of the tasks
                        self.waking[lane] = start
                        self.schedule(2 * start, self.n_tasks + lane)
                    continue
            else:
                start = self.now
            if meets and not self.is_first(task, self.node_of(task)):
                continue
            self.head[lane] = self.follower[task]
            self.busy[lane] = 1
            if self.takes == AT_START:
                self.note(task)
            if self.partition[lane] >= 0 and not meets:
                self.begin_on_sms(task, self.node_of(task), self.partition[lane])
            else:
                self.begin(task, self.node_of(task), start)

    def begin(self, task: int, node: int, start: int) -> None:
        """Start a task, now or later, that nothing can hold up any more."""
        ns = self.ns[task] if self.drawn else self.ns[node]
        self.note_start(task, start)
        if self.meeting and node < self.n_ops and self.line[node] >= 0:
            self.meet(task, node, ns)
        elif ns:
            self.schedule(2 * (start + ns), task)
        else:
            self.schedule(2 * start + 1, task)

    # Communicators.

    def enter_line(self, task: int, node: int) -> None:
        """Put an issued collective in its line, and check that it matches the ones it meets."""
        line = self.line[node]
        seat = self.seat[node]
        self.in_line[self.line_first[line] + self.line_issued[line]] = task
        self.line_issued[line] += 1
        meeting = self.party_meetings[self.party[seat]] + self.seat_issued[seat]
        self.seat_issued[seat] += 1
        if self.agreed[meeting] < 0:
            self.agreed[meeting] = self.signature[node]
        elif self.agreed[meeting] != self.signature[node]:
            self.mismatched = True

    def is_first(self, task: int, node: int) -> bool:
        """Whether a collective is first in its line; if not, it waits until it is."""
        line = self.line[node]
        if self.in_line[self.line_first[line] + self.line_done[line]] == task:
            return True
        self.wait[task] = COMMUNICATOR
        return False

    def leave_line(self, line: int) -> None:
        """Remove the first task of a line; let the next one start, if it was refused."""
        self.line_done[line] += 1
        if self.line_done[line] == self.line_issued[line]:
            return
        task = self.in_line[self.line_first[line] + self.line_done[line]]
        if self.wait[task] != COMMUNICATOR:
            return
        node = self.node_of(task)
        if self.executed[self.device[node]]:
            self.retried[self.n_retried] = task
            self.n_retried += 1
        else:
            self.touch(self.stream[task])

    def meet(self, task: int, node: int, ns: int) -> None:
        """Let a started collective wait for the others; the last one determines the end of all."""
        seat = self.seat[node]
        party = self.party[seat]
        meeting = self.party_meetings[party] + self.seat_started[seat]
        first = self.party_members[party] + self.seat_started[seat] * self.party_size[party]
        self.seat_started[seat] += 1
        self.members[first + self.n_there[meeting]] = task
        self.n_there[meeting] += 1
        self.longest[meeting] = max(self.longest[meeting], ns)
        if self.n_there[meeting] == self.party_size[party]:
            ns = self.longest[meeting]
            key = 2 * (self.now + ns) if ns else 2 * self.now + 1
            for k in range(first, first + self.party_size[party]):
                self.schedule(key, self.members[k])

    def note_start(self, task: int, start: int) -> None:
        """Record when a task starts, now or later."""
        self.start[task] = start
        self.turn[task] = 1 + self.stream[task]
        if start == self.now:
            self.turn[task] += self.round * (self.n_lanes + 1)
        self.rows[self.n_rows] = task
        self.n_rows += 1

    def begin_on_sms(self, task: int, node: int, partition: int) -> None:
        """Start a kernel whose loads get the SMs of a partition as they come free."""
        ns = self.ns[task] if self.drawn else self.ns[node]
        if ns == 0:
            self.begin(task, node, self.now)
            return
        start = max(self.sms.first_free(partition), self.now)
        if start > self.now:
            self.wait[task] = RESOURCES
        self.note_start(task, start)
        self.schedule(2 * self.sms.dispatch(partition, node, ns, self.now), task)

    def earlier(self, a: int, b: int) -> bool:
        """Whether task `a` comes before `b`: by start, round in which it started, lane, number."""
        if self.start[a] != self.start[b]:
            return self.start[a] < self.start[b]
        if self.turn[a] != self.turn[b]:
            return self.turn[a] < self.turn[b]
        return a < b

    # Heaps.

    def next_round(self) -> bool:
        """Go to the next event, in a further round of this instant or at a later one."""
        key = self.event_key[0] if self.n_events else NEVER
        if self.networked:
            if self.net.status:
                return False
            key = min(key, max(2 * self.net.next_ns, 2 * self.now + 1))
        if key >= NEVER:
            return False
        if key == 2 * self.now + 1:
            self.round += 1
        else:
            self.now = key >> 1
            self.round = key & 1
        if self.networked and self.net.next_ns <= self.now:
            self.net.advance(self.now)
            self.note_begun()
            for k in range(self.net.n_ended):
                self.schedule(key, self.net.ended[k])
            self.net.n_ended = 0
        while self.n_events and self.event_key[0] == key:
            task = self.pop_event()
            if task >= self.n_tasks:
                self.touch(task - self.n_tasks)
            elif self.ready[task] < 0:
                self.maker = -1
                self.eligible(task, self.node_of(task))
            elif self.start[task] < 0:
                self.paid[self.n_paid] = task
                self.n_paid += 1
            else:
                self.ended[self.n_ended] = task
                self.n_ended += 1
        return True

    def schedule(self, key: int, task: int) -> None:
        """Put an event of a task into the heap of events."""
        self.n_events += 1
        self.place_event(self.n_events - 1, key, task)

    def pop_event(self) -> int:
        """Take the first event off the heap; ties break by the order of starts."""
        first = self.event_task[0]
        self.n_events -= 1
        last = self.n_events
        gap = 0
        kid = 2
        while kid <= last:  # the gap sinks to the bottom, where the last event usually belongs
            before = self.event_key[kid - 1]
            key = self.event_key[kid]
            if before == key:
                kid -= self.earlier(self.event_task[kid - 1], self.event_task[kid])
            else:
                kid -= before < key  # a sum, since a branch would be mispredicted half of the time
            self.event_key[gap] = self.event_key[kid]
            self.event_task[gap] = self.event_task[kid]
            gap = kid
            kid = 2 * gap + 2
        self.place_event(gap, self.event_key[last], self.event_task[last])
        return first

    def place_event(self, gap: int, key: int, task: int) -> None:
        """Let an event rise from a gap of the heap to its place."""
        while gap > 0:
            up = (gap - 1) >> 1
            above = self.event_key[up]
            if above < key or (above == key and self.earlier(self.event_task[up], task)):
                break
            self.event_key[gap] = above
            self.event_task[gap] = self.event_task[up]
            gap = up
        self.event_key[gap] = key
        self.event_task[gap] = task

    def push_slot(self, first: int, n: int, value: int) -> None:
        """Push a number onto the heap of `n` numbers that begins at a slot."""
        gap = n
        while gap > 0:
            up = (gap - 1) >> 1
            if self.slots[first + up] < value:
                break
            self.slots[first + gap] = self.slots[first + up]
            gap = up
        self.slots[first + gap] = value

    def pop_slot(self, first: int, n: int) -> int:
        """Take the least number off the heap of `n` numbers that begins at a slot."""
        smallest = self.slots[first]
        n -= 1
        value = self.slots[first + n]
        gap = 0
        while True:
            kid = 2 * gap + 1
            if kid >= n:
                break
            if kid + 1 < n and self.slots[first + kid + 1] < self.slots[first + kid]:
                kid += 1
            if value < self.slots[first + kid]:
                break
            self.slots[first + gap] = self.slots[first + kid]
            gap = kid
        self.slots[first + gap] = value
        return smallest
