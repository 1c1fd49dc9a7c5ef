"""Makes the job of a case: takes all decisions that precede time 0, or refuses them with their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, zip_longest
from typing import Any, Final, TypeGuard

import numpy as np

from devices.describe.field_types import DEFAULT, dtype_name
from devices.describe.fields import BY_KIND, LISTS_OF_KINDS, check_kind
from devices.launches import add_launches
from devices.machine import BUILDERS
from policies.issue.loader_queues import refuse_undecided
from scenarios.file.document import Document, Loc, dotted_path
from scenarios.ops.attributes import check_attributes, read_attribute
from scenarios.ops.op_costs import refuse_costless, warn_of_contradictions, warn_of_unsized_tensors
from scenarios.recorded.setup import with_threads_in_turn
from scenarios.run.conditions import refuse_without_effect
from scenarios.run.scenario import Case, Scenario
from sim.base.arrays import MOST_TASKS, UNSET, BoolArray
from sim.base.errors import GraphError, InfeasibleError, InputError, ScenarioError, UnknownNameError, hint
from sim.graph.graph import Graph
from sim.issuers import with_processes
from sim.job.build_job import draw, make_job
from sim.job.costs import cost_the_same
from sim.job.job import Job, Placement
from sim.job.noise import Noise
from sim.machine.machine import Machine

# ----------------------------------------------------------------------------------------------------------
# Words from closed lists in a scenario: kinds of op and of device, data types, attributes of ops.
#
# An unknown word is refused at its place, with the nearest known one. Otherwise it would be read, match
# nothing, and change the result:
#
#     efficiency: {matmull: 0.5}    no op is a matmull, so products run at the peak
#     kind: matmull                 no efficiency, table or color is for it

_BY_KIND: Final = [f"machine.devices.*.{name}.*" for name in BY_KIND]
_COSTS: Final = [f"{p}{cost}.fixed.*" for p in ("", "machine.devices.*.") for cost in ("cost", "cost.*")]
_KEYS_BY_KIND: Final = (
    *_BY_KIND,
    *_COSTS,
    *(f"machine.devices.*.cost.roofline.{p.rpartition('.devices.*.')[2]}" for p in _BY_KIND),
)
"""Mappings whose keys are kinds of op."""
_STREAM_KINDS: Final = ("policy.streams.streams.*", "compare.*.streams.streams.*")
"""The same for the options of policies."""
_LISTS_OF_KINDS: Final = tuple(f"machine.devices.*.{name}.*" for name in LISTS_OF_KINDS)
_OPS: Final = ("workload.ops.*", "workload.functions.*.ops.*")
_EVERY_OP: Final = (*_OPS, *(f"workload.sessions.*.{op}" for op in _OPS))
_FILE_ATTRIBUTES: Final = ("workload.attributes.*.*", "workload.sessions.*.workload.attributes.*.*")


def check_words(document: Document, graph: Graph, machine: Machine, own_kinds: Iterable[str] = ()) -> None:
    """Refuse unknown words in the descriptions of machine and workload.

    Parameters
    ----------
    document : Document
    graph : Graph
        Graph as the workload made it: kinds of op that come from an importer are known, too.
    machine : Machine
    own_kinds : iterable of str
        Kinds of op that the workload defines itself.

    Raises
    ------
    ScenarioError
        A word is unknown; the message has its place.
    """
    words = {loc: _text(document, loc) for loc in document.matching(*(f"{op}.kind" for op in _EVERY_OP))}
    _check_kinds(words, own_kinds, document)
    words = {loc: str(loc[-1]) for loc in document.matching(*_KEYS_BY_KIND)}
    words |= {loc: _text(document, loc) for loc in document.matching(*_LISTS_OF_KINDS)}
    _check_kinds(words, [DEFAULT, *own_kinds, *graph.kinds], document)
    places = {_text(document, loc): loc for loc in document.matching(*(f"{op}.dtype" for op in _EVERY_OP))}
    for code, dtype in enumerate(graph.dtypes):
        try:
            dtype_name(dtype)
        except UnknownNameError as error:
            if dtype in places:
                raise document.wrong(error, places[dtype]) from None
            raise _op_error(error, document, graph, graph.dtype_code == code) from None
    names = ((device.kind, device.name) for device in machine.devices)
    devices = [*BUILDERS, *chain.from_iterable(names), DEFAULT]
    for loc in document.matching(*(f"{op}.duration.*" for op in _EVERY_OP)):
        _check_name("device or kind of device", str(loc[-1]), devices, document, loc)
    for kind, ns in graph.duration_by_kind.items():
        if kind not in devices:
            unknown = UnknownNameError("device or kind of device", kind, dict.fromkeys(devices))
            raise _op_error(unknown, document, graph, ns != UNSET)
    patterns = (*(f"{op}.attributes.*" for op in _EVERY_OP), *_FILE_ATTRIBUTES)
    for loc in document.matching(*patterns):
        node = document.at(loc)
        with document.placing(*loc):
            read_attribute(str(loc[-1]), None if node is None else node.plain(), machine)
    check_attributes(graph, machine)


def _op_error(error: UnknownNameError, document: Document, graph: Graph, ops: BoolArray) -> ScenarioError:
    """Return an error about a word of a graph file, which names the first op that has the word."""
    near, op = hint(error.name, error.known), graph.op_names[int(ops.argmax())]
    return document.error(("workload",), f"op {op!r}: unknown {error.what} {error.name!r}{near}")


def _check_kinds(words: Mapping[Loc, str], more: Iterable[str], document: Document) -> None:
    """Refuse words that are neither kinds of op nor among `more`."""
    known_kinds = frozenset(more)
    for loc, word in words.items():
        with document.placing(*loc):
            check_kind(word, known_kinds)


def _text(document: Document, loc: Loc) -> str:
    node = document.at(loc)
    return "" if node is None else str(node.value)


def _check_name(kind: str, word: str, names: Iterable[str], document: Document, loc: Loc) -> None:
    if word not in names:
        raise document.wrong(UnknownNameError(kind, word, dict.fromkeys(names)), loc)


# ----------------------------------------------------------------------------------------------------------


def job_of(case: Case) -> Job:
    """Return the job of a case, with everything that is decided before time 0.

    Raises
    ------
    ScenarioError
        An op that no device can run, or a wrong decision; with its place if that is known.
    """
    return Jobs(case)()


_MOST_CACHED_TASKS: Final = 100_000
"""Jobs of more tasks are not cached for similar cases: that would double the memory."""


class Jobs:
    """Makes the jobs of a case, one per seed; what does not depend on the seed is made and checked once."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.checked = False
        self.last: Job | None = None
        self.compiled: tuple[Graph, Placement | None, Machine] | None = None

    def __call__(self, seed: int | None = None) -> Job:
        """Return the job for a seed, by default the scenario's; raises as `job_of` does."""
        case = self.case
        case.work  # noqa: B018 (if the workload cannot be built, its own error is raised)
        try:
            job = self._job(case.scenario.content.seed if seed is None else seed)
            if not self.checked:
                self._check(job)
                self.checked = True
            return job
        except ScenarioError:
            raise
        except (InfeasibleError, InputError) as error:
            # Nothing has run yet, so it is the scenario that asks for the impossible.
            raise place_error(error, case) from error

    def _job(self, seed: int) -> Job:
        case, decisions = self.case, self.case.decisions
        key, work = self._key, (case.work.graph, case.work.machine)
        kept_work, kept_key, kept_job = case.scenario.checked.get("job", (None, None, None))
        if self.last is None and key is not None and key == kept_key and _same(kept_work, work):
            self.last = kept_job
        if self.last is not None and (job := self.last.with_seed(seed)) is not None:
            draw(job, self._noise(job.machine))
            return job
        plain = self._make(seed)
        job = plain if decisions.policy.one_process else with_processes(plain)
        job = add_launches(job, decisions.policy.synchronisation, as_graph=decisions.cuda_graph)
        if decisions.knowledge != "estimate" and job.graph is plain.graph:  # else it depends on the seed
            self.last = job
            if key is not None and len(job.graph) * job.iterations <= _MOST_CACHED_TASKS:
                case.scenario.checked["job"] = work, key, job
                job.once_results = {}
        return job

    @cached_property
    def _key(self) -> tuple[Any, ...] | None:
        """Key of everything that decides the job besides work, seed and noise; None if it is incomplete."""
        decisions, content = self.case.decisions, self.case.scenario.content
        if (fields := decisions.fields) is None or not self.case.has_own_graph:
            return None
        policy = decisions.policy
        decided = (fields.placement, fields.streams, fields.linearize, fields.compile, decisions.cuda_graph)
        modes = (policy.synchronisation, policy.one_process, decisions.knowledge, decisions.intra_op_threads)
        run = (content.iterations, decisions.estimate_error, content.faults, content.fold)
        return (*decided, *modes, *run)

    def _make(self, seed: int) -> Job:
        scenario, decisions = self.case.scenario, self.case.decisions
        content = scenario.content
        graph, placement, machine = self._compile_work(seed)
        graph = with_threads_in_turn(graph) if content.iterations > 1 else graph
        return make_job(
            graph,
            machine,
            placement=placement,
            streams=decisions.streams,
            linearize=decisions.linearize,
            iterations=content.iterations,
            knowledge=decisions.knowledge,
            estimate_error=decisions.estimate_error,
            noise=self._noise(machine),
            seed=seed,
            faults=None if content.faults is None else content.faults.faults(machine, scenario.document),
        )

    def _noise(self, machine: Machine) -> Noise | None:
        fields = self.case.scenario.content.noise
        return None if fields is None else fields.noise(machine.positions)

    def _compile_work(self, seed: int) -> tuple[Graph, Placement | None, Machine]:
        scenario, work, decisions = self.case.scenario, self.case.work, self.case.decisions
        by_seed = decisions.compile and decisions.knowledge == "estimate"  # where a partition is placed by it
        if self.compiled is not None and not by_seed:
            return self.compiled
        content = scenario.content
        graph, _, machine = self.compiled = _compile(self.case, seed)
        tasks = content.iterations * len(graph)
        if tasks > MOST_TASKS:
            message = f"{content.iterations:,} iterations of {len(graph):,} ops are {tasks:,} tasks"
            raise scenario.document.error(("iterations",), f"{message}; there may be {MOST_TASKS:,}")
        _check_names(scenario, graph, work.machine)
        own_kinds = content.workload.own_kinds()
        words = {loc: str(loc[-1]) for loc in scenario.document.matching(*_STREAM_KINDS)}
        _check_kinds(words, [DEFAULT, *own_kinds, *work.graph.kinds], scenario.document)
        if not _same(scenario.checked.get("words"), (work.graph, machine)):
            check_words(scenario.document, work.graph, machine, own_kinds)
            if not _same(scenario.checked.get("words"), (work.graph,)):
                warn_of_contradictions(work.graph)
            scenario.checked["words"] = work.graph, machine
        return self.compiled

    def _check(self, job: Job) -> None:
        case = self.case
        refuse_costless(job)
        refuse_undecided(job.graph, case.decisions.policy)
        if job.failures is not None:
            _check_failures(case, job)
        if job.faults is not None:
            _check_faults(case, job)
        decisions = case.decisions
        entry, scenario = case.scenario.checked.get("effects", (None, None))
        checked = decisions.fields is None and entry == decisions.loc and scenario is case.scenario
        # Once, not for each schedule that a search tries, nor for what-ifs.
        if not (checked or case.changed_work):
            refuse_without_effect(case)
            case.scenario.checked["effects"] = decisions.loc, case.scenario
        previous, priced = case.scenario.checked.get("costs"), (case.work.graph, job.graph, job)
        case.scenario.checked["costs"] = priced
        if previous is not None and _same(previous, priced[:2]) and _cost_alike(previous[2], job):
            return
        warn_of_unsized_tensors(job, in_memory=case.scenario.content.memory is not None)
        if any(device.cost is not None for device in job.machine.devices):
            from devices.cost import cost_warnings

            cost_warnings.warn_of_plain_rooflines(job)
            cost_warnings.warn_of_unknown_work(job)
            if (timed := case.scenario.content.workload.ops_to_time(case.scenario.document)) is None:
                cost_warnings.warn_of_unused_tables(job)
            else:
                used = [job.machine.devices[i] for i in sorted({*job.device_of.tolist()})]
                cost_warnings.warn_of_plain_ops(timed, used)


