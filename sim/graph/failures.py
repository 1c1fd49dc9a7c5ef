"""Failing ops: which tasks fail is decided before time 0, from the seed alone.

An op may carry the attribute ``fails``::

    true                    each time it runs
    {"at": [0, 2]}          in these steps; a step is an iteration of the graph
    {"probability": p}      with probability p, each time it runs

A worker notices once it has executed the op; a launching host, when the launch returns, and nothing reaches
the stream. What happens to the rest of the run is up to the policy (`sim.policy.Policy.on_failure`).

Like noise, a failure is drawn from the seed, the op's name, the step and the enclosing loops. So all policies
meet the same failures, and adding steps or other failing ops changes none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeGuard

import numpy as np

from sim.base.errors import GraphError, InputError
from sim.graph.graph import Graph

DONE: Final = 0
FAILED: Final = 1
ABORTED: Final = 2

STATUSES: Final = ("done", "failed", "aborted")
"""The outcome of a task that ran: it is done; it failed; or it is a Send or Recv that could not complete
because another op of its step had failed."""


class Failures:
    """The tasks of a job that fail.

    Parameters
    ----------
    graph : Graph
        A graph whose ops carry the attribute.
    iterations, seed : int
        The iterations and the seed of the job.

    Raises
    ------
    GraphError
        An op names a step that the run does not have.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("training")
    >>> _ = b.op("read"), b.op("step", inputs=["read"], attributes={"fails": {"at": [1]}})
    >>> failures = Failures(b.build(), iterations=2, seed=0)
    >>> [failures.fails(1, step) for step in (0, 1)]
    [False, True]
    """

    def __init__(self, graph: Graph, iterations: int, seed: int) -> None:
        self._names, self._seed = graph.op_names, seed
        self._when: dict[int, Any] = {}
        for op, fails in graph.attribute("fails").items():
            try:
                self._when[op] = _in_steps(fails, iterations)
            except InputError as error:
                name = graph.op_names[op]
                raise GraphError(f"op {name!r}: fails: {error}").about(name, "fails") from None

    @classmethod
    def of(cls, graph: Graph, iterations: int, seed: int) -> Failures | None:
        """Return the failures of a graph; None if nothing ever fails."""
        failures = cls(graph, iterations, seed)
        return failures if any(failures._when.values()) else None

    def fails(self, op: int, iteration: int, frame: str = "") -> bool:
        """Whether an op fails in a step and an iteration of its loops (``outer:2/inner:0``)."""
        when = self._when.get(op, False)
        if isinstance(when, bool):
            return when
        if "at" in when:
            return iteration in when["at"]
        name = self._names[op].encode()
        rng = np.random.default_rng([self._seed, *b"failure of ", *name, 0, iteration, *frame.encode()])
        return bool(rng.random() < when["probability"])


def has_probability(value: Any) -> TypeGuard[Mapping[str, float]]:
    """Whether a value is ``{"probability": p}``."""
    if not isinstance(value, Mapping) or set(value) != {"probability"}:
        return False
    p = value["probability"]
    return isinstance(p, int | float) and not isinstance(p, bool) and 0 <= p <= 1


def read_fails(value: Any) -> bool | Mapping[str, Any]:
    """Return the attribute ``fails`` unchanged if it has one of its forms.

    Raises
    ------
    InputError
        It has none of them.
    """
    if isinstance(value, bool) or has_probability(value):
        return value
    if isinstance(value, Mapping) and set(value) == {"at"}:
        steps = value["at"]
        if isinstance(steps, list | tuple) and steps and all(type(k) is int and k >= 0 for k in steps):
            return value
    raise InputError(
        f"{value!r} does not say when an op fails; give true, {{at: [steps, counted from 0]}} or "
        "{probability: p}"
    )


def _in_steps(fails: bool | Mapping[str, Any], steps: int) -> bool | Mapping[str, Any]:
    """Return `fails` if every step that it names is one of `steps` steps.

    Raises
    ------
    InputError
        A step does not exist.
    """
    if not isinstance(fails, bool) and max(fails.get("at", [0])) >= steps:
        are = "is one step, step 0" if steps == 1 else f"are {steps} steps, 0 to {steps - 1}"
        raise InputError(f"there is no step {max(fails['at'])}: there {are}")
    return fails


def in_step(value: Any, step: int, steps: int) -> bool | Mapping[str, Any]:
    """Return the attribute ``fails`` for the copy of an op that stands for one of several steps.

    Raises
    ------
    InputError
        It has none of its forms, or names a step that does not exist.

    Examples
    --------
    >>> [in_step({"at": [1]}, step, 2) for step in (0, 1)]
    [False, True]
    """
    fails = _in_steps(read_fails(value), steps)
    return fails if isinstance(fails, bool) or "at" not in fails else step in fails["at"]
