"""The cuda backend: torch streams and events; torch is imported here, when the backend is made.

::

    gate stream   [ spin ]─start───────────────────────────────────────────wait all─end
    stream 0              └wait start─ a ──record──────── c ──wait b──...──record──┘
    stream 1              └wait start───────── b ─record─────────...───────record──┘

The host fills the queues while the gate spins, so that only the device is measured; a case
about the host (`gated` false) has no spin. The spin ends by itself: a plan with more launches than a
launch queue holds finds the gate open, and reports it, instead of waiting for ever. The makespan between the
two events is the truth. Events around each op come in a second run, which is trusted only if it took as long
as the first.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from sim.base.errors import InfeasibleError, InputError, RunError, StuckError, extra
from sim.job.job import Job
from sim.machine.task import Task
from sim.policy import Policy
from sim.record.plan import Plan
from validation.gpu.gpu_probes import elapsed_ns
from validation.gpu.partitions import partition_streams, refuse_unbound
from validation.gpu.torch_device import CYCLES_PER_NS, DeviceState, smi_facts
from validation.gpu.torch_models import ModelWork
from validation.gpu.torch_work import TorchWork
from validation.real.clock import now_ns, quiet_interpreter, run_queue_ns
from validation.real.driver import Driver, Follower
from validation.real.work import Observation, measured_trace

_Work = TorchWork | ModelWork

_LAUNCH_NS: Final = 20_000
"""Host time per launch, from Python, that a plan's first gate allows; later ones use the measured one."""

_GATE_NS: Final = 500_000
"""Minimum spin of a gate."""


class _Ran(NamedTuple):
    """One execution: the time between the two events, and the host's time before the last launch."""

    makespan_ns: int
    host_ns: int
    tasks: list[Task]


@contextmanager
def _told() -> Iterator[None]:
    """Convert torch's errors into ours, so that a case is lost and not an experiment."""
    try:
        yield
    except RuntimeError as error:  # torch's type for no memory, a failed launch, a failed library
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(f"torch: {said}") from error


