"""Auto-tuning: search over placements, each tried in the simulator.

::

    start placements ──► simulate each ──► best ──► move some ops ──► simulate ──► better, or barely worse?
                                            ▲                                        │ yes: go on from there
                                            └────────────────────────────────────────┘ no: go back

Threshold accepting (Dueck and Scheuer 1990, "Threshold accepting: a general purpose optimization
algorithm", J. Comput. Phys. 90): a move may make things worse by a threshold that shrinks to nothing.
It needs no exponential, so the search takes the same path on every machine. A move takes one op or a
connected piece of the graph to another device. Jia et al. 2018 ("Beyond data and model parallelism",
FlexFlow, section 6) found that simulations make good rewards for placement. Simulations use the durations
that the policy may know.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from policies.option_checks import whole
from policies.placement.problem import Problem
from policies.placement.simple import Given
from sim import Graph, Machine, Policy
from sim.base.arrays import IntArray, group_pairs
from sim.base.errors import InputError, RunError
from sim.base.plugins import lookup
from sim.job.build_job import make_job
from sim.job.job import Placement, Tried
from sim.kernel.run import run_job

Evaluate = Callable[[Sequence[int]], int]


class AutoTune(Placement):
    """The best placement found by a seeded search that simulates each candidate.

    Parameters
    ----------
    start : str or sequence of str or Placement
        Starting placements or their names. All are tried; the search goes on from the best, and its result
        is never worse than any of them.
    budget : int
        Number of placements to simulate, including the starting ones.
    seed : int
        Seed of the moves.
    policy : str or Policy
        Policy to simulate under; a name means its defaults.
    evaluate : callable, optional
        ``evaluate(placement)`` returns a makespan in ns from another simulation or a measurement. If it
        raises `RunError`, the placement cannot run.

    Attributes
    ----------
    tried : list of Tried
        Every placement of the last search, in order.

    Raises
    ------
    InputError
        If the budget is below 1 or there is no starting placement.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("four equal ops, two devices")
    >>> for name in "abcd":
    ...     _ = b.op(name, duration_ns=10)
    >>> machine = Machine((Device("gpu0"), Device("gpu1")))
    >>> tune = AutoTune(start="single", budget=20)
    >>> _ = make_job(b.build(), machine, placement=tune)
    >>> tune.tried[0].makespan_ns, tune.tried[-1].best_ns
    (40, 20)
    """

    def __init__(
        self,
        start: str | Placement | Sequence[str | Placement] = ("heft", "greedy"),
        budget: int = 200,
        seed: int = 0,
        policy: str | Policy = "ready-queue",
        evaluate: Evaluate | None = None,
    ) -> None:
        self.start: list[Any] = list(start) if isinstance(start, list | tuple) else [start]
        if not self.start or not all(isinstance(p, str) or hasattr(p, "place") for p in self.start):
            message = f"auto-tune: start must name placements, such as heft; found {start!r}"
            raise InputError(message, path=("start",))
        self.budget = whole("auto-tune", "budget", budget)
        self.seed = whole("auto-tune", "seed", seed, least=0)
        self.policy = policy
        self.evaluate = evaluate

    def place(self, graph: Graph, machine: Machine, cost_ns: Sequence[IntArray]) -> Sequence[int]:
        """Return one device index per op (see `sim.job.job.Placement`); `tried` records the search.

        Raises
        ------
        RunError
            If none of the starting placements can run.
        UnknownNameError
            If a name is not a registered placement or policy.
        """
        evaluate = self.evaluate or self._simulation(graph, machine, cost_ns)
        search = _Search(Problem(graph, machine, cost_ns), evaluate)
        for placement in self.start:
            name = placement if isinstance(placement, str) else type(placement).__name__
            chosen = lookup("sim.placements", placement)() if isinstance(placement, str) else placement
            if len(search.trajectory) < self.budget:
                search.try_placement(name, [int(d) for d in chosen.place(graph, machine, cost_ns)])
        search.walk(self.budget, random.Random(self.seed))
        self.tried = search.trajectory
        if search.best is None:
            assert search.refused is not None
            raise search.refused
        return search.best[1]

    def _simulation(self, graph: Graph, machine: Machine, cost_ns: Sequence[IntArray]) -> Evaluate:
        """Return a simulation in which ops take their known durations."""
        name = self.policy
        policy: Policy = lookup("sim.policies", name)() if isinstance(name, str) else name

        known_ns, ops = np.array(cost_ns), np.arange(len(graph))

        def makespan_ns(placement: Sequence[int]) -> int:
            job = make_job(graph, machine, placement=Given(placement), may_fail=False)
            job.duration_ns = job.known_ns = known_ns[np.asarray(placement), ops]
            return run_job(job, policy).makespan_ns

        return makespan_ns


_MOST_REPEATS: Final = 10_000
"""Moves in a row to placements already tried after which the search ends, whatever its budget."""


class _Search:
    """The state of a search: current placement, best so far, placements tried."""

    def __init__(self, problem: Problem, evaluate: Evaluate) -> None:
        self.problem, self.evaluate = problem, evaluate
        # Colocation group → ops; a group moves as one.
        self.members = group_pairs((group, op) for op, group in enumerate(problem.group_of))
        self.movable = [group for group in self.members if len(problem.devices_of[group]) > 1]
        self.seen: set[tuple[int, ...]] = set()
        self.trajectory: list[Tried] = []
        self.refused: RunError | None = None
        self.best: tuple[int, list[int]] | None = None

    def try_placement(self, name: str, placement: list[int]) -> int | None:
        """Try a placement and return its makespan; None: it cannot run."""
        self.seen.add(tuple(placement))
        try:
            makespan: int | None = self.evaluate(placement)
        except RunError as error:
            makespan, self.refused = None, error
        if makespan is not None and (self.best is None or makespan < self.best[0]):
            self.best = makespan, placement
        self.trajectory.append(Tried(name, makespan, None if self.best is None else self.best[0]))
        return makespan

    def walk(self, budget: int, rng: random.Random) -> None:
        """Search from the best until the budget is used up or nearly everything nearby has been tried."""
        if self.best is None or not self.movable:
            return
        now_ns, now = self.best
        threshold = now_ns // 50  # 2 % worse is tolerated at first
        moves = repeats = 0
        while len(self.trajectory) < budget and moves < 20 * budget and repeats < _MOST_REPEATS:
            name, placement = self._move(now, rng)
            moves, repeats = moves + 1, repeats + 1
            if tuple(placement) in self.seen:
                continue
            repeats = 0
            makespan = self.try_placement(name, placement)
            allowed = threshold * (budget - len(self.trajectory)) // budget
            if makespan is not None and makespan <= now_ns + allowed:
                now_ns, now = makespan, placement

    def _move(self, now: list[int], rng: random.Random) -> tuple[str, list[int]]:
        """Return a placement with an op and some of its neighbours on the same device moved elsewhere."""
        problem = self.problem
        first = self.movable[rng.randrange(len(self.movable))]
        device = rng.choice([d for d in problem.devices_of[first] if d != now[first]])
        size = 1 << rng.randrange(max(1, len(self.movable).bit_length()))
        placement = list(now)
        groups = (group for group in self._piece(now, first, size) if device in problem.devices_of[group])
        ops = [op for group in groups for op in self.members[group]]
        for op in ops:
            placement[op] = device
        return f"{len(ops)} ops to {problem.machine.devices[device].name}", placement

    def _piece(self, now: list[int], first: int, size: int) -> list[int]:
        """Return up to `size` groups on the device of `first` that are connected to it, nearest first."""
        problem = self.problem
        piece = {first: None}
        queue = [first]
        for group in queue:
            for op in self.members[group]:
                for other, _ in (*problem.producers[op], *problem.consumers[op]):
                    leader = problem.group_of[other]
                    if len(piece) < size and leader not in piece and now[other] == now[first]:
                        piece[leader] = None
                        queue.append(leader)
        return list(piece)
