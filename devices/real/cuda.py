"""The cuda backend: torch streams and events; torch is imported here, when the backend is made.

::

    gate stream   [ spin ]─start───────────────────────────────────────────wait all─end
    stream 0              └wait start─ a ──record──────── c ──wait b──...──record──┘
    stream 1              └wait start───────── b ─record─────────...───────record──┘

The host fills the queues while the gate spins, so that what is measured is what the device does; a case
that is about the host (`gated` false) has no spin. The makespan between the two events is the truth. Events
around each op come in a second run, which is believed only when it took as long as the first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from devices.real.clock import now_ns, quiet_interpreter
from devices.real.driver import Driver
from devices.real.follow import Follower
from devices.real.partitions import partition_streams
from devices.real.torch_models import ModelWork
from devices.real.torch_work import TorchWork
from devices.real.work import Observation
from sim.errors import InfeasibleError, InputError, MissingExtraError, RunError, StuckError
from sim.job import Job
from sim.model import Issuer, Policy, Task
from sim.plan import Plan
from sim.trace import Trace
from sim.transfers import make_flow

__all__ = ["Cuda"]

_Work = TorchWork | ModelWork

_GATE_CYCLES: Final = 80_000
"""What the gate spins for each launch: some 40 us at 2 GHz, more than a launch from Python takes."""


class Cuda:
    """Executes on the streams of one GPU.

    Parameters
    ----------
    torch : module, optional
        By default torch itself.
    driver : module, optional
        ``cuda.bindings.driver``, for partitions of SMs.

    Raises
    ------
    MissingExtraError
        There is no torch.
    InfeasibleError
        Torch finds no CUDA device.
    """

    name = "cuda"

    def __init__(self, torch: Any = None, driver: Any = None) -> None:
        if torch is None:
            try:
                import torch  # type: ignore[no-redef]
            except ImportError as error:
                raise MissingExtraError("executing on a GPU", "torch") from error
        if not torch.cuda.is_available():
            raise InfeasibleError("torch finds no CUDA device here")
        self.torch, self.driver = torch, driver
        self._streams: dict[tuple[int, int], list[Any]] = {}
        self._works: dict[int, tuple[Any, _Work]] = {}
        self._sentinel: tuple[Any, ...] | None = None

    # -- what a session asks of a backend ----------------------------------------------------

    def provenance(self) -> dict[str, Any]:
        """Return what the numbers depend on."""
        torch = self.torch
        properties = torch.cuda.get_device_properties(0)
        return {
            "gpu": torch.cuda.get_device_name(0),
            "sms": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "dtype": "bfloat16",
        }

    def sentinel_ns(self) -> int:
        """Return how long a fixed product and a fixed copy take now: the median of five."""
        torch = self.torch
        if self._sentinel is None:
            matrices = [torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
            self._sentinel = tuple(matrices)
        a, b, out = self._sentinel
        taken = []
        for _ in range(6):
            start, end = self._event(), self._event()
            torch.cuda._sleep(_GATE_CYCLES)
            start.record()
            torch.mm(a, b, out=out)
            out.copy_(a, non_blocking=True)
            end.record()
            torch.cuda.synchronize()
            taken.append(start.elapsed_time(end))
        return _ns(sorted(taken[1:])[2])

    def launch_latency_ns(self) -> list[int]:
        """Return samples of the time from a launch to the start of the kernel, on an idle device.

        The host's clock around (launch of a spin, wait for it) less what the spin itself takes.
        """
        torch = self.torch
        samples = []
        for k in range(25):
            start, end = self._event(), self._event()
            torch.cuda.synchronize()
            begin = now_ns()
            start.record()
            torch.cuda._sleep(20_000)
            end.record()
            end.synchronize()
            total = now_ns() - begin
            if k >= 5:  # the first ones load modules
                samples.append(max(0, total - _ns(start.elapsed_time(end))))
        return samples

    def forget(self) -> None:
        """Let go of the matrices of the latest graph."""
        self._works = {}

    # -- running ------------------------------------------------------------------------------

    def execute(self, job: Job, plan: Plan, *, gated: bool = True) -> Observation:
        """Execute `plan`: once for the makespan, and once with events around every op.

        Raises
        ------
        InputError, UnknownNameError
            See `devices.real.follow.Follower`; or the job has CPU workers.
        InfeasibleError
            The machine's devices stand for partitions of SMs, and there are none here.
        """
        work, streams = self._work(job), self._streams_of(job)
        with _told():
            self._capture(job, work, streams, plan)
            truth_ns, plain = self._execute(job, plan, work, streams, gated, timed=False)
            wrong = work.wrong()
            timed_ns, tasks = self._execute(job, plan, work, streams, gated, timed=True)
            wrong = wrong or work.wrong()
        issued = {task.id: task.issue_ns for task in plain}
        for task in tasks:
            task.issue_ns = issued[task.id]  # of the run without events, which cost the host time
        trace = Trace.from_tasks(job, make_flow(job), Policy(), tasks)
        return Observation(
            dataclasses.replace(trace, policy="plan"),
            wrong,
            truth_ns=truth_ns,
            probe_error=abs(timed_ns - truth_ns) / max(1, truth_ns),
        )

    def _execute(
        self,
        job: Job,
        plan: Plan,
        work: _Work,
        streams: list[Any],
        gated: bool,
        *,
        timed: bool,
    ) -> tuple[int, list[Task]]:
        """Execute once; a gate that opened before the queues were full is made longer, twice at most."""
        for factor in (1, 4, 16):
            spin = factor * _GATE_CYCLES * (work.launches + 4 * len(plan)) if gated else 0
            done = self._execute_once(job, plan, work, streams, spin, timed=timed)
            if done is not None:
                return done
        raise InfeasibleError("the gate opened before the queues were full: the host was held up")

    def _execute_once(
        self, job: Job, plan: Plan, work: _Work, streams: list[Any], spin: int, *, timed: bool
    ) -> tuple[int, list[Task]] | None:
        torch = self.torch
        follower = Follower(job, plan, lambda: 0)
        number = {task.id: k for k, task in enumerate(follower.tasks)}
        records = [self._event(timing=False) if needed else None for needed in plan.records.tolist()]
        around = [(self._event(), self._event()) for _ in follower.tasks] if timed else []
        work.reset()
        torch.cuda.synchronize()
        with quiet_interpreter():
            start, end, gate = self._begin(streams, spin)
            zero = now_ns()
            for k, task in enumerate(follower.tasks):
                stream = streams[task.stream]
                with torch.cuda.stream(stream):
                    for id in follower.waits(task):
                        stream.wait_event(records[number[id]])
                    if timed:
                        around[k][0].record(stream)
                    work.launch(task.op)
                    if timed:
                        around[k][1].record(stream)
                    if (event := records[k]) is not None:
                        event.record(stream)
                task.issue_ns = now_ns() - zero
            too_early = bool(spin) and start.query()
            self._finish(streams, gate, end)
        if too_early:
            return None
        for k, task in enumerate(follower.tasks):
            if spin:
                task.issue_ns = 0
            if timed:
                task.start_ns = _ns(start.elapsed_time(around[k][0]))
                task.end_ns = _ns(start.elapsed_time(around[k][1]))
        tasks = sorted(follower.tasks, key=lambda task: (task.start_ns, task.id))
        return _ns(start.elapsed_time(end)), tasks

    def drive(self, job: Job, policy: Policy) -> Observation:
        """Let `policy` decide: the host launches what it says and asks the events what has ended.

        Raises
        ------
        InputError
            See `devices.real.driver.Driver`; or the job has CPU workers.
        StuckError
            Nothing was issued any more while tasks remained.
        """
        work, streams = self._work(job), self._streams_of(job)
        with _told():
            return self._drive(job, policy, work, streams)

    def _drive(self, job: Job, policy: Policy, work: _Work, streams: list[Any]) -> Observation:
        torch = self.torch
        work.reset()
        torch.cuda.synchronize()
        zero = [now_ns()]
        driver = Driver(job, policy, lambda: now_ns() - zero[0])
        ended: dict[int, Any] = {}
        flying: dict[int, tuple[Task, Any, Any]] = {}
        done: list[tuple[Task, Any, Any]] = []
        todo: list[tuple[Issuer, Task]] = []
        driver.prepare()
        with quiet_interpreter():
            start, end, gate = self._begin(streams, 0)
            zero[0] = now_ns()
            todo += driver.begin()
            while len(done) < driver.total:
                while todo:
                    _, task = todo.pop(0)
                    stream, begun, over = streams[task.stream], self._event(), self._event()
                    with torch.cuda.stream(stream):
                        for id in driver.waits(task):
                            if id in ended:
                                stream.wait_event(ended[id])
                        begun.record(stream)
                        work.launch(task.op)
                        over.record(stream)
                    task.issue_ns = now_ns() - zero[0]
                    ended[task.id] = over
                    flying[task.id] = (task, begun, over)
                    todo += driver.issued(task)
                finished = [entry for entry in flying.values() if entry[2].query()]
                if not flying:
                    raise StuckError(f"the run is stuck: {driver.total - len(done)} tasks were never issued")
                for entry in finished:
                    del flying[entry[0].id]
                    done.append(entry)
                    todo += driver.completed(entry[0])
            self._finish(streams, gate, end)
        for task, begun, over in done:
            task.start_ns = _ns(start.elapsed_time(begun))
            task.end_ns = _ns(start.elapsed_time(over))
        tasks = sorted((task for task, _, _ in done), key=lambda task: (task.start_ns, task.id))
        trace = Trace.from_tasks(job, make_flow(job), Policy(), tasks)
        return Observation(
            dataclasses.replace(trace, policy=type(policy).__name__),
            work.wrong(),
            truth_ns=_ns(start.elapsed_time(end)),
        )

    # -- parts of a run -----------------------------------------------------------------------

    def _event(self, *, timing: bool = True) -> Any:
        return self.torch.cuda.Event(enable_timing=timing)

    def _begin(self, streams: Sequence[Any], gate_cycles: int) -> tuple[Any, Any, Any]:
        """Let all streams wait for the start event behind the gate; return start, end, gate stream."""
        torch = self.torch
        start, end = self._event(), self._event()
        gate = torch.cuda.current_stream()
        if gate_cycles:
            torch.cuda._sleep(gate_cycles)
        start.record(gate)
        for stream in streams:
            stream.wait_event(start)
        return start, end, gate

    def _finish(self, streams: Sequence[Any], gate: Any, end: Any) -> None:
        """Record the end when all streams are done, and wait for it."""
        for stream in streams:
            over = self._event(timing=False)
            over.record(stream)
            gate.wait_event(over)
        end.record(gate)
        self.torch.cuda.synchronize()

    def _work(self, job: Job) -> _Work:
        """Return the matrices of a graph, made once."""
        if job.iterations != 1:
            raise InputError("the cuda backend runs one iteration at a time")
        if any(device.workers for device in job.machine.devices):
            raise InputError("the cuda backend has streams, not CPU workers")
        key = id(job.graph)
        if key not in self._works:
            whole = job.graph.kind(0).startswith(("gpt-", "resnet-"))
            made: Any = ModelWork if whole else TorchWork
            self._works = {key: (job.graph, made(self.torch, job.graph))}  # one at a time: memory
        return self._works[key][1]

    def _streams_of(self, job: Job) -> list[Any]:
        """Return one stream for each of the machine's, made once; several devices are partitions of SMs."""
        devices = job.machine.devices
        shape = (len(devices), sum(device.streams for device in devices))
        if shape not in self._streams:
            if len(devices) == 1:
                self._streams[shape] = [self.torch.cuda.Stream() for _ in range(shape[1])]
            elif shape[0] != shape[1]:
                raise InputError("partitions of SMs have one stream each")
            else:
                handles, _ = partition_streams(len(devices), driver=self.driver)
                self._streams[shape] = [self.torch.cuda.ExternalStream(handle) for handle in handles]
        return self._streams[shape]

    def _capture(self, job: Job, work: _Work, streams: list[Any], plan: Plan) -> None:
        number = {job.machine.stream_name(s): s for s in range(job.machine.first_stream[-1])}
        for task in plan:
            if task.stream in number:
                work.capture(job.graph.index(task.op), streams[number[task.stream]])


@contextmanager
def _told() -> Iterator[None]:
    """Turn torch's errors into ours, so that a case is lost and not an experiment."""
    try:
        yield
    except RuntimeError as error:
        raise RunError(
            f"torch: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from error


def _ns(ms: float) -> int:
    return int(np.floor(ms * 1e6 + 0.5))
