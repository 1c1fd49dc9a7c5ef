"""What a kind of workload is: some keys of ``workload:``, and the graph that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from devices.describe.quantities import Strict
from scenarios.file.document import Document, Loc
from sim.graph.graph import Graph
from sim.machine.machine import Machine
from sim.words.errors import InputError

if TYPE_CHECKING:
    from scenarios.fields.policy_fields import Policy
    from sim.trace import Trace

__all__ = ["Work", "Workload"]


class Work(NamedTuple):
    """What runs, where the policy has a say in it: a schedule makes the graph.

    Attributes
    ----------
    graph, machine
    report : callable
        ``report(trace)`` returns what the summary of a run has besides, by key.
    fits : callable
        ``fits(trace, advise)`` raises a `RunError` when the run needs more than the machine has, and says,
        if asked for advice, what would help.
    """

    graph: Graph
    machine: Machine
    report: Callable[[Trace], dict[str, Any]]
    fits: Callable[[Trace, bool], None]


class Workload(Strict):
    """One kind of workload; its fields are the keys that it accepts.

    Override `build`, and `default_machine` where a machine may be left out. The kind becomes known by
    an entry point of the group ``sim.workloads``; its name is the key that tells the kind, one of the fields.

    Attributes
    ----------
    runs_code : bool
        Whether `build` runs other people's code, which has to be allowed.
    """

    runs_code: ClassVar[bool] = False

    def build(self, document: Document, machine: Machine) -> Graph:
        """Return the graph.

        Parameters
        ----------
        document : Document
            The scenario: finds files beside it, and places for errors (this workload's path begins with
            ``"workload"``).
        machine : Machine
            What it will run on.

        Raises
        ------
        InputError
            The graph cannot be built, or names what the machine has not.
        """
        raise InputError(f"{type(self).__name__} must define build()")

    def schedules(self) -> Collection[str]:
        """Return the policies that are schedules of this workload; none: any policy of the project."""
        return ()

    def check_schedule(self, policy: Policy) -> None:
        """Refuse a policy that names one of the `schedules` with options that it has not.

        It is asked when the file is loaded, of every policy in it, and generates nothing.

        Raises
        ------
        InputError
            There is no such option, or it has another kind of value; the path begins with the option.
        """

    def misfit(self, document: Document, policy: Policy) -> str | None:
        """Return in a few words why sizes that are each right do not fit one another; None: they do.

        A sweep asks before it runs anything, leaves such points out, and counts them by these words.
        """
        return None

    def own_kinds(self) -> Collection[str]:
        """Return the kinds of op that it names as its own."""
        return ()

    def intra_op_threads(self, default: int | None) -> int | None:
        """Return the size of TensorFlow's intra-op pool, which is `default` where it says nothing of it."""
        return default

    def asks_cost_models(self) -> bool:
        """Whether cost models of devices are asked to make the graph, whose ops then all have durations."""
        return False

    def timed(self, document: Document) -> Graph | None:
        """Return what the cost models of devices are asked about to make the graph; None: nothing."""
        return None

    def work(
        self, document: Document, machine: Machine | None, policy: Policy, loc: Loc, *, seed: int = 0
    ) -> Work:
        """Return what runs under one of the `schedules`.

        Parameters
        ----------
        document : Document
        machine : Machine or None
            The scenario's, if it has one.
        policy : Policy
            Names the schedule, with its options.
        loc : Loc
            Where the policy stands.
        seed : int

        Raises
        ------
        InputError
            The schedule cannot be made.
        """
        raise TypeError(f"{type(self).__name__} has no schedules")

    def recording(self, document: Document) -> Graph | None:
        """Return the graph of a recording, which may know its machine; None: it is none."""
        return None

    def default_machine(self) -> Mapping[str, Any] | None:
        """Return the machine that is meant when a scenario has none; None: it must have one."""
        return None

    def default_policy(self) -> Mapping[str, Any] | None:
        """Return what is meant where the scenario's ``policy:`` says nothing; None: what is always meant."""
        return None

    def report(self, trace: Trace) -> dict[str, Any]:
        """Return what the summary of a run has besides, by key."""
        return {}
