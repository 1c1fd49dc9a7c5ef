"""The parts of a makespan, and why two runs of the same work differ: one device's time, by reason.

The device is the one that computes most; among those that compute about as much, the one that ends last. Its
makespan divides into computing, exposed communication, and idle time by reason, as `sim.explain.time_use` and
`sim.explain.idle` define them for every device::

    gpu1   ├─ policy ─┤▇▇▇c▇▇▇├ for gpu0 ┤▇▇▇d▇▇▇┤      it computes 14, in-order holds it back for 10, and
    gpu0   ▇▇▇▇▇a▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇b▇▇▇▇┤               it waits for gpu0 for 10

The same work on the same device takes the same time to compute, so a difference between two runs is one of
waits. A rank of a pipeline is idle in its bubble, whatever the reason, in one of three phases of each step::

    rank 1   ·····F F F F·····B F B F B F·B·B·B···    before its first backward, after its last forward, and
             ├─ warm-up ─────┤├─ steady ─┤├ drain ┤   between; under GPipe nothing is between
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from sim.base.arrays import UNSET, IntArray, least_by, most_by
from sim.base.intervals import Cover, in_use, union
from sim.base.units import format_duration
from sim.explain.bounds import bounds
from sim.explain.derived import DerivedColumns
from sim.explain.idle import REASONS, WORDS_OF_REASONS, final_waits, idle_pieces, idle_reasons
from sim.explain.time_use import time_use
from sim.record.record import Wait

_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "compute": ("computing", "{device} computes longer"),
    "communicate": ("exposed communication", "more communication of {device} is exposed"),
    "bubble": ("bubble", "its bubble is larger"),
    **WORDS_OF_REASONS,
}
"""Part → its name, and why a run is slower if the largest increase is in it."""

PARTS: Final = tuple(part for part in _WORDS if part != "bubble")
"""The parts of a device's makespan: computing, communicating, and the reasons of `sim.explain.idle`."""

BUBBLE: Final = ("warm-up", "steady state", "drain")
"""Phases of a pipeline's step on a rank (the last is Megatron's cool-down)."""

_ELSEWHERE: Final = ("dependency", "host", "finished")
"""Idle reasons that are attributed to work elsewhere."""
_BUSY_RATIO: Final = 0.9
_OTHERS: Final = "other devices"