def _cost_alike(one: Job, other: Job) -> bool:
    """Whether two jobs of one graph have ops on the same devices, with the same cost models."""
    if not np.array_equal(one.device_of, other.device_of):
        return False
    pairs = zip_longest(one.machine.devices, other.machine.devices)
    return all(a is b or (a and b and a.name == b.name and cost_the_same(a, b)) for a, b in pairs)


def _same(checked: Any, things: Sequence[object]) -> bool:
    """Whether the objects in `checked`, which were checked before, begin with these very `things`."""
    return checked is not None and all(one is other for one, other in zip(checked, things, strict=False))


def _compile(case: Case, seed: int) -> tuple[Graph, Placement | None, Machine]:
    """Return the graph that runs, the placement still to be made, and the machine, with ranks folded."""
    work, decisions, document = case.work, case.decisions, case.scenario.document
    if not decisions.compile and case.scenario.content.fold is not True:
        return work.graph, decisions.placement, work.machine
    from scenarios.run.rewriting import compile_graph

    graph, placement, machine = compile_graph(case, seed)
    if case.scenario.content.fold is True and machine.folding is None:
        message = "there are no ranks to fold: give policy.compile a rewrite that makes some, as ddp or fsdp2"
        if work.graph.device_facts:
            message = "ranks of a recording are not folded: each has a host beside its GPU"
        raise document.error(("fold",), message)
    return graph, placement, machine


