"""Eligible → issued: the policy is told, free issuers are asked, and pay for what they issue."""

from __future__ import annotations

from simpy.events import NORMAL

from sim.engine.starting import Starting
from sim.errors import RunError
from sim.model import WAIT, Issuer, Task
from sim.trace import Wait

__all__ = ["Issuing"]


class Issuing(Starting):
    """Brings tasks from readiness through the policy onto streams and workers."""

    __slots__ = ()

    def _eligible(self, cause: Task | None, tasks: list[Task], issuer: Issuer | None, tell: bool) -> None:
        """Stamp new tasks, tell the policy of them (of none at all only if `tell`), start transfers."""
        is_dirty = self.is_dirty
        moving = False
        now = self.now_ns
        for task in tasks:
            task.ready_ns = now
            group = task.group
            if group < 0:
                moving = True
            elif not is_dirty[group]:
                is_dirty[group] = True
                self.dirty_groups.append(group)
        if not moving:
            if cause is None:
                for task in tasks:
                    self.policy.ready(task)
            elif tasks or tell:
                self.policy_ended(cause, tasks, issuer)
            return
        self._eligible(cause, [task for task in tasks if task.group >= 0], issuer, tell)
        for task in tasks:
            if task.group < 0 and (self.hosts is None or self.hosts.take(task)):
                self._launch(task)

    def _launch(self, transfer: Task) -> None:
        """Issue a transfer, and let it go when its tensor is there."""
        transfer.issue_ns = self.now_ns
        if self.asynchronous:
            self._issued(transfer)
            if not self.readiness.may_start(transfer):
                return
        self._carry(transfer)

    def _launch_waiting(self) -> None:
        """Issue transfers that waited for a host thread, as long as there are free ones."""
        assert self.hosts is not None
        while (transfer := self.hosts.next()) is not None:
            self._launch(transfer)

    def _carry(self, transfer: Task) -> None:
        if transfer.floor_ns > self.now_ns:  # the request for it is still on its way
            self.call_at(transfer.floor_ns, self._carry, transfer)
            return
        if self.memory is not None and self.memory.acquire(transfer) == WAIT:
            self.starved.append(transfer)
            return
        self.transfers.append(transfer)
        if self.network is None or transfer.dead:  # a dead token weighs nothing
            transfer.start_ns = self.now_ns
            self._schedule(transfer, self._on_end, 0)
        else:
            self.network.start(transfer)

    def _ask_groups(self) -> None:
        """Ask the free issuers of every group where something changed, until none takes a task."""
        ask = self.policy.next
        while self.dirty_groups:
            groups, self.dirty_groups = self.dirty_groups, []
            if len(groups) > 1:
                groups.sort()
            for group in groups:
                self.is_dirty[group] = False
                idle = self.idle[group]
                while idle:
                    task = ask(idle[0])
                    if task is None:
                        break
                    self._take(idle[0], task)

    def _ask_all(self) -> None:
        """Ask every free issuer of the machine, until none takes a task."""
        ask = self.policy.next
        took = True
        while took:
            took = False
            for idle in self.idle:
                for issuer in idle[:]:
                    if self.hosts is not None and issuer not in idle:
                        continue  # it copies what was issued a moment ago
                    task = ask(issuer)
                    if task is not None:
                        took = True
                        self._take(issuer, task)

    def _take(self, issuer: Issuer, task: Task) -> None:
        try:
            wrong = task.issuer is not None or task.ready_ns < 0 or task.group != issuer.group
        except AttributeError:
            what = f"{type(self.policy).__name__} gave {issuer.name} {task!r}"
            raise RunError(f"policy {what}, which is no task: next() returns a task or None") from None
        if wrong:
            raise RunError(
                f"policy {type(self.policy).__name__} gave {issuer.name} "
                f"op {self.job.graph.op_names[task.op]!r}, "
                + ("which was taken before" if task.issuer is not None else "which it may not take (now)")
            )
        task.issuer = issuer
        op = task.op
        if self.direct[op] or task.dead:  # a dead task executes nothing: the issuer passes it by
            self.idle[issuer.group].remove(issuer)
            task.stream = issuer.stream
            # As `_start` does, without the call: most tasks of a CPU come this way.
            task.issue_ns = task.start_ns = self.now_ns
            self.tasks.append(task)
            task.callbacks = self._on_end
            self.schedule(task, NORMAL, 0 if task.dead else self.duration_ns[op])  # type: ignore[arg-type]
            return
        cost = self.issue_ns[op] if self.issue_ns is not None else 0
        if self.memory is not None and self.memory.at_issue:
            extra = self.memory.acquire(task)
            if extra == WAIT:
                task.wait = Wait.MEMORY
                self.idle[issuer.group].remove(issuer)
                self.starved.append(task)
                return
            if extra:
                cost += extra
                self.calls[task.id] = extra
        if cost or self.executed[op]:
            self.idle[issuer.group].remove(issuer)
        if cost and not self.executed[op]:  # as `_pay` does, without the call: most launches come this way
            task.callbacks = self._on_paid
            self.schedule(task, NORMAL, cost)  # type: ignore[arg-type]
        else:
            self._pay(task, cost)

    def _pay(self, task: Task, cost_ns: int) -> None:
        """Spend the issuer's time on `task`, then let it execute or be put on its stream."""
        executed = self.executed[task.op]
        if executed:
            task.issue_ns = self.now_ns
        if cost_ns:
            task.callbacks = self._on_paid
            self.schedule(task, NORMAL, cost_ns)  # type: ignore[arg-type]
        elif executed:
            self._begin(task)
        elif not self.limited or self._finds_place(task):
            self._push(task)
        else:
            self.idle[task.group].remove(task.issuer)  # type: ignore[arg-type]

    def _issue_paid(self) -> None:
        """Go on with tasks that are taken: their issue cost is paid, or what they waited for is free."""
        paid = self.paid[:]
        self.paid.clear()
        executed, limited = self.executed, self.limited
        for task in paid:
            if executed[task.op]:
                self._begin(task)
            elif not limited or self._finds_place(task):
                self._free(task.issuer)
                self._push(task)

    def _feed(self) -> None:
        """Memory was freed: let those who wait for it try again, first come first served."""
        starved, self.starved = self.starved, []
        assert self.memory is not None
        for k, task in enumerate(starved):
            if task.group < 0:
                self._carry(task)
                continue
            if not self.memory.at_issue:
                if self.executed[task.op]:
                    self._begin(task)
                else:
                    self._touch(self.streams[task.stream])
                continue
            extra = self.memory.acquire(task)
            if extra == WAIT:
                self.starved.extend(starved[k:])
                return
            if extra:
                self.calls[task.id] = extra
            cost = extra + (self.issue_ns[task.op] if self.issue_ns is not None else 0)
            if not cost and not self.executed[task.op]:
                self._free(task.issuer)
            self._pay(task, cost)

    def _finds_place(self, task: Task) -> bool:
        """Take a place in the device's launch queue, or, when it is full, park `task` and its issuer."""
        device = self.device_of[task.op]
        if self.outstanding[device] >= self.depth[device]:
            self.parked[device].append(task)
            return False
        self.outstanding[device] += 1
        return True

    def _push(self, task: Task) -> None:
        """Put a task on its stream."""
        op = task.op
        task.issue_ns = self.now_ns
        stream = self.streams[self.stream_of[op]]
        task.stream = stream.index
        stream.queue.append(task)
        if stream.running is None and not stream.dirty and len(stream.queue) == 1:
            stream.dirty = True
            self.dirty_streams.append(stream)
        if op in self.holding:
            self.idle[task.group].remove(task.issuer)  # type: ignore[arg-type]
        if self.asynchronous:
            self._issued(task)

    def _issued(self, task: Task) -> None:
        self._eligible(task, self.now_ready_at_issue(task), task.issuer, task.group >= 0)
