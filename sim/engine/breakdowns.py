"""Failures of parts of the machine during a run, and their detection.

::

    gpu1 fails      tasks running there never end, nothing starts there, and its links carry nothing any more
      ├─ send-recv      a Recv from gpu1 fails at once; if its link is down or its sender lost power, after
      │                 `connection_timeout`; likewise a Send to gpu1
      ├─ health-check   the first check at or after the failure is missed, and known to be after its timeout
      └─ timeout        a collective has lasted longer than `collective_timeout` since its launch on a rank
    the first detection aborts the step on all workers at once, and cuts off the running tasks

A Recv waits from the beginning of its step: in TensorFlow Recvs have no inputs and so are among the first
nodes of their device. A task that ends at the very instant of a failure, or of its detection, has ended.

Sources: health checks by the master and failed Sends and Recvs, *TensorFlow: large-scale machine learning on
heterogeneous distributed systems* (arXiv:1603.04467), section 3.3; the collective's timeout,
`sim.faults.NCCL_TIMEOUT_NS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from fractions import Fraction
from itertools import islice, takewhile
from typing import Any, Final

import numpy as np

from sim.base.units import format_duration
from sim.faults import Conditions, Detection, Failed, SpeedProfile
from sim.graph.failures import ABORTED, FAILED
from sim.job.context import Context
from sim.job.job import Job
from sim.job.transfers import Flow, node_name
from sim.machine.device import MANAGED, WAIT, Device, Processor
from sim.machine.task import Task

_NEVER: Final = 1 << 62


class Breakdowns:
    """The failures of one attempt, and whether they have been detected.

    Parameters
    ----------
    context : Context
        The run.
    conditions : Conditions
    unfinished : mapping of int to Task
        Id → task that is eligible and has not ended.
    stop : callable
        ``stop(groups)``: these groups of issuers take nothing more.
    cut : callable or None
        ``cut(links)``: these links carry nothing any more.

    Attributes
    ----------
    detection : Detection or None
        The first detection that the step cannot go on.
    """

    def __init__(
        self,
        context: Context,
        conditions: Conditions,
        unfinished: Mapping[int, Task],
        stop: Callable[[Set[int]], None],
        cut: Callable[[Set[int]], None] | None,
    ) -> None:
        self._context, self._job, self._flow = context, context.job, context.flow
        self._unfinished, self._stop, self._cut = unfinished, stop, cut
        self._conditions, self._faults = conditions, conditions.faults
        machine = self._job.machine
        self._workers = [tuple(map(machine.device_index, host.serves)) for host in machine.hosts_in_order]
        self._failed_ns = [_NEVER] * len(machine.devices)
        self._silent = [False] * len(machine.devices)
        self._routes: dict[int, tuple[int, ...]] = {}
        self._arrived: set[int] = set()  # ids of transfers
        self.detection: Detection | None = None
        self._upcoming = conditions.failures_of_devices()
        self._await_next()

    # -- what the engine asks ------------------------------------------------------------------

    def is_down(self, device: int) -> bool:
        """Whether a device has failed."""
        return self._failed_ns[device] <= self._context.now_ns

    def ends(self, task: Task) -> bool:
        """Whether a task or transfer due to end now does end: it does unless its device failed earlier."""
        if self.is_any_lost(self._devices(task)):
            return False
        if task.group < 0:
            self._arrived.add(task.id)
        return True

    def is_any_lost(self, devices: Iterable[int]) -> bool:
        """Whether any of these devices failed before now."""
        now_ns = self._context.now_ns
        return any(self._failed_ns[device] < now_ns for device in devices)

    def status(self, task: Task) -> tuple[int, int]:
        """Return the status and end time of a task that was running when the step was aborted."""
        failed_ns = self._failed_ns[self._job.device_of[task.op]]
        return (FAILED, failed_ns) if failed_ns < _NEVER else (ABORTED, self._context.now_ns)

    def carries(self, transfer: Task) -> bool:
        """Whether a transfer can go; if either end has failed, it cannot, and the failure is noticed."""
        ends = self._endpoints(transfer)
        gone = [device for device in ends if self.is_down(device)]
        if gone and len(gone) < len(ends):
            self._report_error(transfer, any(self._silent[device] for device in gone))
        return not gone

    # -- what the engine tells -----------------------------------------------------------------

    def watch_transfer(self, transfer: Task) -> None:
        """Let a transfer under way fail if it stands still for the timeout because a link is down."""
        if self._faults.connection_timeout_ns is None:
            return
        channels = self._job.machine.channels
        for link in sorted({channels[k] for k in self._route(transfer)}):
            self._await_standstill((transfer, link, self._context.now_ns))

    def watch_collective(self, collective: Task) -> None:
        """Start a rank's timeout for a collective."""
        timeout_ns = self._faults.collective_timeout_ns
        if timeout_ns is not None:
            self._context.call_at(self._context.now_ns + timeout_ns, self._on_timeout, collective)

    # -- failures ------------------------------------------------------------------------------

    def failures_by(self, by_ns: int) -> list[Failed]:
        """Return the parts that had failed before a time."""
        return list(takewhile(lambda failed: failed.time_ns < by_ns, self._conditions.failures()))

    def _await_next(self) -> None:
        failed = next(self._upcoming, None)
        if failed is not None and failed.time_ns:
            self._context.call_at(failed.time_ns, self._fail, failed)
        elif failed is not None:  # before anything starts
            self._fail(failed)

    def _fail(self, failed: Failed) -> None:
        self._await_next()
        lost = set(self._workers[failed.part] if failed.kind == "worker" else (failed.part,))
        lost = {device for device in lost if self._failed_ns[device] == _NEVER}
        for device in lost:
            self._failed_ns[device], self._silent[device] = failed.time_ns, failed.silent
        self._stop({g for g, devices in enumerate(self._workers) if self._stops_group(failed, g, devices)})
        if self._cut is not None:
            names = {self._name(device) for device in lost}
            links = enumerate(self._job.machine.links)
            self._cut({k for k, link in links if link.source in names or link.destination in names})
        for transfer in self._pending(lost)[:1]:
            self._report_error(transfer, failed.silent)
        self._check_health(failed)

    def _stops_group(self, failed: Failed, group: int, devices: tuple[int, ...]) -> bool:
        """Whether the threads of a host are gone: the host has failed, or the CPU that they run on."""
        if failed.kind == "worker":
            return group == failed.part
        return failed.part in devices and self._job.machine.devices[failed.part].workers > 0

    def _transfers(self) -> list[Task]:
        return [task for task in self._unfinished.values() if task.group < 0 and task.start_ns >= 0]

    def _pending(self, lost: Set[int]) -> list[Task]:
        """Return the transfers of steps begun that devices were to send or were receiving."""
        transfers = [task for task in self._transfers() if sum(d in lost for d in self._endpoints(task)) == 1]
        flow, alive = self._flow, np.array(self._failed_ns) == _NEVER
        sends = np.isin(flow.source, list(lost)) & alive[flow.destination]
        nodes = (flow.n_ops + np.flatnonzero(sends)).tolist()
        for iteration in sorted({0, *(task.iteration for task in self._unfinished.values())}):
            base = iteration * flow.n_nodes
            missing = (node for node in nodes if base + node not in self._arrived)
            transfers += [Task(base + node, node, iteration, -1) for node in missing]
        return sorted(transfers, key=lambda task: task.id)

    # -- detection -----------------------------------------------------------------------------

    def _check_health(self, failed: Failed) -> None:
        check = self._faults.health_check
        if check is not None:
            began_ns, now_ns = self._conditions.from_ns, self._context.now_ns
            next_ns = -(-(began_ns + now_ns) // check.interval_ns) * check.interval_ns - began_ns
            at_ns = next_ns + check.timeout_ns
            self._context.call_at(at_ns, self._detect, ("health-check", "master", failed.name))

    def _report_error(self, transfer: Task, silent: bool) -> None:
        """Report an error at the surviving end of a transfer: at once, or after the timeout."""
        source, destination = self._endpoints(transfer)
        reporter = source if self.is_down(destination) else destination
        report = ("send-recv", self._name(reporter), self._node_name(transfer))
        timeout_ns = self._faults.connection_timeout_ns if silent else 0
        if timeout_ns is not None:
            self._context.call_at(self._context.now_ns + timeout_ns, self._detect, report)

    def _await_standstill(self, watched: tuple[Task, int, int]) -> None:
        transfer, link, from_ns = watched
        down_ns = self._conditions.next_standstill_ns(link, from_ns)
        if down_ns is not None and transfer.id not in self._arrived:
            self._context.call_at(down_ns, self._on_standstill, (transfer, link))

    def _on_standstill(self, watched: tuple[Task, int]) -> None:
        transfer, link = watched
        now_ns, timeout_ns = self._context.now_ns, self._faults.connection_timeout_ns
        assert timeout_ns is not None
        if transfer.id in self._arrived:
            return
        up_ns = self._conditions.link_paces[link].rate(now_ns)[1]
        if now_ns + timeout_ns < up_ns:
            self._context.call_at(now_ns + timeout_ns, self._give_up, transfer)
        else:
            self._await_standstill((transfer, link, up_ns))

    def _give_up(self, transfer: Task) -> None:
        if transfer.id not in self._arrived:
            self._detect(("send-recv", self._name(self._endpoints(transfer)[1]), self._node_name(transfer)))

    def _on_timeout(self, collective: Task) -> None:
        device = int(self._job.device_of[collective.op])
        if collective.end_ns < 0 and not self.is_down(device):
            self._detect(("timeout", self._name(device), self._node_name(collective)))

    def _detect(self, report: tuple[str, str, str]) -> None:
        if self.detection is None:
            method, reporter, subject = report
            self.detection = Detection(method, reporter, self._context.now_ns, subject)

    # -- words ---------------------------------------------------------------------------------

    def describe_unnoticed(self) -> str:
        """Say which failures nothing noticed; empty if there are none."""
        failed = self.failures_by(self._context.now_ns + 1)
        if not failed and self._transfers():  # what would end after a link fails is not awaited
            failed = list(islice(self._conditions.failures(), 1))
        if not failed:
            return ""
        first = failed[0]
        return (
            f"{first.kind} {first.name} has failed at {format_duration(first.time_ns)} ({first.cause}), and "
            "nothing detects it: no Send or Recv fails, no collective times out and no health_check comes"
        )

    def _node_name(self, task: Task) -> str:
        return node_name(self._job, self._flow, task.op)

    def _name(self, device: int) -> str:
        return self._job.machine.devices[device].name

    # -- where a task is -----------------------------------------------------------------------

    def _endpoints(self, transfer: Task) -> tuple[int, int]:
        k = transfer.op - self._flow.n_ops
        return int(self._flow.source[k]), int(self._flow.destination[k])

    def _route(self, transfer: Task) -> tuple[int, ...]:
        k = transfer.op - self._flow.n_ops
        return self._job.machine.route(*self._endpoints(transfer), int(self._flow.tensor[k]))

    def _devices(self, task: Task) -> tuple[int, ...]:
        """Return where a task runs, or the devices on the way of a transfer."""
        if task.group >= 0:
            return (int(self._job.device_of[task.op]),)
        if task.op not in self._routes:
            machine = self._job.machine
            links = [machine.links[k] for k in self._route(task)]
            ends = (end for link in links for end in (link.source, link.destination))
            through = map(machine.device_index, ends)
            self._routes[task.op] = tuple(dict.fromkeys((*self._endpoints(task), *through)))
        return self._routes[task.op]


# ----------------------------------------------------------------------------------------------------------
# A device that is slow at times: the work that it divides among its tasks runs on a clock of its own.
#
#     time of the run       0    10   20   30   40   50         factor 2 from 10 to 30
#     time of the device    0    10   15   20   30   40
#
# A processor that predicts when its tasks end is asked, and answers, in the device's time. So it need not
# know about slow-downs, and whatever it divides slows down at once. Its time is whole ns, rounded down. A
# device without a processor has exact times.


class Paced:
    """The processor of a device whose pace may change.

    Parameters
    ----------
    device : Device
    context : Context
        The run.
    pace : SpeedProfile
    """

    def __init__(self, device: Device, context: Context, pace: SpeedProfile) -> None:
        self._context, self._pace = context, pace
        self._clock = _DeviceTime(context, pace)
        self._inner: Processor | None = None
        if device.processor is not None:
            self._inner = device.processor(device, self._clock)

    def start(self, task: Task) -> int:
        """Begin a task; see `sim.machine.device.Processor.start`."""
        now_ns = self._context.now_ns
        if self._inner is None:
            end_ns = self._pace.end_ns(now_ns, self._context.duration_of(task))
            return MANAGED if end_ns is None else end_ns - now_ns
        task.start_ns = own_ns = self._clock.now_ns
        ns = self._inner.start(task)
        if task.start_ns == own_ns:
            task.start_ns = now_ns
        elif task.start_ns >= 0:
            task.start_ns = self._clock.run_ns(task.start_ns) or -1
        if ns in (WAIT, MANAGED):
            return ns
        end_ns = self._clock.run_ns(own_ns + ns)
        return MANAGED if end_ns is None else end_ns - now_ns

    @property
    def end(self) -> Callable[[Task], None] | None:
        """See `sim.machine.device.Processor.end`."""
        return None if self._inner is None else self._inner.end


class _DeviceTime:
    """The run as seen from a device that is slow at times; a `sim.job.context.Context`."""

    def __init__(self, context: Context, pace: SpeedProfile) -> None:
        self._context, self._pace = context, pace
        self.job: Job = context.job
        self.flow: Flow = context.flow
        self.conditions = context.conditions
        self.when_settled, self.started = context.when_settled, context.started
        self.duration_of, self.carried, self.finish = context.duration_of, context.carried, context.finish

    @property
    def now_ns(self) -> int:
        return int(self._pace.work_done(self._context.now_ns))

    @now_ns.setter
    def now_ns(self, time_ns: int) -> None:
        raise AttributeError("time passes by itself")

    def run_ns(self, own_ns: int) -> int | None:
        """Return the time of the run at `own_ns` of the device, now at the earliest; None: never."""
        if own_ns <= self.now_ns:
            return self._context.now_ns
        return self._pace.completion_ns(Fraction(own_ns))

    def call_at(self, time_ns: int, callback: Callable[[Any], None], value: Any = None) -> None:
        at_ns = self.run_ns(time_ns)
        if at_ns is not None:
            self._context.call_at(at_ns, callback, value)