class Breakdown(NamedTuple):
    """The parts of a device's time.

    Attributes
    ----------
    device : str
        Its name; empty if nothing ran.
    parts : dict of str to int
        Those of `PARTS` that occur, in ns; they add up to the makespan. If a policy holds back tasks that an
        idle worker could run while other workers of its device work, a share of that time is its part.
    waits_for : dict of str to int
        Work elsewhere while the device waited for inputs or had none left, most first: a device, ``stage 2``
        of a pipeline, ``transfer gpu0<->gpu1``, or, if nothing ran, ``policy`` or ``launch``. In a pipeline
        this covers all of its idle time.
    bubble : dict of str to int
        In a pipeline, its idle time by phase: those of `BUBBLE` that occur.
    """

    device: str
    parts: dict[str, int]
    waits_for: dict[str, int]
    bubble: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return the breakdown as printed by ``--json`` of `sim explain` and `sim compare`."""
        content = {"parts_of": self.device, "parts_ns": self.parts, "waits_for_ns": self.waits_for}
        return content | ({"bubble_ns": self.bubble} if self.bubble else {})


def breakdown(f: DerivedColumns, device: str | None = None) -> Breakdown:
    """Return the breakdown of a run's makespan.

    Parameters
    ----------
    f : DerivedColumns
    device : str, optional
        The device to break down; by default the one that computes most.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.program_order import InOrder
    >>> b = GraphBuilder("b holds c up")
    >>> for name, inputs, ns, device in (("a", [], 40, 0), ("b", ["a"], 10, 1), ("c", [], 30, 1)):
    ...     _ = b.op(name, inputs=inputs, duration_ns=ns, device=f"gpu{device}")
    >>> trace = simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), InOrder())
    >>> breakdown(DerivedColumns(trace))
    Breakdown(device='gpu1', parts={'compute': 40, 'policy': 40}, waits_for={}, bubble={})
    """
    if not f.trace.makespan_ns:
        return Breakdown("", {}, {}, {})
    reasons, use = idle_reasons(f), time_use(f)
    if device is None:
        device = _busiest(f, {name: ns["compute"] for name, ns in use.items()})
    d = f.machine.device_index(device)
    ns, idle = use[device], reasons[device]
    parts = {"compute": ns["compute"], "communicate": ns["communicate"] - idle.get("transfer", 0), **idle}
    policy_ns = min(_policy_idle_ns(f, d), parts["compute"])
    parts["policy"] = parts.get("policy", 0) + policy_ns
    parts["compute"] -= policy_ns
    nonzero = {part: parts[part] for part in PARTS if parts.get(part)}
    return Breakdown(device, nonzero, _waits_for(f, d), _bubble(f, d) if is_pipeline(f) else {})


def _busiest(f: DerivedColumns, compute: Mapping[str, int]) -> str:
    threshold = _BUSY_RATIO * max(compute.values())
    last = most_by(f.device, f.end, len(f.devices))
    near = [d for d, device in enumerate(f.devices) if compute.get(device.name, 0) >= threshold]
    return f.devices[max(near, key=lambda d: last[d])].name


def _policy_idle_ns(f: DerivedColumns, d: int) -> int:
    """Return how long idle workers could run tasks that the policy holds back while other workers work.

    If one of two such workers works, half of that time counts.
    """
    if f.devices[d].workers < 2:
        return 0
    rows = np.flatnonzero((f.device == d) & (f.lane >= 0))
    could = np.maximum(f.data[: f.n], f.released)
    spans = [(f.begins, f.end), (f.taken, f.issuer_done), (could, f.taken)]
    levels = [in_use(start[rows], end[rows], np.ones(len(rows), np.int64)) for start, end in spans]
    times = np.unique(np.concatenate([times for times, _ in levels]))
    executing, working, waiting = (count[np.searchsorted(t, times, side="right") - 1] for t, count in levels)
    could = np.where(executing > 0, np.minimum(waiting, f.devices[d].workers - working), 0)[:-1]
    return round(float((np.diff(times) * could / np.maximum(could + working[:-1], 1)).sum()))


def is_pipeline(f: DerivedColumns) -> bool:
    """Whether the graph has stages."""
    return bool(f.job.graph.stage.max(initial=UNSET) > 0)


def _bubble(f: DerivedColumns, d: int) -> dict[str, int]:
    """Return the idle time of a pipeline's rank by phase; the phases add up to it."""
    graph, makespan = f.job.graph, f.trace.makespan_ns
    rows = np.flatnonzero(f.device == d)
    step, phase = f.trace.tasks["iteration"][rows], graph.phase_code[f.trace.tasks["op"][rows]]
    start, end = f.begins[rows], f.trace.occupied_until_ns[rows]
    names = (*graph.phases, "")  # the last: of ops without a phase, whose code is -1
    is_forward, is_backward = (
        np.array([bool(set(letters) & set(name)) for name in names])[phase] for letters in ("F", "BI")
    )
    steps, step_of = np.unique(step, return_inverse=True)
    # Of a step without forward, or backward, all rows count.
    begin, forward = (mask | (np.bincount(step_of, mask) == 0)[step_of] for mask in (is_backward, is_forward))
    warm = least_by(step_of[begin], start[begin], len(steps), makespan)
    steady = np.maximum(warm, most_by(step_of[forward], end[forward], len(steps)))
    # The ends of warm-up, steady state and drain of the first step, then of the second, ...
    cuts = [0, *np.stack((warm, steady, most_by(step_of, end, len(steps))), axis=1).ravel().tolist()]
    cuts[-1] = makespan
    edges = np.maximum.accumulate(cuts)
    busy = Cover(union(start, end, f.device[rows]), makespan)
    idle = np.diff(edges) - busy.between(edges[:-1], edges[1:], np.full(len(edges) - 1, d))
    return {name: ns for k, name in enumerate(BUBBLE) if (ns := int(idle[k::3].sum()))}


