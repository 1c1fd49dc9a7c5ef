"""Runs a scenario and returns its trace, its summary, and the outcome of its expectations."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from scenarios.expectations import Expectation, Outcome
from scenarios.fields.policy_fields import Choice, MemoryFields
from scenarios.fields.results import task_names, throughput
from scenarios.file.document import Loc
from scenarios.recorded.setup import residue
from scenarios.run import result_sections as shown
from scenarios.run.prepare_job import has_place, job_of, place_error
from scenarios.run.scenario import Case, Scenario
from sim.base import plugins
from sim.base.errors import InfeasibleError, InputError, RunError, ScenarioError, clip_repr
from sim.base.units import format_duration
from sim.explain.memory_use import memory_use, peak_bytes
from sim.export.tables import device_rows, summary_lines
from sim.graph.frames import has_control_flow
from sim.job.collectives import model_notice
from sim.job.job import Job, Tried
from sim.job.transfers import make_flow
from sim.kernel.run import NotOnKernelError, run_job
from sim.metrics import summary
from sim.notebook import Section, card_of
from sim.policy import order_of
from sim.trace import Trace

if TYPE_CHECKING:
    from devices.memory.device_memories import Recordings
    from devices.memory.registry import MemorySpec
    from devices.memory.run_memory import TensorMemories
    from scenarios.training_run.plan import Life
    from scenarios.training_run.training import RecoveryRuns
    from sim.engine import Observer


@dataclass(frozen=True, eq=False)
class Result:
    """The result of one run.

    Attributes
    ----------
    case : Case
    trace : Trace
    expectations : tuple of Expectation
        Expectations to check; those of the file are left out once settings have changed the scenario.
    tried : tuple of Tried
        What the placement tried, if it searches.
    recordings : dict of str to list of MemoryEvent, optional
        Requests to the allocator of each device, if they were recorded.
    training : RecoveryRuns, optional
        The training run of many steps, of which this run simulates one.
    new_tables : bool
        Whether the tables of ops to which schedules are compared may be missing.
    """

    case: Case
    trace: Trace
    expectations: tuple[Expectation, ...] = ()
    tried: tuple[Tried, ...] = ()
    recordings: Recordings | None = None
    training: RecoveryRuns | None = None
    new_tables: bool = False

    def __repr__(self) -> str:
        """Return the scenario, the policy, and the makespan."""
        return f"<Result of {self.scenario!r} under {self.policy!r}: {self.trace.makespan_ns} ns>"

    def _repr_html_(self) -> str:
        """Return the lines and tables that ``sim run`` prints, for a notebook."""
        return card_of(self.title, self.sections)

    @property
    def title(self) -> str:
        """Scenario and policy, as a heading."""
        return f"{self.scenario}: {self.policy}"

    @property
    def scenario(self) -> str:
        """Name of the scenario."""
        return self.case.scenario.name

    @property
    def policy(self) -> str:
        """Label of the policy in the scenario."""
        return self.case.label

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The numbers of the run: see `sim.metrics.summary` and `scenarios.fields.results`."""
        return self._describe(causes=True)

    @cached_property
    def numbers(self) -> dict[str, Any]:
        """The summary without its slowest parts: causes of idle time, residue, and holders of memory."""
        return self._describe(causes=False)

    def _describe(self, *, causes: bool) -> dict[str, Any]:
        numbers = summary(self.trace, causes=causes)
        if self.trace.memory is not None and causes:
            from sim.explain.memory_use import allocator_statistics

            uses = allocator_statistics(self.trace).items()
            numbers["memory"] = {name: use._asdict() for name, use in uses}
        if self.training is not None:
            numbers["training_run"] = self.training.report(self.lives)
        if causes and (unexplained := residue(self.trace)) is not None:
            numbers["unexplained"] = unexplained._asdict()
        job, model = self.trace.job, self.case.work.machine.collectives
        if causes and (line := model_notice(job.graph, job.machine, job.collectives, model)) is not None:
            numbers["collectives"] = line
        report = self.case.work.report(self.trace)
        for name, more in report.pop("devices", {}).items():
            numbers["devices"][name] |= more
        numbers |= report
        if "serving" in report:  # its tasks are engine steps, not jobs that someone waits for
            numbers.pop("mean_flow_time_ns", None)
            numbers |= {"gap": None, "no_gap": "another batcher would make other steps"}
        content = self.case.scenario.content
        batch = getattr(content.workload, "batch", None)
        if "F" in job.graph.phases and not report.keys() & {"train", "pipeline"}:
            from scenarios.workloads.step_report import is_training_step, step_report

            if is_training_step(job.graph):
                tokens = getattr(content.workload, "tokens_per_sample", None)
                numbers["train"] = step_report(self.trace, batch, tokens)
        if batch is not None and job.graph.in_communicators:
            from scenarios.workloads.step_report import count_replicas

            batch *= count_replicas(job.graph)
        return numbers | throughput(numbers, self.trace.steps_done, batch)

    @cached_property
    def sections(self) -> list[Section]:
        """The result as lines and tables, which ``sim run`` prints and a notebook shows."""
        summary, runs = self.summary, {self.policy: self.trace}
        lines = summary_lines(self.trace, summary)
        lines += [shown.tuning_line(self.tried)] if self.tried else []
        lines += [shown.folding_lines(summary["folded"])] if "folded" in summary else []
        notes = [
            *shown.unused_notes({self.policy: summary["unused_devices"]}),
            *shown.stream_notes(runs, {self.policy} if self.case.decisions.own_streams else ()),
        ]
        notes += shown.model_notes([summary])
        return [
            Section(lines),
            Section([], [device_rows(summary)], notes),
            *shown.sections(summary, None if self.training is None else self.training.plan),
            *shown.outcome_sections(bool(self.case.expectations), self.outcomes),
        ]

    @cached_property
    def lives(self) -> Mapping[str, Life]:
        """The course of the training run under each recovery policy."""
        return {} if self.training is None else self.training.lives(self.trace)

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The outcome of each expectation."""
        unrecorded = ""
        if not self.new_tables and all(expectation.table is None for expectation in self.expectations):
            base = self.case.base  # the file, the policy unless it is the scenario's own, permissions
            words = ["--policy", self.policy] if self.policy in base.variants else []
            code, outside = base.document.allowed
            words += ["--allow-code"] * code + ["--allow-outside"] * outside
            unrecorded = shlex.join([str(base.document.path), *words])
        return tuple(
            expectation.hold(self, self._other, new_tables=self.new_tables, unrecorded=unrecorded)
            for expectation in self.expectations
        )

    def _other(self, label: str) -> Result:
        """Return another run of the scenario; each is run once for all expectations that refer to it."""
        base, other_runs = self.case.base, self.case.base.other_runs
        if label not in other_runs:
            case = base.case(label if label in base.variants else None)
            try:
                other_runs[label] = run_case(replace(case, expectations=()))
            except RunError as error:
                raise RunError(f"{label!r}, to which results are held, cannot go on: {error}") from None
        result: Result = other_runs[label]
        return result

    def share(self) -> None:
        """Let expectations of other runs refer to this run, unless a command gave other decisions."""
        if self.case.decisions.loc:  # the scenario's own, or an entry of compare
            self.case.base.other_runs.setdefault(self.policy, self)

    @property
    def passed(self) -> bool:
        """Whether all expectations were met."""
        return all(outcome.passed for outcome in self.outcomes)

    def to_json(self) -> dict[str, Any]:
        """Return what ``sim run --json`` prints."""
        names = {"scenario": self.scenario, "policy": self.policy, "engine": self.trace.engine}
        tuning = {"tuning": [tried._asdict() for tried in self.tried]} if self.tried else {}
        return {**self.summary, **names, **tuning, "expect": [outcome.to_json() for outcome in self.outcomes]}


def run_scenario(
    scenario: Scenario, policy: str | None = None, *, observers: Iterable[Observer] = (), check: bool = False
) -> Result:
    """Run a scenario, under its own policy or another one.

    Parameters
    ----------
    scenario : Scenario
    policy : str, optional
        See `Scenario.case`.
    observers : iterable of Observer
        Called at every start and end of a task.
    check : bool
        Whether to assert the invariants of the trace afterwards.

    Raises
    ------
    InputError
        The scenario is wrong: for example an unknown name, or an op that no device can run.
    RunError
        The run cannot go on: out of memory, stuck.

    Examples
    --------
    >>> from scenarios.run.load import load_scenario
    >>> run_scenario(load_scenario("scenarios/examples/topological.yaml")).trace.makespan_ns
    50000
    """
    if not isinstance(scenario, Scenario):
        raise InputError(f"scenario should be what load_scenario(path) returns, not {clip_repr(scenario)}")
    return run_case(scenario.case(policy), observers=observers, check=check)


def run_case(
    case: Case,
    *,
    observers: Iterable[Observer] = (),
    check: bool = False,
    job: Job | None = None,
    record_memory: bool = False,
    fits: bool = True,
    new_tables: bool = False,
    change: Callable[[Job], Job] | None = None,
) -> Result:
    """Run one case of a scenario; see `run_scenario`.

    A given `job` replaces that of the case (`scenarios.run.prepare_job.job_of`). `record_memory` fills
    `Result.recordings`; without an allocator in the scenario, bytes are then counted. With `fits`, a step
    whose memory turns out too small at the end raises, unless the scenario has an expectation about that;
    without `fits` it is a result as well.
    `new_tables` is `Result.new_tables`. `change` returns a modified job with the same ops, after all
    decisions that are made before time 0.
    """
    job = job or job_of(case)
    job = job if change is None else change(job)
    training = _recovery_runs(case)
    expectations = tuple(
        expectation
        for expectation in case.expectations
        # Expectations of the file hold for the file as it is; settings may bring expectations of their own.
        if not case.scenario.document.changed or not expectation.in_file
    )
    if (folding := job.machine.folding) is not None:
        expectations = tuple(expectation.on(folding.seen_as) for expectation in expectations)
    names = names_of(job, () if training is None else tuple(training.recoveries)) if expectations else {}
    for expectation in expectations:
        expectation.check_name(names, with_table=not new_tables)
    recordings: Recordings | None = {} if record_memory else None
    trace = trace_of(case, job, observers, recordings)
    if check:
        trace.check()
    if fits and not any(expectation.result == "fits" for expectation in expectations):
        case.work.fits(trace, True)
    placement = case.decisions.placement
    tried = () if placement is None else placement.tried
    if not isinstance(tried, Sequence) or not all(isinstance(one, Tried) for one in tried):
        raise InputError(f"{type(placement).__name__}.tried should be a sequence of Tried, not {tried!r:.60}")
    return Result(case, trace, expectations, tuple(tried), recordings, training, new_tables)


def names_of(job: Job, recoveries: Sequence[str] = ()) -> dict[str, set[str]]:
    """Return the names that expectations of a run may refer to."""
    return {
        "device": {device.name for device in job.machine.devices},
        "link": {link.name for link in job.machine.links},
        "op": task_names(job),
        "recovery": {*recoveries},
    }


def _recovery_runs(case: Case) -> RecoveryRuns | None:
    """Return the run of many steps that the scenario describes, or None."""
    scenario, section = case.scenario, case.scenario.content.training_run
    if section is None:
        return None
    from scenarios.run.decisions import resolve_recoveries
    from scenarios.training_run.training import RecoveryRuns

    work = scenario.content.workload
    gpus, run = getattr(work, "gpus", 0), section.workers * section.devices
    gpus_each, uneven = divmod(gpus, section.workers)
    replica = Fraction(getattr(work, "replica_gpus", 1), gpus_each) if gpus and not uneven else 1
    if gpus not in (0, run) and any(cause.kind == "device" for cause in section.failures.values()):
        mismatch = f"devices that may fail are {section.workers:,} workers' with {section.devices:,} each"
        warnings.warn(f"the step is on {gpus:,} GPUs, but {mismatch}", stacklevel=2)
    where = ("training_run", "recovery")
    recoveries = resolve_recoveries(section.recovery, scenario.document, where)
    return RecoveryRuns(scenario.document, section.plan(0, scenario.document, replica), recoveries)


def trace_of(
    case: Case, job: Job, observers: Iterable[Observer] = (), recordings: Recordings | None = None
) -> Trace:
    """Run the job of a case, simulating memory if an allocator is chosen or memory turns out too small."""
    decisions, document = case.decisions, case.scenario.document
    memory = memory_of(case, job, recordings)
    try:
        trace = run_job(
            job, decisions.policy, case.scenario.content.engine, memory=memory, observers=observers
        )
    except ScenarioError:
        raise
    except NotOnKernelError as error:
        raise document.error(("engine",), str(error)) from error
    except (InputError, InfeasibleError) as error:  # the graph asks for the impossible, which shows only now
        if not has_place(error):
            raise
        raise place_error(error, case) from error
    if memory is None and case.has_own_graph and exceeds_memory(trace):
        from devices.memory.run_memory import tensor_memory

        # Run again and count bytes: that run ends where memory runs out, and says who held what.
        counted = dict.fromkeys((device.name for device in job.machine.devices), _counting_allocator())
        trace = run_job(job, decisions.policy, memory=tensor_memory(counted))
    return trace


# ----------------------------------------------------------------------------------------------------------
# Memory of a run: which allocator serves it, how long tensors live, and whether it is simulated at all.
#
# ::
#
#     memory: {allocator: bfc}                                        a name, with its defaults
#     memory: {allocator: {name: caching, malloc: 10us}}              with options (`devices.memory`)
#     memory: {allocator: bfc, devices: {npu0: scratchpad}}           all devices but one
#     memory: {lifetime: issue, when_full: wait}                      without naming an allocator
#     memory: {allocator: runtime}                                    the one that the policy's runtime has
#
# Without an allocator, bytes are counted against the capacity of the device, at no cost. If the policy
# synchronises by issue (as PyTorch does on a GPU), tensors live from issue to issue, else from start to end,
# unless the scenario says otherwise, or a plan has places for copies between devices.
#
# Without any of these keys, memory is not simulated: its use is the sum of the live tensors. A run that then
# turns out to need more than a device has is repeated with memory, so that it ends where memory runs out and
# says who held what.

RUNTIME: Final = "runtime"
"""Used in place of an allocator's name: the allocator that the policy's runtime names."""


def _counting_allocator() -> MemorySpec:
    """Return an allocator that counts bytes against the capacity, without rounding, fragments or costs."""
    from devices.memory.registry import MemorySpec

    return MemorySpec("counted", options={"asynchronous": True})


def memory_of(case: Case, job: Job, recordings: Recordings | None = None) -> TensorMemories | None:
    """Return the `memory` argument of the engine; None if neither scenario nor caller asks for memory.

    Parameters
    ----------
    case : Case
    job : Job
    recordings : dict of str to list of MemoryEvent, optional
        Receives the requests to the allocators.

    Raises
    ------
    ScenarioError
        An unknown allocator or option, or a wrong value of an option; a plan for a graph with control flow,
        or for a policy that takes ops in another order than the program's.
    """
    fields, document, machine = case.scenario.content.memory, case.scenario.document, job.machine
    cut = {gpu.name: gpu.details.virtual_devices for gpu in machine.devices if gpu.details.virtual_devices}
    if fields is None and not cut and recordings is None:
        return None
    from devices.memory.device_memories import PLAN_NEEDS_ORDER, PLAN_NEEDS_PROGRAM, PLAN_NEEDS_STARTS
    from devices.memory.registry import read_allocator
    from devices.memory.run_memory import tensor_memory

    fields = fields or MemoryFields.model_validate({})
    specs, planned = {}, list[Loc]()
    for device in machine.devices:
        has_entry = device.name in fields.devices
        loc: Loc = ("memory", "devices", device.name) if has_entry else ("memory", "allocator")
        choice = fields.devices[device.name] if has_entry else fields.allocator
        if choice is not None and choice.name == RUNTIME:
            choice = _runtime_allocator(choice, case, device.kind, loc)
        specs[device.name] = _counting_allocator()
        if choice is not None:
            with document.placing(*loc):
                named = {"name": choice.name, **choice.options}
                specs[device.name] = read_allocator(named, document.origin)
        if specs[device.name].allocator == "planned":
            planned.append(loc)
    if planned and has_control_flow(job.graph):
        raise document.error(planned[0], PLAN_NEEDS_ORDER)
    for name, parts in cut.items():
        if specs[name].allocator == "planned":
            message = "a plan is for a whole device; choose another allocator"
            raise document.error(("machine", "devices", name, "virtual_devices"), message)
        specs[name] = replace(specs[name], options={**specs[name].options, "virtual_devices": parts})
    policy = case.decisions.policy
    if planned and (order := order_of(policy, job)) is not None and order.window != 1:
        raise document.error(planned[0], PLAN_NEEDS_PROGRAM.format(case.decisions.label))
    ahead = policy.synchronisation == "issue"
    at_start = ahead and planned and len(make_flow(job).tensor) > 0
    if at_start and fields.lifetime == "issue":
        raise document.error(("memory", "lifetime"), PLAN_NEEDS_STARTS)
    lifetime = fields.lifetime or ("issue" if ahead and not at_start else "execution")
    with document.placing("memory"):
        memory = tensor_memory(specs, lifetime=lifetime, when_full=fields.when_full)
    return replace(memory, recordings=recordings)


def _runtime_allocator(choice: Choice, case: Case, kind: str, loc: Loc) -> Choice | None:
    """Return the runtime's allocator for a kind of device, with `choice`'s options; None: count bytes."""
    allocators = case.decisions.allocators
    if not allocators:
        runtimes = {name: plugins.lookup("sim.runtimes", name) for name in plugins.names("sim.runtimes")}
        naming = ", ".join(name for name, choices in runtimes.items() if "allocator" in choices)
        message = f"{RUNTIME!r} is the allocator that the policy's runtime names, and it names none"
        raise case.scenario.document.error(loc, f"{message}; these runtimes do: {naming}")
    if kind not in allocators:
        return None
    return Choice(**{**allocators[kind], **choice.options})


def exceeds_memory(trace: Trace) -> bool:
    """Return whether the tensors of a run without simulated memory need more than some device has.

    Raises
    ------
    OutOfMemoryError
        They do, and ops may fail, so the run cannot be repeated with an allocator to find out where.
    """
    job = trace.job
    capacity = {dev.name: dev.memory_bytes for dev in job.machine.devices if dev.memory_bytes is not None}
    everything = int(job.graph.tensor_nbytes.sum()) * job.iterations
    if all(everything <= nbytes for nbytes in capacity.values()) and not has_control_flow(job.graph):
        return False  # no device ever holds more than all tensors of all iterations together
    peak = peak_bytes(trace)
    full = [name for name, nbytes in capacity.items() if peak[name] > nbytes]
    if full and trace.on_failure is not None:
        from devices.memory.allocator import more_memory, out_of_memory, size_text

        use, limit = memory_use(trace)[full[0]], capacity[full[0]]

        lines = [
            ("limit", size_text(limit)),
            ("largest holders", "; ".join(f"{t.name!r} {size_text(t.nbytes)}" for t in use.holders[:5])),
            ("what would help", more_memory(use.peak_bytes - limit)),
        ]
        in_use = f"{size_text(use.peak_bytes)} are in use at {format_duration(use.peak_ns)}"
        raise out_of_memory(full[0], "counted", in_use, lines)
    return bool(full)