def _check_failures(case: Case, job: Job) -> None:
    """Refuse a job with ops that may fail if the consequences are not modelled."""
    from sim.engine.failing_ops import refuse_unknown

    document = case.scenario.document
    with document.placing(*case.decisions.loc):
        refuse_unknown(job, case.decisions.policy)
    if case.scenario.content.memory is not None:
        message = (
            "an allocator cannot follow a step in which an op fails: leave memory out, or no op may fail"
        )
        raise document.error(("memory",), message)


def _check_faults(case: Case, job: Job) -> None:
    """Refuse a job with faults of the machine if the consequences are not modelled."""
    from sim.engine.attempts import refuse_with_faults

    content, document = case.scenario.content, case.scenario.document
    with document.placing("faults"):
        refuse_with_faults(job, with_memory=content.memory is not None)
    if content.training_run is not None:
        message = "a training run repeats a step in which nothing fails: leave out one of the two"
        raise document.error(("faults",), message, key=True)


def _check_names(scenario: Scenario, graph: Graph, machine: Machine) -> None:
    """Refuse names of devices, and of models with memory of their own, that do not exist."""
    document, devices = scenario.document, [device.name for device in machine.devices]
    for loc in document.matching("noise.devices.*", "memory.devices.*"):
        _check_name("device", str(loc[-1]), devices, document, loc)
    patterns = ("memory.allocator.limits", "memory.devices.*.limits", "machine.devices.*.virtual_devices")
    for loc in document.matching(*patterns):
        from devices.memory.device_memory import Groups

        named = list(document.matching(f"{dotted_path(loc)}.*"))
        group_of = Groups(str(key[-1]) for key in named)
        groups = {group_of(op) for op in graph.op_names}
        for key in named:
            if key[-1] not in groups:
                models = {op.partition("/")[0] for op in graph.op_names}
                raise document.wrong(UnknownNameError("model", str(key[-1]), models), key)


def _names_key(error: InputError | InfeasibleError) -> TypeGuard[InputError]:
    """Whether a policy, another decision (`sim.job.job.Job.order`, `lane`) or the network names a key."""
    return isinstance(error, InputError) and bool(error.path)


def has_place(error: InputError | InfeasibleError) -> bool:
    """Whether an error says which op it is about, or which key of the scenario."""
    return error.op is not None or isinstance(error, GraphError | InfeasibleError) or _names_key(error)


def place_error(error: InputError | InfeasibleError, case: Case) -> ScenarioError:
    """Return the error with the place of its op, or of the key that it names."""
    from scenarios.workloads.workload import op_message, op_place

    document = case.scenario.document
    if _names_key(error):
        return document.wrong(error, () if error.path[0] == "machine" else case.decisions.loc)
    return document.error(op_place(error, document), op_message(error, document))
