"""Base class of the kinds of workload: some keys of ``workload:``, and the graph that they define."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from devices.describe.quantities import Strict
from scenarios.file.document import Document, Loc
from sim.base import plugins
from sim.base.errors import InputError, ScenarioError, SimError, UnknownNameError
from sim.graph.graph import Graph
from sim.machine.machine import Machine

if TYPE_CHECKING:
    from scenarios.fields.policy_fields import PolicyFields
    from sim.trace import Trace


class Work(NamedTuple):
    """What runs when the policy makes the graph, as a schedule does.

    Attributes
    ----------
    graph, machine
    report : callable
        ``report(trace)`` returns the additional keys of the run's summary.
    fits : callable
        ``fits(trace, advise)`` raises a `RunError` when the run needs more than the machine has; with
        `advise` the error says what would help.
    """

    graph: Graph
    machine: Machine
    report: Callable[[Trace], dict[str, Any]]
    fits: Callable[[Trace, bool], None]


class Workload(Strict):
    """One kind of workload; its fields are the keys that it accepts.

    Override `build`, and `default_machine` if a machine may be omitted. A kind is registered by an entry
    point of the group ``sim.workloads``; its name is the key that selects the kind, one of the fields.

    Attributes
    ----------
    runs_code : bool
        Whether `build` runs other people's code, which has to be allowed.
    deciders : str
        Plugin group of its policies if the policy makes the graph: a pipeline's schedule, the batcher
        of a serving engine. Empty if a policy only decides about an existing graph.
    decider : str
        What one of them is called, with its owner.
    """

    runs_code: ClassVar[bool] = False
    deciders: ClassVar[str] = ""
    decider: ClassVar[tuple[str, str]] = ("schedule", "a pipeline")

    def build(self, document: Document, machine: Machine) -> Graph:
        """Return the graph.

        Parameters
        ----------
        document : Document
            The scenario, which finds files beside it and positions for errors (this workload's path begins
            with ``"workload"``).
        machine : Machine
            The machine on which the graph will run.

        Raises
        ------
        InputError
            The graph cannot be built, or names something that the machine lacks.
        """
        if not self.deciders:
            raise InputError(f"{type(self).__name__} must define build()")
        word, _ = self.decider
        raise document.error(self.place, f"has a graph only under a {word}; run one of its cases")

    @property
    def place(self) -> Loc:
        """Path in a scenario of a kind that has one key."""
        return ("workload", next(iter(type(self).model_fields)))

    @contextmanager
    def placing_errors(self, document: Document, policy: PolicyFields, loc: Loc) -> Iterator[None]:
        """Give errors raised inside their place: the policy at `loc`, or the workload's only key."""
        try:
            yield
        except ScenarioError:
            raise
        except InputError as error:
            if error.path or isinstance(error, UnknownNameError):  # an option of the policy
                raise document.wrong(error, loc) from error
            # Which, where several are compared
            prefix = "" if str(policy.name) in str(error) else f"{policy.name}: "
            raise document.error(self.place, f"{prefix}{error}") from error

    def check_schedule(self, policy: PolicyFields) -> None:
        """Raise if a policy of the group `deciders` has an unknown option.

        Called when the file is loaded, for every policy in it; generates nothing.

        Raises
        ------
        InputError
            There is no such option, or its value is of the wrong type; the path begins with the option.
        """

    def misfit(self, document: Document, policy: PolicyFields) -> str | None:
        """Return in a few words why sizes, each valid alone, do not fit one another; None if they do.

        A sweep asks this before it runs anything, leaves such points out, and counts them by these words.
        """
        return None

    def own_kinds(self) -> Collection[str]:
        """Return the op kinds that the workload declares as its own."""
        return ()

    def intra_op_threads(self, default: int | None) -> int | None:
        """Return the size of TensorFlow's intra-op pool, `default` if the workload does not give one."""
        return default

    def asks_cost_models(self) -> bool:
        """Whether making the graph asks cost models of devices; then all its ops have durations."""
        return False

    def ops_to_time(self, document: Document) -> Graph | None:
        """Return the ops that cost models of devices time while the graph is made; None: there are none."""
        return None

    def work(
        self, document: Document, machine: Machine | None, policy: PolicyFields, loc: Loc, *, seed: int = 0
    ) -> Work:
        """Return what runs under one of the `deciders`.

        Parameters
        ----------
        document : Document
        machine : Machine or None
            The scenario's machine, if it has one.
        policy : PolicyFields
            Names the schedule, with its options.
        loc : Loc
            Path of the policy.
        seed : int

        Raises
        ------
        InputError
            The schedule cannot be made.
        """
        raise TypeError(f"{type(self).__name__} has no deciders")

    def recording(self, document: Document) -> Graph | None:
        """Return the graph of a recording, which may know its machine; None if it is not a recording."""
        return None

    def default_machine(self) -> Mapping[str, Any] | None:
        """Return the machine to use when a scenario has none; None if it must have one."""
        return None

    def default_policy(self) -> Mapping[str, Any] | None:
        """Return the policy to use if the scenario's ``policy:`` is empty; None for the general default."""
        return None

    def what_ifs(self, policy: PolicyFields) -> Mapping[str, Mapping[str, str]]:
        """Return the settings that `sim whatif` tries, by label; if empty, it tries changes of the graph."""
        return {}

    def report(self, trace: Trace) -> dict[str, Any]:
        """Return the additional keys of the run's summary."""
        return {}