def _waits_for(f: DerivedColumns, d: int) -> dict[str, int]:
    if not len(f.row_end):
        return {}  # nothing ran, for a part of the machine failed before
    graph = f.job.graph
    names = [device.name for device in f.devices]
    label = f.device
    if is_pipeline(f):
        stage = graph.stage[f.trace.tasks["op"]]
        label = np.where(stage >= 0, len(names) + stage, label)
        names += [f"stage {number}" for number in range(int(graph.stage.max()) + 1)]
    walk = WaitWalk(f, names, label)
    pieces = idle_pieces(f)
    counted = REASONS if is_pipeline(f) else _ELSEWHERE
    mask = (pieces.device == d) & np.isin(pieces.reason, [REASONS.index(reason) for reason in counted])
    rows = np.flatnonzero(f.device == d)
    rows = rows[np.argsort(f.begins[rows], kind="stable")]
    begins = f.begins[rows]
    last = int(f.row_end.argmax())
    waits: Counter[str] = Counter()
    columns = (pieces.start_ns, pieces.length_ns, pieces.row)
    for start, ns, row in zip(*(column[mask].tolist() for column in columns), strict=True):
        if is_pipeline(f) and row != UNSET:  # for the slot that comes next, whichever could have
            row = int(rows[np.searchsorted(begins, start + ns)])
        walk.back(last if row == UNSET else row, start, start + ns, waits)
    return dict(sorted((+waits).items(), key=lambda item: (-item[1], item[0])))


class WaitWalk:
    """Attributes the time before a task started to the work that ran meanwhile.

    ::

        rank 0   F4 ┊····idle····┊ B0       B0 waits for the gradient of 1B0,
        rank 1      ┊   ┌─ 1B0 ─┐┊          which ran for a part of that time: stage 1's share,
        rank 2      ┊2B0┘        ┊          and waited for 2B0 before: stage 2's share

    The chain is followed back to whichever of a task's needs ended last (an input, its transfer, the previous
    task on its lane). A slow stage or a slow link is thus named by every device that stands still because
    of it, however far away.

    Parameters
    ----------
    f : DerivedColumns
    names : list of str
        The names of tasks.
    label : array of int64
        Index of each task's name.
    """

    def __init__(self, f: DerivedColumns, names: list[str], label: IntArray) -> None:
        transfers = f.trace.transfers
        # `data` gives Python's integers, as lists do, which would take five times the memory.
        self.start, self.end, self.producer = f.row_start.data, f.row_end.data, f.last_producer.data
        self.before = np.concatenate((f.before_on_lane, np.full(len(transfers["start_ns"]), UNSET))).data
        low, high = np.sort((transfers["source"], transfers["destination"]), axis=0)
        pairs, pair_of = np.unique(low * len(f.devices) + high, return_inverse=True)
        self.label = np.concatenate((label, len(names) + pair_of)).data
        ends = (tuple(f.devices[end].name for end in divmod(code, len(f.devices))) for code in pairs.tolist())
        self.names = names + [f"transfer {a}<->{b}" for a, b in ends]
        waits = np.where(final_waits(f) == Wait.POLICY, "policy", "launch").tolist()
        self.blockers = waits + [self.names[code] for code in self.label[len(label) :]]  # links for transfers

    def back(self, row: int, from_ns: int, to_ns: int, totals: Counter[str]) -> None:
        """Attribute a stretch of time before the start of `row`, or up to its end, to what it waited for."""
        cursor = to_ns
        if self.start[row] < to_ns:  # the last row of the run, which is running
            since = max(self.start[row], from_ns)
            totals[self.names[self.label[row]]] += to_ns - since
            cursor = since
        while cursor > from_ns:
            input_, lane = self.producer[row], self.before[row]
            cause = lane if input_ < 0 or (lane >= 0 and self.end[lane] > self.end[input_]) else input_
            cause_end = min(self.end[cause], to_ns) if cause >= 0 else from_ns
            if cause_end < cursor:
                totals[self.blockers[row]] += cursor - max(cause_end, from_ns)
                cursor = cause_end
            if cause < 0 or cursor <= from_ns:
                return
            since = min(max(self.start[cause], from_ns), cursor)
            totals[self.names[self.label[cause]]] += cursor - since
            cursor, row = since, cause


# ----------------------------------------------------------------------------------------------------------
# Two runs of the same work.


