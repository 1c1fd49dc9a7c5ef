"""Turns the names in a scenario into the objects that decide: policy, placement, streams, linearizer.

::

    policy: {name: out-of-order, window: 4, streams: {name: per-branch, spread: next}, synchronisation: issue}
              │                   │          └──► PerBranch(spread="next")             └──► passed on, or set
              └──► OutOfOrder(window=4)

Options are the parameters of the named class or function, so a new policy needs no schema of its own.
A parameter ``timeout_ns`` is written ``timeout: 10us``, and ``limit_bytes`` ``limit: 4MB``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol

from policies.recovery import Recovery
from scenarios.fields.policy_fields import Choice, Knowledge, PolicyFields, VariantFields
from scenarios.file.document import Document, Loc
from scenarios.workloads.workload import Workload
from sim.base import plugins
from sim.base.errors import InputError, UnknownOptionError, error_path, hint, nearest
from sim.base.options import call_with_options, make_plugin, parameters, require_call, require_methods
from sim.graph.graph import Graph
from sim.job.job import Linearizer, Placement, StreamAssignment
from sim.policy import Policy as IssuePolicy


class Rewrite(Protocol):
    """Turns a graph into another graph; its attribute `placed` is true if it needs to know where ops run."""

    def apply(self, graph: Graph) -> Graph:
        """Return the rewritten graph."""
        ...


class RewriteStep(NamedTuple):
    """A rewrite, and the place at which the scenario names it."""

    name: str
    rewrite: Rewrite
    loc: Loc


class Decisions(NamedTuple):
    """All decisions of a run, as objects.

    Attributes
    ----------
    label : str
        Name in the results.
    policy : IssuePolicy
    placement, streams, linearize : optional
        None: the default of `sim.job.build_job.make_job`.
    knowledge : str
    estimate_error : float
    loc : Loc
        Place of the decisions in the scenario.
    compile : tuple of RewriteStep
        Rewrites of the graph, in order.
    cuda_graph : bool
        Whether the ops of a device are launched as one CUDA graph.
    intra_op_threads : int or None
        Threads in the pool that the ops of each CPU share; 0: as many as cores; None: no such pool.
    fields : PolicyFields or None
        The fields from which the objects were made; None if something else was used, too.
    own_streams : bool
        Whether the scenario says the streams, rather than a runtime or nothing.
    allocators : mapping of str to mapping
        Kind of device → its allocator, as the runtime names them; empty if no runtime names any.
    schedule : PolicyFields or None
        What makes the graph, if that depends on the policy: a pipeline's schedule, a batcher.
    """

    label: str
    policy: IssuePolicy
    placement: Placement | None = None
    streams: StreamAssignment | None = None
    linearize: Linearizer | None = None
    knowledge: str = "exact"
    estimate_error: float = 0.2
    loc: Loc = ()
    compile: tuple[RewriteStep, ...] = ()
    cuda_graph: bool = False
    own_streams: bool = False
    allocators: Mapping[str, Mapping[str, Any]] = {}
    intra_op_threads: int | None = None
    fields: PolicyFields | None = None
    schedule: PolicyFields | None = None


def overlay(base: PolicyFields, over: PolicyFields) -> PolicyFields:
    """Return `base` overridden by `over`.

    If `over` names a policy, the options of `base` are dropped. Decisions that `over` does not mention stay
    as they are in `base`. A runtime is a set of all decisions: if `over` names one, nothing of `base` stays.
    """
    if over.runtime is not None:
        values: dict[str, Any] = {}
    elif over.name is not None:
        values = {key: value for key, value in _own_decisions(base).items() if key not in ("name", "runtime")}
    else:
        values = {**_own_decisions(base), **base.options}
    return PolicyFields.model_construct(**{**values, **_own_decisions(over), **over.options})


def _own_decisions(fields: PolicyFields) -> dict[str, Any]:
    """Return the decisions that are made in `fields`, without the options of the policy."""
    keys = fields.model_fields_set & PolicyFields.model_fields.keys()
    return {key: value for key, value in fields if key in keys}


def resolve(
    spec: PolicyFields,
    label: str,
    document: Document,
    loc: Loc,
    *,
    knowledge: Knowledge = "exact",
    inherited: bool = False,
) -> Decisions:
    """Make the objects that a policy specification names.

    Parameters
    ----------
    spec : PolicyFields
    label : str
        Name in the results.
    document, loc
        Place of the specification, for messages and for what it may name.
    knowledge : str
        What the scenario lets policies know, unless `spec` says otherwise.
    inherited : bool
        Whether the synchronisation comes from another policy; a policy that does not take it ignores it.

    Raises
    ------
    ScenarioError
        An unknown name (with the nearest known one), an unknown option, or a wrong value of an option.
    """
    with _placing(document, loc):
        own_streams = spec.streams is not None
        spec, allocators = _with_runtime(spec, document, loc)
        if spec.name is None:
            raise document.error(loc, "names no policy; give it a name, or a runtime", key=True)

        def choose(choice: Choice | None, key: str, *index: int) -> Any:
            if choice is None:
                return None
            with error_path(key, *index):
                return _make_chosen(key, choice, document.origin)

        policy = _policy(spec, loc, document.origin, inherited=inherited)
        steps = (*document.place_of(loc, "compile"), "compile")
        setting = spec.knowledge or knowledge
        knows, error = (setting, 0.2) if isinstance(setting, str) else ("estimate", setting["estimate"])
        return Decisions(
            label,
            policy,
            placement=choose(spec.placement, "placement"),
            streams=choose(spec.streams, "streams"),
            linearize=choose(spec.linearize, "linearize"),
            knowledge=knows,
            estimate_error=error,
            loc=loc,
            compile=tuple(
                RewriteStep(choice.name, _under(policy, choose(choice, "compile", i)), (*steps, i))
                for i, choice in enumerate(spec.compile or ())
            ),
            cuda_graph=bool(spec.cuda_graph),
            own_streams=own_streams,
            allocators=allocators,
            intra_op_threads=spec.intra_op_parallelism_threads,
            fields=spec,
        )


@contextmanager
def _placing(document: Document, loc: Loc) -> Iterator[None]:
    """Add a place to errors; an unknown option may be a misspelt key that all policies have."""
    keys = (VariantFields if loc[:1] == ("compare",) else PolicyFields).model_fields
    with document.placing(*loc):
        try:
            yield
        except UnknownOptionError as error:
            if len(error.path) > 1 or nearest(error.option, [*error.known, *keys]) not in keys:
                raise
            raise UnknownOptionError(error.what, error.option, [*keys]) from error


def _under(policy: Any, rewrite: Any) -> Any:
    """Return the rewrite, adapted to the policy if it is a partition."""
    from policies.rewrite.partition import Partition

    return rewrite.under(policy) if isinstance(rewrite, Partition) else rewrite


def resolve_schedule(
    spec: PolicyFields, label: str, workload: Workload, document: Document, loc: Loc
) -> Decisions:
    """Return the decisions of a pipeline or of a serving engine.

    The programs of the ranks decide: each rank issues its own program in order.

    Raises
    ------
    ScenarioError
        The policy names no schedule, a decision that the schedule makes itself, or an unknown option.
    """
    from policies.issue.program_order import InOrder
    from scenarios.builders.pipeline_graph import AsWritten, CommunicationStream

    word, owner = workload.decider
    with _placing(document, loc):
        spec, allocators = _with_runtime(spec, document, loc)
        if spec.name is None:
            raise InputError(f"names no {word}{hint('', plugins.names(workload.deciders))}")
        is_code = ":" in spec.name and workload.deciders != "sim.pipelines"
        if not is_code and spec.name not in (deciders := plugins.names(workload.deciders)):
            problem = f"{spec.name!r} is no {plugins.GROUPS[workload.deciders]}"
            code = (
                "; code needs a name: an entry point, or sim.base.plugins.register"
                if ":" in spec.name
                else ""
            )
            raise InputError(f"{problem}{code}{hint(spec.name, deciders)}", path=["name"])
        for key in PolicyFields.model_fields:
            if key not in ("name", "runtime", "knowledge") and getattr(spec, key) is not None:
                message = f"{owner}'s {word} decides it: {spec.name} takes no {key}"
                raise InputError(message, path=(key,))
        workload.check_schedule(spec)
        if isinstance(file := spec.options.get("file"), str):
            with error_path("file"):
                spec = spec.model_copy(update={"file": str(document.file(file))})
    return Decisions(
        label,
        InOrder(),
        streams=CommunicationStream(),
        linearize=AsWritten(),
        loc=loc,
        allocators=allocators,
        schedule=spec,
    )


def _with_runtime(
    spec: PolicyFields, document: Document, loc: Loc
) -> tuple[PolicyFields, Mapping[str, Mapping[str, Any]]]:
    """Return `spec` with what it leaves open decided by its runtime, and the runtime's allocators."""
    if spec.runtime is None:
        return spec, {}
    if spec.name is not None:
        message = "has both a name and a runtime; a runtime names the policy too"
        raise document.error(loc, message, key=True)
    choices = dict(_look_up("sim.runtimes", spec.runtime, "runtime", loc, document.origin))
    allocators = choices.pop("allocator", {})
    values = {key: value for key, value in spec if key in spec.model_fields_set and key != "runtime"}
    values |= spec.options
    return overlay(PolicyFields.model_validate(choices), PolicyFields.model_construct(**values)), allocators