# ----------------------------------------------------------------------------------------------------------
# Find the position in a scenario of the op that an error is about.
#
# The code that builds and runs graphs knows names, not files. Its errors say which op they are about
# (`SimError.about`), and here that name leads back to where the op is written:
#
#     about("w/cond", "trips")  ──►  w  ──►  workload.ops.w.attributes.trips
#     about("b")                ──►  b  ──►  workload.ops.b
#     about("w/body/s")         ──►  s of w's function ──►  workload.functions.step.ops.s


def op_place(error: SimError, document: Document) -> Loc:
    """Return the path of the op that `error` is about, or of its attribute; otherwise the workload's.

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
    locs = [] if error.op is None else [loc for loc, _ in _ops(error.op, document)]
    for loc in reversed(locs):
        name = error.attribute or ""
        for attribute in ((*loc, "attributes", name), (*loc, name)):
            if (node := document.at(attribute)) is not None:
                named = ((key, item.child("from") or item) for key, item in node.items())
                return (*attribute, *[key for key, source in named if str(source.value) == error.entry][:1])
    if not locs and error.op is not None and document.at(("workload", "ops")) is not None:
        return ("workload", "ops")
    return locs[-1] if locs else ("workload",)


def op_message(error: SimError, document: Document) -> str:
    """Return the message of an error, with names of derived ops replaced by the op in the file.

    Examples
    --------
    >>> from pathlib import Path
    >>> from scenarios.file.yaml_read import read_yaml_text
    >>> document = Document(read_yaml_text("workload: {ops: {if: {}}}", "s.yaml"), Path("s.yaml"))
    >>> op_message(SimError("op 'if/merge0' decides nothing").about("if/merge0"), document)
    "op 'if' decides nothing"
    """
    ops = [] if error.op is None else list(_ops(error.op, document))
    return str(error).replace(repr(error.op), repr(ops[-1][1])) if ops else str(error)


def _ops(path: str, document: Document) -> Iterator[tuple[Loc, str]]:
    """Yield path and name of each op in `path`; an op of a function follows the op that stands for it."""
    workload: Loc = ("workload",)
    name = path
    session, _, tail = path.partition("/")
    if document.at(("workload", "sessions", session)) is not None:  # SESSION/OP, or SESSION/BATCH/OP
        workload = ("workload", "sessions", session, "workload")
        batch, _, after = tail.partition("/")
        name = after if batch.isdecimal() and document.at((*workload, "ops", tail)) is None else tail
    scope: Loc = (*workload, "ops")
    while name:
        op = name
        while document.at((*scope, op)) is None:  # parts of a split op, and ops of its function: NAME/...
            op, slash, _ = op.rpartition("/")
            if not slash:
                return
        key, name = "body", name[len(op) + 1 :]
        yield (*scope, op), path.removesuffix(f"/{name}")
        kind = document.at((*scope, op, "kind"))
        if kind is None or kind.value != "call":
            side, _, name = name.partition("/")
            key = "cond" if side == "test" else side
        function = document.at((*scope, op, "attributes", key))
        if function is None:
            return
        scope = (*workload, "functions", str(function.value), "ops")


# ----------------------------------------------------------------------------------------------------------
# Kinds of workload, each a class whose fields are the keys of ``workload:``.
#
#     entry point of group sim.workloads        workload: {ops: {...}}         its name is the key that
#     ops = "scenarios.workloads...:InlineOps"                ───                  selects the kind, a field
#
# Kinds of this project and of other packages are found alike, by name, and loaded when a scenario names
# them: ``sim run`` of a few ops imports no pipelines and no importers. The schema includes all of them.

_GROUP: Final = "sim.workloads"


def kind_names() -> list[str]:
    """Return the keys that select a kind, sorted; nothing is imported."""
    return plugins.names(_GROUP)


def kinds_in(keys: Collection[str]) -> list[str]:
    """Return the kinds that the keys of a workload name; other packages are asked only if none is ours."""
    return [kind for kind in plugins.built_in(_GROUP) if kind in keys] or [
        kind for kind in kind_names() if kind in keys
    ]


def kind_of(name: str) -> type[Workload] | None:
    """Return the kind of that name; warn and return None if it is not a kind or cannot be loaded."""
    try:
        kind = plugins.lookup(_GROUP, name)
    except UnknownNameError:  # it cannot be loaded; a warning has said why
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
    """Load all kinds and return them by name, sorted."""
    kinds = {name: kind_of(name) for name in kind_names()}
    return {name: kind for name, kind in kinds.items() if kind is not None}
