"""What a kind of workload is: some keys of ``workload:``, and the graph that they stand for."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from devices.describe.quantities import Strict
from scenarios.file.document import Document, Loc
from sim.base import plugins
from sim.base.errors import InputError, SimError, UnknownNameError
from sim.graph.graph import Graph
from sim.machine.machine import Machine

if TYPE_CHECKING:
    from scenarios.fields.policy_fields import PolicyFields
    from sim.trace import Trace


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
    deciders : str
        The group of plugins that its policies are of, where a policy makes the graph: a pipeline's schedule,
        the batcher of a serving engine; else nothing: a policy decides about a graph that is there.
    decider : str
        What one of them is called, and whose it is.
    """

    runs_code: ClassVar[bool] = False
    deciders: ClassVar[str] = ""
    decider: ClassVar[tuple[str, str]] = ("schedule", "a pipeline")

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
        if not self.deciders:
            raise InputError(f"{type(self).__name__} must define build()")
        what, _ = self.decider
        raise document.error(self.place, f"has a graph only under a {what}; run one of its cases")

    @property
    def place(self) -> Loc:
        """Where in a scenario a kind stands that has one key."""
        return ("workload", next(iter(type(self).model_fields)))

    def check_schedule(self, policy: PolicyFields) -> None:
        """Refuse a policy of the group `deciders` with options that it has not.

        It is asked when the file is loaded, of every policy in it, and generates nothing.

        Raises
        ------
        InputError
            There is no such option, or it has another kind of value; the path begins with the option.
        """

    def misfit(self, document: Document, policy: PolicyFields) -> str | None:
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
        self, document: Document, machine: Machine | None, policy: PolicyFields, loc: Loc, *, seed: int = 0
    ) -> Work:
        """Return what runs under one of the `deciders`.

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
        raise TypeError(f"{type(self).__name__} has no deciders")

    def recording(self, document: Document) -> Graph | None:
        """Return the graph of a recording, which may know its machine; None: it is none."""
        return None

    def default_machine(self) -> Mapping[str, Any] | None:
        """Return the machine that is meant when a scenario has none; None: it must have one."""
        return None

    def default_policy(self) -> Mapping[str, Any] | None:
        """Return what is meant where the scenario's ``policy:`` says nothing; None: what is always meant."""
        return None

    def what_ifs(self, policy: PolicyFields) -> Mapping[str, Mapping[str, str]]:
        """Return settings that `sim whatif` tries, by what they are called; none: it changes the graph."""
        return {}

    def report(self, trace: Trace) -> dict[str, Any]:
        """Return what the summary of a run has besides, by key."""
        return {}


# ----------------------------------------------------------------------------------------------------------
# Where in a scenario an error about an op belongs.
#
# What builds and runs graphs knows names, not files. Its errors say which op they are about
# (`SimError.about`), and here the name leads back to where that op is written:
#
#     about("w/cond", "trips")  ──►  w  ──►  workload.ops.w.attributes.trips
#     about("b")                ──►  b  ──►  workload.ops.b
#     about("w/body/s")         ──►  s of w's function ──►  workload.functions.step.ops.s


def op_place(error: SimError, document: Document) -> Loc:
    """Return the path of the op that `error` is about, or of its attribute; else of the workload.

    Examples
    --------
    >>> from pathlib import Path
    >>> from scenarios.file.yaml_read import read_yaml_text
    >>> root = read_yaml_text("workload: {ops: {p: {attributes: {outcome: 7}}, f: {}}}", "s.yaml")
    >>> document = Document(root, Path("s.yaml"))
    >>> op_place(SimError("op 'p' has outcome 7").about("p", "outcome"), document)
    ('workload', 'ops', 'p', 'attributes', 'outcome')
    >>> op_place(SimError("op 'p' fails, and the error does not say that it is about it"), document)
    ('workload',)
    >>> op_place(SimError("graph 'g' has a cycle: f/0 -> p -> f/0").about("f/0"), document)
    ('workload', 'ops', 'f')
    """
    if error.op is None or document.at(("workload", "ops")) is None:
        return ("workload",)
    found = [loc for loc, _ in _ops(error.op, document)]
    for loc in reversed(found):
        name = error.attribute or ""
        for attribute in ((*loc, "attributes", name), (*loc, name)):
            if document.at(attribute) is not None:
                return attribute
    return found[-1] if found else ("workload", "ops")