def resolve_recoveries(choices: Sequence[Choice], document: Document, loc: Loc) -> dict[str, Recovery]:
    """Return the recovery policies of a training run, by name.

    Raises
    ------
    ScenarioError
        As for `resolve`.
    """
    policies, group = {}, "sim.recoveries"
    for i, choice in enumerate(choices):
        with document.placing(*loc, i):
            policies[choice.name] = make_plugin(group, choice.name, choice.options, document.origin, Recovery)
    return policies


def _policy(spec: PolicyFields, loc: Loc, origin: plugins.Origin, *, inherited: bool) -> IssuePolicy:
    """Return the policy; synchronisation is an option of most policies, and an attribute of all."""
    assert spec.name is not None
    options = dict(spec.options)
    thing = _look_up("sim.policies", spec.name, "name", loc, origin)
    takes_it = callable(thing) and "synchronisation" in parameters(thing)
    if spec.synchronisation is not None and takes_it:
        options["synchronisation"] = spec.synchronisation
    policy: object = call_with_options(thing, spec.name, options, origin)
    if not isinstance(policy, IssuePolicy):
        message = f"{spec.name!r} is no policy: {type(policy).__name__} does not extend sim.Policy"
        raise InputError(message, path=("name",))
    require_methods(f"the policy {spec.name!r}", policy, IssuePolicy)
    if spec.synchronisation is not None and (takes_it or not inherited):
        policy.synchronisation = spec.synchronisation
    return policy


_METHODS: Final = {
    "placement": ("sim.placements", "place", ("graph", "machine", "cost_ns")),
    "streams": ("sim.streams", "assign", ("job",)),
    "linearize": ("sim.linearizers", "order", ("job",)),
    "compile": ("sim.rewrites", "apply", ("graph",)),
}
"""For each decision: its group of plugins, the method that decides, and the arguments of that method."""


def _make_chosen(key: str, choice: Choice, origin: plugins.Origin) -> Any:
    """Return the object that a choice names, after checking its one deciding method."""
    group, method, called_with = _METHODS[key]
    decider = call_with_options(origin.lookup(group, choice.name), choice.name, choice.options, origin)
    require_call(f"the {plugins.GROUPS[group]} {choice.name!r}", decider, *called_with, method=method)
    return decider


def _look_up(group: str, name: str, key: str, loc: Loc, origin: plugins.Origin) -> Any:
    """Return the plugin of a name that is written under `key`; a name on the command line has no key."""
    with error_path(*([key] if loc else [])):
        return origin.lookup(group, name)
