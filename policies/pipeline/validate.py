"""Check whether an order is a valid schedule, and say in words why not.

Two kinds of mistakes:

* The programs have the wrong actions: one is missing, duplicate or impossible (a stage or micro-batch
  that does not exist, a backward both whole *and* split, an action on a rank that does not hold what
  it needs). This is wrong input: `InputError`, with all mistakes at once.
* The programs have the right actions in an order that cannot run: some ranks wait for each other in
  a cycle. This is a run that cannot go on: `StuckError`, with the cycle.

    rank 0: 0F0 0B0 0F1 0B1        rank 0 waits with 0B0 for 1B0 of rank 1,
    rank 1: 1F1 1F0 1B0 1B1        rank 1 waits with 1F1 for 0F1 of rank 0, which stands behind 0B0
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from policies.pipeline.pipeline_schedule import PHASES, Action, Phase, Schedule, Slot
from sim.base.errors import InputError, StuckError
from sim.base.units import format_count

# ----------------------------------------------------------------------------------------------------------
# The inputs of each action, and where they are computed.
#
#     F(s, k)           F(s-1, k)
#     R(s, k)           F(s, k)
#     B, I of (s, k)    F(s, k), R(s, k) if there is one, and B or I of (s+1, k)
#     W(s, k)           I(s, k)
#
# These are the edges of the graph of a pipeline's actions; together with the order of each rank's
# program they determine all times.

Place: TypeAlias = tuple[int, int]
"""(rank, position in its program)."""


class Dependencies:
    """The inputs of every action of a schedule.

    Parameters
    ----------
    schedule : Schedule
        Schedule, not necessarily valid.

    Attributes
    ----------
    place : dict of Action to Place
        Place of each action (the first, if there are several).

    Examples
    --------
    >>> from policies.pipeline.registry import generate
    >>> depends = Dependencies(generate("zb-h1", ranks=2, micro_batches=2))
    >>> [str(need) for need in depends.of(Action(0, "I", 1))]
    ['0F1', '1I1']
    >>> depends.place[Action(1, "I", 1)]
    (1, 3)
    """

    def __init__(self, schedule: Schedule) -> None:
        self.stages, self.in_flight = schedule.stages, schedule.in_flight
        self.place: dict[Action, Place] = {}
        for rank, program in enumerate(schedule.programs):
            for position, slot in enumerate(program):
                for action in slot.parts:
                    self.place.setdefault(action, (rank, position))

    def of(self, slot: Slot) -> list[Action]:
        """Return the inputs of all parts of `slot`, including inputs that no rank computes."""
        if isinstance(slot, Action):  # the usual case, faster this way
            return self._needs(slot)
        return [need for action in slot.parts for need in self._needs(action)]

    def _needs(self, action: Action) -> list[Action]:
        stage, phase, k = action
        if phase == "F":
            if stage:
                return [Action(stage - 1, "F", k)]
            return [Action(self.stages - 1, "F", k - self.in_flight)] if k >= self.in_flight else []
        if phase == "W":
            return [Action(stage, "I", k)]
        needs = [Action(stage, "F", k)]
        if phase != "R":
            if (recompute := Action(stage, "R", k)) in self.place:
                needs.append(recompute)
            if stage + 1 < self.stages:
                split = Action(stage + 1, "I", k)
                needs.append(split if split in self.place else Action(stage + 1, "B", k))
        return needs


# ----------------------------------------------------------------------------------------------------------

_HALVES: tuple[Phase, Phase] = ("I", "W")

_MOST_SHOWN = 12
"""Most mistakes that a message lists before it counts the rest."""

_NOBODY = -1
"""The rank waited for when no rank runs the needed action."""


def validate(
    schedule: Schedule,
    ranks: int | None = None,
    micro_batches: int | None = None,
    chunks: int | None = None,
) -> None:
    """Raise unless `schedule` has these sizes, computes every micro-batch once and can run to its end.

    Raises
    ------
    InputError
        If it has other sizes, or actions are missing, duplicate or impossible; the message lists them.
    StuckError
        If the order deadlocks; the message says which rank waits for what.

    Examples
    --------
    >>> from policies.pipeline.registry import generate
    >>> validate(generate("zb-h1", ranks=4, micro_batches=8))
    """
    for noun, expected, actual in (
        ("rank", ranks, schedule.ranks),
        ("micro-batch", micro_batches, schedule.micro_batches),
        ("chunk", chunks, schedule.chunks),
    ):
        if expected is not None and expected != actual:
            raise InputError(f"the {schedule.name} order has {format_count(actual, noun)}, not {expected}")
    issues = problems(schedule)
    if issues:
        text = "".join(f"\n  - {problem}" for problem in issues[:_MOST_SHOWN])
        more = f"\n  - ... and {len(issues) - _MOST_SHOWN} more" if len(issues) > _MOST_SHOWN else ""
        raise InputError(f"the order of {schedule.name!r} is no schedule:{text}{more}")
    for _ in in_turn(schedule):
        pass


def problems(schedule: Schedule) -> list[str]:
    """Return one sentence for each missing, duplicate or impossible action.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from policies.pipeline.registry import generate
    >>> good = generate("gpipe", ranks=1, micro_batches=1)
    >>> problems(replace(good, programs=(good.programs[0][:1],)))
    ['0B0 is missing: rank 0 runs 0F0 and never its backward (0B0, or 0I0 and 0W0)']
    """
    issues: list[str] = []
    places: dict[Action, list[Place]] = {}
    for rank, program in enumerate(schedule.programs):
        for position, slot in enumerate(program):
            for action in slot.parts:
                if problem := _find_range_error(schedule, action):
                    issues.append(f"rank {rank}, position {position}: {problem}")
                else:
                    places.setdefault(action, []).append((rank, position))
    for action, where in places.items():
        if len(where) > 1:
            spots = ", ".join(f"rank {rank} position {position}" for rank, position in where)
            issues.append(f"{action} is doubled: it stands at {spots}")
    for action, where in places.items():
        home = schedule.rank_of(action.stage, action.micro_batch)
        reason = f"micro-batch {action.micro_batch} of stage {action.stage} is on rank {home}"
        for rank, position in where:
            if rank != home:
                issues.append(f"{action} is impossible on rank {rank} (position {position}): {reason}")
    for stage in range(schedule.stages):
        for k in range(schedule.micro_batches):
            issues += _check_cell(schedule, stage, k, places)
    return issues


def in_turn(schedule: Schedule) -> Iterator[tuple[int, Slot, list[Action]]]:
    """Yield each slot, with its rank and inputs, after all its inputs.

    Raises
    ------
    StuckError
        If no rank can go on.
    """
    depends = Dependencies(schedule)
    computed: set[Action] = set()
    done = [0] * schedule.ranks
    sleepers: dict[Action, list[int]] = {}
    awake = list(reversed(range(schedule.ranks)))
    while awake:
        rank = awake.pop()
        program = schedule.programs[rank]
        while done[rank] < len(program):
            slot = program[done[rank]]
            needs = depends.of(slot)
            if not computed.issuperset(needs):
                missing = next(need for need in needs if need not in computed)
                sleepers.setdefault(missing, []).append(rank)
                break
            yield rank, slot, needs
            done[rank] += 1
            computed.update(slot.parts)
            for action in slot.parts:
                if action in sleepers:
                    awake.extend(sleepers.pop(action))
    if done != [len(program) for program in schedule.programs]:
        raise StuckError(explain_deadlock(schedule, done))


def explain_deadlock(schedule: Schedule, done: Sequence[int]) -> str:
    """Return why no rank can go on after running the first ``done[rank]`` slots of its program.

    Parameters
    ----------
    schedule : Schedule
        Schedule that is stuck.
    done : sequence of int
        Number of slots that each rank has run.

    Returns
    -------
    str
        One line per waiting rank, and the cycle of ranks that wait for each other.
    """
    depends = Dependencies(schedule)
    ran = {a for r, count in enumerate(done) for slot in schedule.programs[r][:count] for a in slot.parts}
    waits: dict[int, int] = {}
    lines = [f"the order of {schedule.name!r} deadlocks, no rank can go on:"]
    for rank, count in enumerate(done):
        if count == len(schedule.programs[rank]):
            continue
        slot = schedule.programs[rank][count]
        need = next(n for n in depends.of(slot) if n not in ran)
        owner, position = depends.place.get(need, (_NOBODY, 0))
        waits[rank] = owner
        where = f" of rank {owner} (position {position})"
        if owner == _NOBODY:
            where = ", which no rank runs"
        elif owner == rank:
            later = f"later on the same rank (position {position})"
            where = f", which stands {'in the same slot' if position == count else later}"
        lines.append(f"  rank {rank} waits at position {count} with {slot} for {need}{where}")
    return "\n".join([*lines, f"  {_circle(waits)}"])


def _circle(waits: dict[int, int]) -> str:
    """Return the cycle found by following waits from the first waiting rank until a rank repeats."""
    if _NOBODY in waits.values():
        return "add the actions that no rank runs"
    path = [next(iter(waits))]
    while waits[path[-1]] not in path:
        path.append(waits[path[-1]])
    circle = path[path.index(waits[path[-1]]) :]
    if len(circle) == 1:
        return f"rank {circle[0]} waits for itself: put what it waits for before it"
    chain = " waits for ".join(f"rank {rank}" for rank in [*circle, circle[0]])
    return f"the circle: {chain}; one of these ranks must run what it is asked for earlier"


def _find_range_error(schedule: Schedule, action: Action) -> str | None:
    for noun, these, number, size in (
        ("stage", "stages", action.stage, schedule.stages),
        ("micro-batch", "they", action.micro_batch, schedule.micro_batches),
    ):
        if not 0 <= number < size:
            return f"{action} is impossible: there is no {noun} {number}, {these} are 0..{size - 1}"
    return None


def _check_cell(schedule: Schedule, stage: int, k: int, places: dict[Action, list[Place]]) -> Iterator[str]:
    """Yield what one micro-batch of one stage lacks or repeats: F once, and either B or I with W."""
    has = Counter(phase for phase in PHASES if Action(stage, phase, k) in places)
    rank = schedule.rank_of(stage, k)
    if not has:
        yield f"{stage}F{k} and its backward are missing: rank {rank} never runs them"
        return
    if not has["F"]:
        yield f"{stage}F{k} is missing: rank {rank} runs a later phase of it and never its forward"
    if not (has["B"] or has["I"] or has["W"] or schedule.forward_only):
        either = f"({stage}B{k}, or {stage}I{k} and {stage}W{k})"
        yield f"{stage}B{k} is missing: rank {rank} runs {stage}F{k} and never its backward {either}"
    if has["B"] and (has["I"] or has["W"]):
        halves = " and ".join(f"{stage}{phase}{k}" for phase in _HALVES if has[phase])
        yield f"{stage}B{k} is impossible beside {halves}: the backward is in one piece or in two, not both"
    elif has["I"] and not has["W"]:
        yield f"{stage}W{k} is missing: rank {rank} runs {stage}I{k} and never the weight gradient"
    elif has["W"] and not has["I"]:
        yield f"{stage}I{k} is missing: rank {rank} runs {stage}W{k} and never the input gradient"