class MakespanChange(NamedTuple):
    """The difference between the makespans of two runs.

    Attributes
    ----------
    a, b : Breakdown
        Breakdowns of one device, or of the busiest one of each run: the pair with less cancellation.
    parts : dict of str to int
        How many ns longer each part is in A; they add up to the difference of the makespans.
    """

    a: Breakdown
    b: Breakdown
    parts: dict[str, int]


def change(a: DerivedColumns, b: DerivedColumns) -> MakespanChange:
    """Return why A takes longer, or shorter, than B.

    Parameters
    ----------
    a, b : DerivedColumns
    """
    first, second = breakdown(a), breakdown(b)
    pairs = [(first, second)]
    used = [{f.devices[d].name for d in np.unique(f.device).tolist()} for f in (a, b)]
    for device in (first.device, second.device):
        if first.device != second.device and device in used[0] & used[1]:
            pairs.append((breakdown(a, device), breakdown(b, device)))
    changes = [MakespanChange(x, y, _subtract(x.parts, y.parts)) for x, y in pairs]
    return min(
        changes, key=lambda one: (sum(map(abs, one.parts.values())), *sorted((one.a.device, one.b.device)))
    )


def _subtract(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {part: ns for part in dict.fromkeys((*a, *b)) if (ns := a.get(part, 0) - b.get(part, 0))}


# ----------------------------------------------------------------------------------------------------------
# In words.


def breakdown_line(f: DerivedColumns) -> str:
    """Return the parts of the makespan in one line, naming the three largest."""
    result = breakdown(f)
    terms = _terms(f, result)
    largest = sorted(terms, key=lambda part: -terms[part])[:3]
    phases = ", ".join(f"{name} {format_duration(ns)}" for name, ns in result.bubble.items())
    about = {"bubble": f" ({phases}; most of it waiting for {next(iter(result.waits_for), '')})"}
    texts = [
        f"{format_duration(terms[part])} {_part_name(part, f)}{about.get(part, '')}"
        for part in largest
        if terms[part]
    ]
    if remainder := f.trace.makespan_ns - sum(terms[part] for part in largest):
        texts.append(f"{format_duration(remainder)} other")
    workers = {f.devices[d].name: f.devices[d].workers for d in np.unique(f.device).tolist()}
    prefix = f"{result.device}: " if len(workers) > 1 else ""
    if workers.get(result.device) and 0 in workers.values():  # a CPU is the busiest, beside GPUs
        prefix = f"host-bound: {prefix}"
    return prefix + (", ".join(texts) or "takes no time")


def breakdown_text(f: DerivedColumns, bound_ns: int | None = None) -> str:
    """Return `breakdown_line`, preceded by how near the run comes to the lower bound.

    Parameters
    ----------
    f : DerivedColumns
    bound_ns : int, optional
        A bound shared with other runs; by default the run's own.
    """
    limits, makespan = bounds(f.trace), f.trace.makespan_ns
    bound = limits.lower_bound_ns if bound_ns is None else bound_ns
    if limits.loops_counted_once or not bound:
        return breakdown_line(f)
    binding = f" ({limits.binding})" if bound == limits.lower_bound_ns else ""
    above = "at" if makespan == bound else f"{100 * (makespan / bound - 1):.1f}% above"
    return f"{above} the lower bound{binding}: {breakdown_line(f)}"


def change_text(a: DerivedColumns, b: DerivedColumns) -> str:
    """Return in one line why A takes longer, or shorter, than B: the largest increase is the main cause.

    Parameters
    ----------
    a, b : DerivedColumns
    """
    difference = change(a, b)
    total = a.trace.makespan_ns - b.trace.makespan_ns
    if not total:
        return "equally fast" if difference.parts else "the same"
    more = _subtract(_terms(a, difference.a), _terms(b, difference.b))
    others = [part for part in more if part.startswith("for ")]
    if len({more[part] > 0 for part in others}) > 1:  # one device in place of another
        more[f"for {_OTHERS}"] = sum(more.pop(part) for part in others)
    speed = f"{format_duration(abs(total))} {'slower' if total > 0 else 'faster'}"
    if total < 0:
        return f"{speed}: {_signed_terms(more, total, a, b, difference)}"
    cause = max(more, key=lambda part: (more[part], part != "compute"))
    because, ns = _cause_text(a, b, difference, cause), more.pop(cause)
    if not any(more.values()):
        return f"{speed} because {because}"
    terms = _signed_terms(more, total - ns, a, b, difference)
    return f"{speed}, mainly because {because} ({_signed_time(ns)}); {terms}"


def _terms(f: DerivedColumns, result: Breakdown) -> dict[str, int]:
    """Return the parts as named in a line: waits by their cause (``for gpu1``), or all of them as bubble."""
    if is_pipeline(f):
        bubble = sum(result.bubble.values())
        terms = {part: ns for part, ns in result.parts.items() if part not in REASONS}
        # On several workers, the policy's part also counts time beside other tasks
        terms["policy"] = f.trace.makespan_ns - sum(terms.values()) - bubble
        return {part: ns for part, ns in (terms | {"bubble": bubble}).items() if ns}
    terms = Counter({part: ns for part, ns in result.parts.items() if part not in _ELSEWHERE})
    for name, ns in result.waits_for.items():
        word = name.partition(" ")[0]
        terms[word if word in _WORDS else f"for {name}"] += ns
    return terms


def _part_name(part: str, f: DerivedColumns) -> str:
    return _WORDS[part][0].format(policy=f.policy) if part in _WORDS else f"waiting {part}"


def _phases(difference: MakespanChange) -> str:
    """Return in words how much longer a bubble is in each phase."""
    longer = _subtract(difference.a.bubble, difference.b.bubble)
    phases = ", ".join(f"{name} {_signed_time(longer[name])}" for name in BUBBLE if name in longer)
    return f" ({phases})" if phases else ""


def _signed_terms(
    more: Mapping[str, int], total: int, a: DerivedColumns, b: DerivedColumns, difference: MakespanChange
) -> str:
    """Return the three largest parts in words, and the sum of the rest and of those below a twentieth."""
    largest = sorted((part for part in more if more[part]), key=lambda part: -abs(more[part]))
    listed = [part for part in largest[:3] if 20 * abs(more[part]) >= abs(more[largest[0]])]
    about = {"bubble": _phases(difference)}
    terms = [
        f"{_signed_time(more[part])} {_part_name(part, a if more[part] > 0 else b)}{about.get(part, '')}"
        for part in listed
    ]
    if remainder := total - sum(more[part] for part in listed):
        terms.append(f"{_signed_time(remainder)} other")
    return ", ".join(terms)


def _cause_text(a: DerivedColumns, b: DerivedColumns, difference: MakespanChange, part: str) -> str:
    """Return in words what makes a part of the makespan longer."""
    device = difference.a.device
    if part == "issue" and not _launches_ahead(a) and _launches_ahead(b):
        return "the host waits for each kernel"
    if part == "bubble":
        longer = _subtract(difference.a.waits_for, difference.b.waits_for)
        whom = max(longer, key=lambda name: longer[name], default="")
        return _WORDS[part][1] + _phases(difference) + (f", most of it waiting for {whom}" if whom else "")
    if part == "compute":
        ns_a, ns_b = _durations_ns(a, device), _durations_ns(b, difference.b.device)
        if len(ns_a) != len(ns_b):
            return f"{device} has {'more' if len(ns_a) > len(ns_b) else 'other'} ops to execute"
        mostly = 2 * int(ns_a.sum() - ns_b.sum()) >= difference.parts[part]
        return "its ops take longer to execute" if mostly else f"{device} executes less at once"
    if part not in _WORDS:
        return f"{device} waits {part}"
    return _WORDS[part][1].format(device=device, policy=a.policy)


def _durations_ns(f: DerivedColumns, device: str) -> IntArray:
    """Return how long each task of a device lasted; empty without a device."""
    mask = f.trace.executed & (f.device == (f.machine.device_index(device) if device else UNSET))
    return np.asarray(f.end[mask] - f.begins[mask])


def _launches_ahead(f: DerivedColumns) -> bool:
    """Whether any launched task was taken before its inputs were there."""
    return bool((~f.by_worker & (f.taken < f.data[: f.n])).any())


def _signed_time(ns: int) -> str:
    return f"{'-' if ns < 0 else '+'}{format_duration(abs(ns))}"