class Cuda:
    """Executes on the streams of one GPU.

    Parameters
    ----------
    torch : module, optional
        By default torch itself.
    driver : ctypes.CDLL, optional
        By default the driver's library, for partitions of SMs.

    Raises
    ------
    MissingExtraError
        There is no torch.
    InfeasibleError
        Torch finds no CUDA device.
    RunError
        There is one, but it cannot be used: another process holds it or its memory.
    """

    name = "cuda"

    def __init__(self, torch: Any = None, driver: Any = None) -> None:
        if torch is None:
            with extra("torch", "executing on a GPU"):
                import torch  # type: ignore[no-redef]
        if not torch.cuda.is_available():
            raise InfeasibleError("torch finds no CUDA device here")
        self.torch, self.driver = torch, driver
        self.state = DeviceState(torch)
        self.notes: dict[str, str] = {}
        self._streams: dict[tuple[int, int], list[Any]] = {}
        self._refused: dict[int, InfeasibleError] = {}
        self._works: dict[int, tuple[Any, _Work]] = {}
        self._host_ns: dict[tuple[Any, ...], int] = {}
        with _told():  # create the context here, where errors can be reported, rather than on first use
            torch.cuda.synchronize()

    # -- interface of a backend to a session -------------------------------------------------

    @_told()
    def provenance(self) -> dict[str, Any]:
        """Return the provenance of the numbers."""
        torch = self.torch
        self.state.wake()
        properties = torch.cuda.get_device_properties(0)
        return {
            "gpu": torch.cuda.get_device_name(0),
            "sms": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "l2_bytes": getattr(properties, "L2_cache_size", 0),
            "torch": str(torch.__version__),
            "cuda": torch.version.cuda,
            "dtype": "bfloat16",
            **smi_facts(),
            **self.notes,
        }

    @_told()
    def sentinel_ns(self) -> int:
        """Return how long a fixed product and a fixed copy take now; see `DeviceState`."""
        return self.state.sentinel_ns()

    @_told()
    def frame_ns(self, streams: int, n: int) -> list[int]:
        """Return samples of the makespan of an empty plan: the overhead of the events around a plan."""
        self.state.wake()
        made = [self.torch.cuda.Stream() for _ in range(streams)]
        samples = []
        for _ in range(n):
            self.torch.cuda.synchronize()
            start, end, gate = self._begin(made, _GATE_NS)
            self._finish(made, gate, end)
            samples.append(elapsed_ns(start, end))
        return samples

    def forget(self) -> None:
        """Release the matrices of the latest graph."""
        self._works, self._host_ns = {}, {}

    # -- running ------------------------------------------------------------------------------

    @_told()
    def execute(self, job: Job, plan: Plan, *, gated: bool = True) -> Observation:
        """Execute `plan`: once for the makespan, and once with events around every op.

        Raises
        ------
        InputError, UnknownNameError
            See `validation.real.driver.Follower`; or the job has CPU workers.
        InfeasibleError
            The machine's devices stand for partitions of SMs, which are not available; or the host could not
            fill the queues before the gate opened.
        RunError
            Torch raised an error, such as no memory.
        """
        work, streams = self._ready(job)
        waited = run_queue_ns()
        truth = self._execute(job, plan, work, streams, gated, timed=False)
        delayed = _since(waited)
        wrong = work.wrong()
        looked = self._execute(job, plan, work, streams, gated, timed=True)
        wrong = wrong or work.wrong()
        self.state.busy()
        return Observation(
            measured_trace(job, looked.tasks),
            wrong,
            delayed_ns=0 if gated else delayed,  # behind a gate, delays of the host do not affect the device
            truth_ns=truth.makespan_ns,
            looked_ns=looked.makespan_ns,
            host_ns=truth.host_ns,
            probe_error=abs(looked.makespan_ns - truth.makespan_ns) / max(1, truth.makespan_ns),
        )

    def _execute(
        self, job: Job, plan: Plan, work: _Work, streams: list[Any], gated: bool, *, timed: bool
    ) -> _Ran:
        """Execute once; if a gate opened before the queues were full, retry it longer, at most twice."""
        key = (id(job.graph), plan.digest, timed)
        for factor in (2, 8, 32):
            expected = self._host_ns.get(key, _LAUNCH_NS * (work.launches + 4 * len(plan)))
            spin_ns = _GATE_NS + factor * expected if gated else 0
            done = self._execute_once(Follower(job, plan), work, streams, spin_ns, timed=timed)
            if done is not None:
                self._host_ns[key] = done.host_ns
                return done
        raise InfeasibleError(
            f"the gate opened before {work.launches} launches were in the queues: the host was held up, or a "
            "launch queue holds fewer"
        )

    def _execute_once(
        self, follower: Follower, work: _Work, streams: list[Any], spin_ns: int, *, timed: bool
    ) -> _Ran | None:
        follower.prepare()
        tasks = follower.launches()  # determined before the clock starts
        waited_for = {id for task in tasks for id in follower.waits(task)}
        begun = {task.id: self._event() for task in tasks if timed}
        ended = {task.id: self._event(timing=timed) for task in tasks if timed or task.id in waited_for}
        work.reset()
        self.torch.cuda.synchronize()
        with quiet_interpreter():
            start, end, gate = self._begin(streams, spin_ns)
            zero_ns = now_ns()
            for task in tasks:
                waits = [ended[id] for id in follower.waits(task)]
                self._launch(work, task, streams[task.stream], waits, begun.get(task.id), ended.get(task.id))
                task.issue_ns = 0 if spin_ns else now_ns() - zero_ns
            host_ns = now_ns() - zero_ns
            too_early = bool(spin_ns) and start.query()
            self._finish(streams, gate, end)
        if too_early:
            return None
        for task in tasks if timed else ():
            task.start_ns, task.end_ns = elapsed_ns(start, begun[task.id]), elapsed_ns(start, ended[task.id])
        return _Ran(elapsed_ns(start, end), host_ns, tasks)

    @_told()
    def drive(self, job: Job, policy: Policy) -> Observation:
        """Let `policy` decide: the host launches its tasks and queries the events for what has ended.

        An op starts when it is launched and its predecessor on the stream has ended: an event before it, on
        an idle stream, would be recorded while the host is still launching.

        Raises
        ------
        InputError
            See `validation.real.driver.Driver`; or the job has CPU workers.
        StuckError
            Nothing more was issued although tasks remained.
        RunError
            Torch raised an error, such as no memory.
        """
        work, streams = self._ready(job)
        driver = Driver(job, policy)
        work.reset()
        self.torch.cuda.synchronize()
        ended: dict[int, Any] = {}
        flying: list[deque[Task]] = [deque() for _ in streams]
        done: list[Task] = []
        driver.prepare()
        waited = run_queue_ns()
        with quiet_interpreter():
            start, end, gate = self._begin(streams, 0)
            todo = deque(driver.begin())
            while len(done) < driver.total:
                while todo:
                    _, task = todo.popleft()
                    waits = [ended[id] for id in driver.waits(task) if id in ended]
                    ended[task.id] = self._event()
                    self._launch(work, task, streams[task.stream], waits, None, ended[task.id])
                    task.issue_ns = driver.now()
                    flying[task.stream].append(task)
                    todo += driver.issued(task)
                if not any(flying):
                    raise StuckError(f"the run is stuck: {driver.total - len(done)} tasks were never issued")
                for line in flying:  # the first of a stream ends first
                    if line and ended[line[0].id].query():
                        done.append(line.popleft())
                        todo += driver.completed(done[-1])
            host_ns = driver.now()
            self._finish(streams, gate, end)
        delayed = _since(waited)
        free_ns = [0] * len(streams)
        for task in done:  # those of a stream in order
            task.end_ns = elapsed_ns(start, ended[task.id])
            task.start_ns = min(max(task.issue_ns, free_ns[task.stream]), task.end_ns)
            free_ns[task.stream] = task.end_ns
        wrong = work.wrong()
        self.state.busy()
        return Observation(
            measured_trace(driver.job, done, driver.decided_by),
            wrong,
            delayed_ns=delayed,
            truth_ns=elapsed_ns(start, end),
            host_ns=host_ns,
        )

    def _launch(
        self, work: _Work, task: Task, stream: Any, waits: Sequence[Any], begun: Any, ended: Any
    ) -> None:
        """Put a task on its stream behind its waits, with events around it, if any."""
        with self.torch.cuda.stream(stream):
            for event in waits:
                stream.wait_event(event)
            if begun is not None:
                begun.record(stream)
            work.launch(task.op)
            if ended is not None:
                ended.record(stream)

    # -- parts of a run -----------------------------------------------------------------------

    def _event(self, *, timing: bool = True) -> Any:
        return self.torch.cuda.Event(enable_timing=timing)

    def _begin(self, streams: Sequence[Any], spin_ns: int) -> tuple[Any, Any, Any]:
        """Let all streams wait for the start event behind the gate; return start, end, gate stream."""
        torch = self.torch
        start, end = self._event(), self._event()
        gate = torch.cuda.current_stream()
        if spin_ns:
            torch.cuda._sleep(CYCLES_PER_NS * spin_ns)
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

    def _ready(self, job: Job) -> tuple[_Work, list[Any]]:
        """Wake the device and return a job's kernels and streams; ops with several kernels are captured."""
        work, streams = self._work(job), self._streams_of(job)
        self.state.wake()
        for op, stream in enumerate(job.stream_of.tolist()):
            work.capture(op, streams[stream])
        if work.not_captured:
            self.notes["not captured as CUDA graphs"] = work.not_captured
        return work, streams

    def _work(self, job: Job) -> _Work:
        """Return the matrices of a graph, created once."""
        if job.iterations != 1:
            raise InputError("the cuda backend runs one iteration at a time")
        if any(device.workers for device in job.machine.devices):
            raise InputError("the cuda backend has streams, not CPU workers")
        key = id(job.graph)
        if key not in self._works:
            self.forget()  # one graph at a time: memory
            whole = job.graph.kind(0).startswith(("gpt-", "resnet-"))
            made: Any = ModelWork if whole else TorchWork
            self._works = {key: (job.graph, made(self.torch, job.graph))}
        return self._works[key][1]

    def _streams_of(self, job: Job) -> list[Any]:
        """Return a stream for each of the machine's, created once; several devices are partitions of SMs."""
        devices = job.machine.devices
        shape = (len(devices), sum(device.streams for device in devices))
        if shape not in self._streams:
            if len(devices) == 1:
                self._streams[shape] = [self.torch.cuda.Stream() for _ in range(shape[1])]
            elif shape[0] != shape[1]:
                raise InputError("partitions of SMs have one stream each")
            else:
                self._streams[shape] = self._partitions(len(devices))
        return self._streams[shape]

    def _partitions(self, count: int) -> list[Any]:
        """Return a stream for each of the parts of the SMs; a refusal is remembered."""
        if count in self._refused:
            raise self._refused[count]
        try:
            handles, sms = partition_streams(count, driver=self.driver)
            streams = [self.torch.cuda.ExternalStream(handle) for handle in handles]
            self.state.wake()
            on_all_ns, *on_each_ns = (
                self._product_ns(stream) for stream in (self.torch.cuda.Stream(), *streams)
            )
            refuse_unbound(on_all_ns, on_each_ns)
        except InfeasibleError as error:
            self._refused[count] = error
            raise
        self.notes[f"SMs of each of {count} partitions"] = str(sms)
        return streams

    def _product_ns(self, stream: Any) -> float:
        """Return the time of a product on a stream, after its library has warmed up there."""
        with self.torch.cuda.stream(stream):
            return statistics.median([self.state.product_ns() for _ in range(4)][1:])


def _since(waited_ns: int | None) -> int:
    """Return how long this thread was kept from running since `run_queue_ns` returned `waited_ns`."""
    now = run_queue_ns()
    return 0 if waited_ns is None or now is None else now - waited_ns
