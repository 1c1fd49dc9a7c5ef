"""What-ifs of one recording or scenario, tried one after another: the standard list, and their results."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from statistics import median
from typing import Final

import numpy as np
from pydantic import ValidationError

from scenarios.file.faults import input_error
from scenarios.recorded import select as roles
from scenarios.recorded.changes import WhatIf, apply_changes
from scenarios.recorded.program import RecordedProgram
from scenarios.recorded.setup import as_recorded
from scenarios.run.execute import run_case
from scenarios.run.prepare_job import job_of
from scenarios.run.scenario import Case
from scenarios.variants.variant import Row, Variant, Variants, WhatIfText, attempt
from scenarios.workloads.graph_files import ImportedFile
from sim.base.arrays import UNSET
from sim.base.errors import InputError, UnknownNameError, error_path, in_file
from sim.explain.communication import inside_ns
from sim.explain.narration import names_around
from sim.graph.graph import Graph
from sim.trace import Trace

# ----------------------------------------------------------------------------------------------------------
# The straggler: the rank that the others wait for, and how much more work it has.
#
#     rank 0   ──── [all-reduce.......]        blame of rank 2: from the arrival of rank 1, the last but one,
#     rank 1   ──────── [all-reduce...]        until its own
#     rank 2   ─────────────── [all-re]
#                       └blame┘


def straggler(graph: Graph) -> tuple[int, dict[str, float]] | None:
    """Return the rank that keeps the others waiting longest, and the factors that would make it their equal.

    Parameters
    ----------
    graph : Graph
        Graph of the ranks of a job: rank 3 is ``gpu3`` and ``cpu3``.

    Returns
    -------
    (int, dict of str to float) or None
        The rank; for its host and its GPU, the median of the others' own work over its own, if that is below
        one. None: there are no ranks, or none waits.
    """
    blame: Counter[int] = Counter()
    for arrivals in _arrivals(graph).values():
        for starts in zip(*arrivals.values(), strict=False):
            ranked = sorted(zip(starts, arrivals, strict=True))
            if len(ranked) > 1:
                (before, _), (last, rank) = ranked[-2:]
                blame[rank] += last - before
    if not any(blame.values()):
        return None
    latest = max(sorted(blame), key=lambda rank: blame[rank])
    kernels = roles.tasks(graph) & ~roles.collectives(graph)
    factors = {}
    for kind, ops in (("cpu", roles.host_ops(graph)), ("gpu", kernels)):
        work_ns = np.bincount(graph.pin_code[ops], graph.duration_ns[ops], len(graph.pins))
        others = [ns for pin, ns in zip(graph.pins, work_ns.tolist(), strict=True) if pin.startswith(kind)]
        if (name := f"{kind}{latest}") in graph.pins:
            own_ns = float(work_ns[graph.pins.index(name)])
            others.remove(own_ns)
            if others and own_ns > median(others):
                factors[name] = median(others) / own_ns
    return latest, factors


def _arrivals(graph: Graph) -> dict[str, dict[int, list[int]]]:
    """Return the recorded start times of collectives, by communicator and rank."""
    starts: dict[str, dict[int, list[int]]] = {}
    for op in graph.in_communicators:
        attributes, pin = graph.attributes[op], graph.pins[int(graph.pin_code[op])]
        rank = pin.removeprefix("gpu")
        if "recorded_start_ns" in attributes and rank.isdigit():
            by_rank = starts.setdefault(str(attributes["communicator"]), {})
            by_rank.setdefault(int(rank), []).append(int(attributes["recorded_start_ns"]))
    return starts


# ----------------------------------------------------------------------------------------------------------
# The what-ifs that `sim whatif` tries with any recording, to see what helps how much.

MOST_KINDS: Final = 5
"""Number of kinds of kernel that are tried one by one: those with the longest total time."""
MOST_NAMES: Final = 3
"""Number of operators, and of classes of modules, that are tried one by one."""
_NEARLY_ALL: Final = 0.9
_KIND_LABELS: Final = {"kernel": "kernels of no known kind"}
"""Labels of kinds whose names are not clear."""


def what_if(label: str, changes: WhatIfText, why_not: str = "") -> Variant:
    """Return a what-if of the graph, with changes as in a scenario."""
    return Variant(label=label, what_if=changes, why_not=why_not)


def standard_trials(graph: Graph) -> list[Variant]:
    """Return the what-ifs of a graph, including those that cannot be tried, with the reason.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("one")
    >>> _ = b.op("a", kind="matmul", duration_ns=10, device="gpu", attributes={"stream": 7})
    >>> standard_trials(b.build())[4].what_if
    {'scale': {'matmul': 'x0.5'}}
    """
    launches = roles.launches(graph).any()
    collectives = roles.collectives(graph).any() or inside_ns(graph).any()
    no_calls = "" if launches else "the recording has no launch calls of the host"
    no_messages = "" if collectives else "nothing communicates"
    copies = "" if roles.transfers(graph).any() else "nothing is copied between host and device"
    gapless = "" if graph.device_facts else "the recording does not tell the gap between kernels"
    in_a_row = "" if "elementwise" in graph.kinds else "no kernel has the kind elementwise"
    idle = "" if graph.is_kind("delay").any() else "all idle time is explained"
    host = "" if roles.host_ops(graph).any() else "the recording has nothing of the host"
    return [
        what_if("launch calls twice as fast", {"issue_cost": "x0.5"}, no_calls),
        what_if("launch calls take no time", {"issue_cost": "x0"}, no_calls),
        what_if("CUDA graphs", {"cuda_graph": True}, no_calls),
        what_if("host twice as fast", {"host": "x0.5"}, host),
        *(
            what_if(
                f"{_KIND_LABELS.get(kind, kind)} twice as fast{_own_communication(graph, kind)}",
                {"scale": {kind: "x0.5"}},
            )
            for kind in _longest_kinds(graph)
        ),
        *(
            what_if(f"{name} twice as fast, on host and device", {"scale": {name: "x0.5"}})
            for key in ("operator", "module")
            for name in _longest_names(graph, key)
        ),
        what_if("all kernels twice as fast", {"scale": {"kernels": "x0.5"}}),
        what_if("elementwise kernels in a row fused", {"fuse": ["elementwise"]}, in_a_row),
        what_if("copies between host and device gone", {"remove": ["transfers"]}, copies),
        what_if("communication twice as fast", {"bandwidth": {"collectives": "x2"}}, no_messages),
        what_if("communication takes no time", {"scale": {"collectives": "x0"}}, no_messages),
        what_if("no gaps between kernels", {"gap": "x0"}, gapless),
        what_if("unexplained idle time gone", {"scale": {"delay": "x0"}}, idle),
        *_without_straggler(graph),
    ]


def chosen(trials: list[Variant], only: list[str]) -> list[Variant]:
    """Return the trials that have one of the given words as a key, or in their label.

    Raises
    ------
    UnknownNameError
        No trial has one of the words.
    """
    matches: dict[int, Variant] = {}
    for word in only:
        keyed = {n: trial for n, trial in enumerate(trials) if word in (trial.what_if or ())}
        fits = keyed or {n: trial for n, trial in enumerate(trials) if word in trial.label}
        if not fits:
            raise UnknownNameError(
                "what-if", word, {str(key) for trial in trials for key in trial.what_if or ()}
            )
        matches |= fits
    return [matches[n] for n in sorted(matches)]


def _longest_kinds(graph: Graph) -> list[str]:
    """Return the kinds of kernel with the longest total time."""
    ops = roles.tasks(graph) & ~roles.collectives(graph) & ~roles.transfers(graph) & (graph.duration_ns > 0)
    total = np.bincount(graph.kind_code[ops], graph.duration_ns[ops], len(graph.kinds))
    first = np.argsort(-total, kind="stable")[:MOST_KINDS]
    return [graph.kinds[code] for code in first.tolist() if total[code] > 0]


def _longest_names(graph: Graph, key: str) -> list[str]:
    """Return the operators or module classes with the longest total time, except those of nearly all work."""
    work_ns = np.where(roles.collectives(graph) | roles.transfers(graph), 0, graph.duration_ns).clip(0)
    total, total_ns = Counter[str](), int(work_ns.sum())
    for op, path in graph.attribute(key).items():
        for name in names_around(str(path)):
            total[name] += int(work_ns[op])
    some = [name for name, ns in total.items() if 0 < ns < _NEARLY_ALL * total_ns]
    return sorted(some, key=lambda name: (-total[name], name))[:MOST_NAMES]


def _own_communication(graph: Graph, kind: str) -> str:
    """Return an addition to the label of a kind with ops that communicate: all of their time is halved."""
    return ", what it communicates included" if inside_ns(graph)[graph.is_kind(kind)].any() else ""


def _without_straggler(graph: Graph) -> Iterator[Variant]:
    """Yield the what-if in which the straggler is as fast as the median of the other ranks."""
    late = straggler(graph)
    if late is not None:
        rank, factors = late
        label = f"rank {rank}, which is late most, as fast as the others"
        scale = {device: f"x{factor:.4f}" for device, factor in factors.items()}
        why_not = "" if factors else "it has no more to do than they; it began later"
        yield what_if(label, {"scale": scale} if scale else {}, why_not)


# ----------------------------------------------------------------------------------------------------------

_LEAST_DIFFERENCE = 0.005
"""Part of the makespan by which two models of a recording must differ to be reported apart."""


class WhatIfs(Variants):
    """The what-ifs of a scenario, or of a recording on its own machine; they change no settings.

    The scenario is read once, and simulated for each what-if.
    """

    @property
    def name(self) -> str:
        """The name of the scenario."""
        return self._as_it_is.scenario.name

    @property
    def settings(self) -> list[Variant]:
        """Settings that may help a workload whose graph follows from settings, after the scenario itself."""
        case = self._as_it_is
        settings = case.scenario.content.workload.what_ifs(case.scenario.policy)
        trials = [Variant(tuple(changes.items()), label=label) for label, changes in settings.items()]
        return [Variant(label="as it is"), *trials] if trials else []

    @cached_property
    def _as_it_is(self) -> Case:
        return super().case(Variant())

    @cached_property
    def graph(self) -> Graph:
        """Graph of the scenario."""
        return self._as_it_is.work.graph

    @cached_property
    def timed_graph(self) -> Graph:
        """The same; if ops have no duration of their own, all keep their places and durations there."""
        graph = self.graph
        if (graph.duration_ns != UNSET).all():
            return graph
        job = job_of(self._as_it_is)
        if len(job.graph) != len(graph):  # compiled: the original ops have no durations
            return graph
        pins = tuple(dict.fromkeys((*graph.pins, *(device.name for device in job.machine.devices))))
        pin_code = np.array([pins.index(device.name) for device in job.machine.devices])[job.device_of]
        duration_ns = np.asarray(job.duration_ns)
        return replace(graph, pins=pins, pin_code=pin_code, duration_ns=duration_ns, duration_by_kind={})

    @cached_property
    def trace(self) -> Trace:
        """Trace of the run without changes."""
        return run_case(self.case(Variant())).trace

    @property
    def timed(self) -> bool:
        """Whether all ops have a duration; if not, the policy replaces them by ops that have one."""
        return bool((self.timed_graph.duration_ns != UNSET).all())

    @property
    def recorded_ns(self) -> int | None:
        """Time from the start of a recording to the last recorded end; None if this is no recording."""
        recorded = as_recorded(self.graph)
        return int(recorded.end_ns.max()) if len(recorded.op) else None

    def case(self, variant: Variant) -> Case:
        """Return the run of a what-if; a recording runs on the machine that its graph shows."""
        assert not variant.settings, "a what-if changes no settings"
        graph, case = self.graph, self._as_it_is
        if variant.what_if:
            graph = apply_changes(self.timed_graph, read_what_if(variant.what_if))
            scenario, workload = case.scenario, case.scenario.content.workload
            if isinstance(workload, ImportedFile):
                content = scenario.content.model_copy(update={"workload": workload.with_graph(graph)})
                case = replace(scenario, content=content).case()
        elif variant.machine is None:
            return case
        work = case.work._replace(graph=graph)
        if variant.machine is not None:
            work = work._replace(machine=variant.machine(work.machine))
        return replace(case, changed_work=work)

    def without_inferred(self) -> tuple[WhatIfs | None, int]:
        """Return these what-ifs without inferred host waits that held nothing when recorded; their number."""
        if not len(self.graph.attribute("inferred_wait")):
            return None, 0
        program, other = RecordedProgram(self.graph), copy(self)
        for name in ("trace", "timed_graph"):
            vars(other).pop(name, None)
        inferred = program.forget_inferred()
        other.graph = program.graph()
        return other, inferred


def try_all(what_ifs: WhatIfs, trials: Sequence[Variant], extra: Sequence[Variant] = ()) -> Iterator[Row]:
    """Yield the row of the run without changes, and of each what-if.

    A what-if that cannot be applied has a row as well.

    Parameters
    ----------
    what_ifs : WhatIfs
    trials : sequence of Variant
    extra : sequence of Variant
        Further what-ifs, given by the user: a mistake in one is an error.

    Yields
    ------
    dict
        ``label`` and ``what_if``; ``makespan_ns`` and ``saved_ns``, None if it cannot be applied;
        ``other_saved_ns``, the time saved without the inferred host waits that held nothing when recorded
        (None: as much, or there are none); ``notes``: what was assumed, or why it cannot be applied.

    Raises
    ------
    InputError
        A what-if given by the user cannot be applied; then nothing is tried.
    """
    for trial in extra:
        with in_file(f"--also {trial.label}"):
            _with_notes(what_ifs, trial)
    base_ns = what_ifs.trace.makespan_ns
    yield _row(Variant(label="as recorded" if what_ifs.recorded_ns else "as it is"), base_ns, base_ns)
    unheld, inferred = what_ifs.without_inferred()
    for trial in (*trials, *extra):
        if trial.why_not:
            yield _row(trial, base_ns, None, trial.why_not)
            continue
        try:
            case, notes = _with_notes(what_ifs, trial)
        except InputError as error:
            yield _row(trial, base_ns, None, error.message)
            continue
        if (run := attempt(case, change=trial.job)).result is None:
            yield _row(trial, base_ns, None, run.line)
            continue
        row = _row(trial, base_ns, run.result.trace.makespan_ns, *notes)
        if unheld is not None and trial.what_if:
            other, _ = _with_notes(unheld, trial)
            other_ns = unheld.trace.makespan_ns - run_case(other, fits=False).trace.makespan_ns
            if abs(other_ns - row["saved_ns"]) > _LEAST_DIFFERENCE * base_ns:
                row["other_saved_ns"] = other_ns
                row["notes"].append(
                    f"rests on {inferred} wait(s) of the host that were inferred and held nothing when "
                    "recorded; the other end of the range is what is saved without them"
                )
        yield row


def _row(trial: Variant, base_ns: int, makespan_ns: int | None, *notes: str) -> Row:
    return {
        "label": trial.label,
        "what_if": trial.what_if or {},
        "makespan_ns": makespan_ns,
        "saved_ns": None if makespan_ns is None else base_ns - makespan_ns,
        "other_saved_ns": None,
        "notes": [*notes],
    }


def _with_notes(what_ifs: WhatIfs, trial: Variant) -> tuple[Case, list[str]]:
    """Return the run of a what-if, and notes about its assumptions."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        case = what_ifs.case(trial)
    notes = list(dict.fromkeys(str(warning.message) for warning in caught))
    noise = case.scenario.content.noise
    drawn = noise is not None and (noise.jitter or noise.stragglers)
    if drawn and len(case.work.graph) != len(what_ifs.graph):
        notes.append("noise draws other durations for other ops, which is part of the difference")
    return case, notes


def read_what_if(value: WhatIfText) -> list[WhatIf]:
    """Return the what-ifs to apply one after another, from a value as in a scenario.

    Raises
    ------
    InputError
        An unknown key, or a wrong value.
    """
    what_ifs = []
    for n, item in enumerate(value if isinstance(value, list) else [value]):
        try:
            what_ifs.append(WhatIf.model_validate(item))
        except ValidationError as error:
            with error_path("what_if", *([n] if isinstance(value, list) else [])):
                raise input_error(error, WhatIf, item) from None
    return what_ifs