def op_message(error: SimError, document: Document) -> str:
    """Return what an error says of ops of the file: one that was made of another is called what that is.

    Examples
    --------
    >>> from pathlib import Path
    >>> from scenarios.file.yaml_read import read_yaml_text
    >>> document = Document(read_yaml_text("workload: {ops: {if: {}}}", "s.yaml"), Path("s.yaml"))
    >>> op_message(SimError("op 'if/merge0' decides nothing").about("if/merge0"), document)
    "op 'if' decides nothing"
    """
    found = [] if error.op is None else list(_ops(error.op, document))
    return str(error).replace(repr(error.op), repr(found[-1][1])) if found else str(error)


def _ops(whole: str, document: Document) -> Iterator[tuple[Loc, str]]:
    """Yield where an op is written, with its name; before an op of a function, the op that stands for it."""
    scope: Loc = ("workload", "ops")
    name = whole
    while name:
        op = name
        while document.at((*scope, op)) is None:  # parts of a split op, and ops of its functions: NAME/...
            op, slash, _ = op.rpartition("/")
            if not slash:
                return
        key, name = "body", name[len(op) + 1 :]
        yield (*scope, op), whole.removesuffix(f"/{name}")
        kind = document.at((*scope, op, "kind"))
        if kind is None or kind.value != "call":
            side, _, name = name.partition("/")
            key = "cond" if side == "test" else side
        function = document.at((*scope, op, "attributes", key))
        if function is None:
            return
        scope = ("workload", "functions", str(function.value), "ops")


# ----------------------------------------------------------------------------------------------------------
# Kinds of workload, each a class whose fields are the keys of ``workload:``.
#
#     entry point of group sim.workloads        workload: {ops: {...}}         the name is the key that
#     ops = "scenarios.workloads...:InlineOps"                ───                  tells the kind, and a field
#
# The kinds of this project and of other packages are found alike, by name, and one is loaded when a scenario
# names it: ``sim run`` of a few ops imports no pipelines and no importers. The schema is made of all of them.

_GROUP: Final = "sim.workloads"


def kind_names() -> list[str]:
    """Return the keys that tell a kind, sorted; nothing is imported."""
    return plugins.names(_GROUP)


def kinds_in(keys: Collection[str]) -> list[str]:
    """Return the kinds that a workload with such keys names; other packages are asked where none is ours."""
    return [kind for kind in plugins.built_in(_GROUP) if kind in keys] or [
        kind for kind in kind_names() if kind in keys
    ]


def kind_of(name: str) -> type[Workload] | None:
    """Return the kind of that name; of what is no kind, or cannot be loaded, warn and return None."""
    try:
        kind = plugins.lookup(_GROUP, name)
    except UnknownNameError:  # it cannot be loaded: a warning says why
        return None
    fields = kind.model_fields if isinstance(kind, type) and issubclass(kind, Workload) else {}
    if name in {field.alias or key for key, field in fields.items()}:
        return kind  # type: ignore[no-any-return]
    warnings.warn(
        f"the kind of workload {name!r} is left out: {kind!r:.80} should be a class that extends "
        f"scenarios.workloads.workload.Workload and has a field {name}",
        plugins.PluginWarning,
        stacklevel=2,
    )
    return None


def every_kind() -> Mapping[str, type[Workload]]:
    """Load all kinds; return them by name, sorted."""
    found = {name: kind_of(name) for name in kind_names()}
    return {name: kind for name, kind in found.items() if kind is not None}
