"""A scenario and what follows from it: its machine, its graph, and the runs that it describes.

::

    Document ──schema──► ScenarioFile ──► Scenario: machine, graph, policy ──► Case: one run
                                          (cached: nothing is built before it is asked for)
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from pydantic import ValidationError

from devices.machine import described_devices, make_machine
from devices.presets import machine_preset
from scenarios.expectations import Expectation, check_runs, read_expectations
from scenarios.fields.policy_fields import PolicyFields
from scenarios.file.document import Document, Loc
from scenarios.file.faults import scenario_error
from scenarios.file.yaml_read import Node, Place
from scenarios.recorded.setup import AS_RECORDED, POLICY, as_recorded_machine, with_facts
from scenarios.run.decisions import Decisions, overlay, resolve, resolve_schedule
from scenarios.schema import ScenarioFile, model_for
from scenarios.workloads.workload import Work
from sim.base import plugins
from sim.base.errors import InputError, clip_repr, hint, list_names, shorten
from sim.base.plugins import Origin
from sim.graph.graph import Graph
from sim.machine.machine import Machine
from sim.notebook import card


@dataclass(frozen=True, eq=False)
class Scenario:
    """A scenario file that conforms to the schema.

    Attributes
    ----------
    content : ScenarioFile
        Content of the file.
    document : Document
        Text of the file, with the place of each key and value.
    checked : dict
        Results of checks that passed, and for which objects; the checks themselves write them.
    other_runs : dict of str to Result
        Results of the runs that expectations of others may name, by label; whoever runs them fills it.
    """

    content: ScenarioFile
    document: Document
    checked: dict[str, Any] = field(default_factory=dict, init=False, repr=False)
    other_runs: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def __repr__(self) -> str:
        """Return its name."""
        return f"<Scenario {self.name!r}>"

    def _repr_html_(self) -> str:
        """Return the name and the description, as it was typed, for a notebook."""
        others = [f"compare: {', '.join(self.variants)}"] if self.variants else []
        return card(self.name, others, text=(self.content.description or "").strip())

    @property
    def name(self) -> str:
        """Name of the scenario, or else of its file."""
        return self.content.name or self.document.title

    @cached_property
    def machine(self) -> Machine:
        """The machine.

        Raises
        ------
        ScenarioError
            The machine is missing, or its description contradicts itself.
        """
        return self._machine_of(self.machine_spec)

    def machine_with(self, intra_op_threads: int | None) -> Machine:
        """Return the machine with `intra_op_threads` threads in the intra-op pool of each CPU.

        0: as many as cores; None: as the description says.

        Raises
        ------
        ScenarioError
            As for `machine`; also if a CPU gives ``intra_op_parallelism_threads`` itself, or if several CPUs
            belong to one process.
        """
        if intra_op_threads is None:
            return self.machine
        described, document = self.described_devices, self.document
        cpus = [name for name, values in described.items() if values.get("kind") == "cpu"]
        for host in self.machine.hosts:
            pooled = [name for name in host.serves if name in cpus]
            if len(pooled) > 1:
                message = (
                    f"launches for {' and '.join(pooled)}: that CPUs share one intra-op pool is not modelled"
                )
                raise document.error(("machine", "hosts", host.name), message)
        devices = dict(self.machine_spec.get("devices", {}))
        for name in cpus:
            if "intra_op_parallelism_threads" in described[name]:
                message = "intra_op_parallelism_threads is the size of this pool, too; give one of them"
                raise document.error(("machine", "devices", name, "intra_op_parallelism_threads"), message)
            pool = {"intra_op_parallelism_threads": intra_op_threads or described[name].get("cores", 1)}
            devices[name] = {**devices.get(name, {}), **pool}
        return self._machine_of({**self.machine_spec, "devices": devices})

    def _machine_of(self, spec: dict[str, Any]) -> Machine:
        """Return the machine of a description, with the scenario's cost model and facts of its recording."""
        content, document, origin = self.content, self.document, self.document.origin
        if not spec:
            raise document.error((), "machine: is missing")
        recording = content.workload.recording(document)
        try:
            # Kinds of op are checked once those of the graph are known (`scenarios.run.prepare_job`).
            spec = _with_cost(spec, content.cost, origin)
            spec = spec if recording is None else with_facts(spec, recording, origin)
            return make_machine(spec, origin=origin, kinds=None)
        except InputError as error:
            if error.path[3:4] == ("cost",) and document.at(error.path[:4]) is None:
                error.path = error.path[3:]  # the cost model is the scenario's, not the device's
            if content.machine is None and error.path[:1] == ("machine",):
                message = f"its default machine cannot be: {error}"
                raise document.error(("workload",), message, key=True) from error
            raise document.wrong(error) from error

    @cached_property
    def machine_spec(self) -> dict[str, Any]:
        """Description of the machine; if it is that of a recording, it is written out in full."""
        spec = self._given_machine
        if spec.get("preset") != AS_RECORDED["preset"]:
            return spec
        recording = self.content.workload.recording(self.document)
        if recording is None:
            return spec
        try:
            return as_recorded_machine(spec, recording)
        except InputError as error:
            if self.content.machine is None:  # the graph is not a recording
                return {}
            raise self.document.wrong(error) from error

    @cached_property
    def _given_machine(self) -> dict[str, Any]:
        """Description of the machine as the scenario gives it, or the default of its workload."""
        if self.content.machine is None:
            return dict(self.content.workload.default_machine() or {})
        return self.content.machine.model_dump(by_alias=True, exclude_unset=True)

    @cached_property
    def described_devices(self) -> dict[str, dict[str, Any]]:
        """Description of each device by its name: see `devices.machine.described_devices`."""
        return described_devices(self.machine_spec, self.document.origin)

    @cached_property
    def graph(self) -> Graph:
        """The graph of the workload.

        Raises
        ------
        InputError
            The graph cannot be built.
        """
        if self.content.workload.runs_code and not self.document.allowed.code:
            message = "runs code, which a scenario may not do by itself; allow it with --allow-code"
            raise self.document.error(("workload",), message)
        return self.content.workload.build(self.document, self.machine)

    @cached_property
    def policy(self) -> PolicyFields:
        """Policy fields of the file, overlaid on the defaults of the workload."""
        brought = self.content.workload.default_policy()
        if brought is None and self._given_machine.get("preset") == AS_RECORDED["preset"]:
            brought = POLICY
        if brought is None:
            return self.content.policy
        base = PolicyFields.model_validate(brought)
        return overlay(base, self.content.policy) if "policy" in self.content.model_fields_set else base

    @cached_property
    def variants(self) -> list[str]:
        """Labels of the entries of ``compare``."""
        own_label = _own_label(self.policy)
        return [entry.label or entry.name or entry.runtime or own_label for entry in self.content.compare]

    def case(self, policy: str | None = None) -> Case:
        """Return the run of the scenario under a policy.

        Parameters
        ----------
        policy : str, optional
            Label of an entry of ``compare``, or name of a policy or a runtime; by default the scenario's own
            policy. A policy is overlaid on the scenario's, like an entry of ``compare``: placement, streams
            and other decisions that it leaves open stay; a runtime replaces all of them. If a policy and a
            runtime have the same name, it means the policy. Only the scenario's own policy and its entries
            have expectations.

        Raises
        ------
        ScenarioError
            An unknown name, or a wrong option.
        """
        content = self.content
        if policy is None:
            label = _own_label(self.policy)
            conditions = {key: value for key, value in content.expect.items() if not isinstance(value, dict)}
            expected = (
                *read_expectations(conditions, self.document, ("expect",), self._others(label)),
                *(() if label in self.variants else self._expected_of(label)),
            )
            return self._case(self.policy, label, self.document, ("policy",), expected)
        if not isinstance(policy, str):
            raise InputError(f"policy should be a name, not {clip_repr(policy)}; simulate() takes policies")
        if policy in self.variants:
            return self.entry(self.variants.index(policy))
        place = Place(f"--policy {shorten(policy)}")
        named = replace(self.document, root=Node({}, place), changed=frozenset())
        over, node = self._named_policy(policy), self.document.at(("policy",))
        inside = node.value if over.runtime and node is not None and isinstance(node.value, dict) else {}
        for source in dict.fromkeys(child.place.source for child in inside.values()):
            if source.startswith("--set"):
                message = f"{source}: has no effect, as a runtime makes all decisions; to change one, give"
                warnings.warn(f"{message} --set 'policy={{runtime: {policy}, ...}}' alone", stacklevel=2)
        case = self._case(overlay(self.policy, over), policy, named)
        if over.runtime and self.policy.compile:
            steps = list_names([step.name for step in self.policy.compile], 3)
            message = f"{policy}: runs the graph without policy.compile ({steps})"
            warnings.warn(f"{message}, as a runtime makes all decisions", stacklevel=2)
        return case

    def _named_policy(self, policy: str) -> PolicyFields:
        """Return the policy fields for a name on the command line: a schedule, a policy, or a runtime."""
        workload, of_graphs = self.content.workload, "sim.policies"
        runtimes, deciders = plugins.names("sim.runtimes"), plugins.names(workload.deciders or of_graphs)
        if policy.startswith("{"):
            message = f"{policy!r} is no name; give options in compare:, or by --set 'policy={{...}}'"
            raise Place("--policy").error(message)
        if policy in deciders or ":" in policy:
            return PolicyFields(name=policy)
        if policy in runtimes:
            return PolicyFields(runtime=policy)
        for group in (of_graphs, "sim.pipelines", "sim.batchers"):
            if policy in plugins.names(group):
                word, owner = workload.decider
                kind_text = "a policy for graphs" if group == of_graphs else f"a {plugins.GROUPS[group]}"
                kind = f"{owner}'s policy is its {word}" if workload.deciders else "the workload is a graph"
                message = f"{policy!r} is {kind_text}, and {kind}; known: {', '.join(sorted(deciders))}"
                raise Place("--policy").error(message)
        everything = dict.fromkeys([*self.variants, *deciders, *runtimes])
        near = hint(policy, everything)
        if "did you mean" not in near:
            near = ("" if "." in policy else near) + "; a class of your own is named MODULE:CLASS"
        raise Place("--policy").error(f"unknown policy {policy!r}{near}")

    def cases(self) -> list[Case]:
        """Return all runs that the scenario compares, or its own run if it compares nothing."""
        return [self.entry(i) for i in range(len(self.variants))] or [self.case()]

    def left_out(self) -> str | None:
        """Return the label of the file's own policy if ``compare`` lists other policies but not this one."""
        base, entries = self.policy, self.content.compare
        if "policy" not in self.content.model_fields_set or not (base.name or base.runtime):
            return None
        return _own_label(base) if entries and all(overlay(base, one) != base for one in entries) else None

    def check(self) -> None:
        """Raise if the policy or an entry of ``compare`` is wrong, whether or not it is run.

        Raises
        ------
        ScenarioError
            As for `case` and `entry`.
        """
        for i in range(len(self.variants)):
            self.entry(i)
        policy, expect = self.policy, self.content.expect
        if policy.name is not None or policy.runtime is not None:
            has_own_run = "policy" in self.content.model_fields_set
        else:  # each entry names its own policy, so the options of this one belong to nothing
            has_own_run = bool(policy.options)
        if has_own_run or any(not isinstance(condition, dict) for condition in expect.values()):
            self.case()

    def expected_cases(self) -> list[Case]:
        """Return the runs that have expectations: the scenario's own, and entries of ``compare``."""
        expects = self.content.expect or any(entry.expect for entry in self.content.compare)
        cases = [self.case(), *map(self.entry, range(len(self.variants)))] if expects else []
        return [case for case in cases if case.expectations]

    def _others(self, label: str) -> list[str]:
        """Return the labels of the other runs, which expectations of the run `label` may name."""
        return [other for other in dict.fromkeys([*self.variants, _own_label(self.policy)]) if other != label]

    def _expected_of(self, label: str) -> tuple[Expectation, ...]:
        """Return the expectations that the scenario's ``expect`` lists under the label of a run."""
        expect = self.content.expect.get(label)
        if not isinstance(expect, dict):
            return ()
        return read_expectations(expect, self.document, ("expect", label), self._others(label))

    def entry(self, i: int) -> Case:
        """Return the run of an entry of ``compare``, counted from 0.

        Raises
        ------
        ScenarioError
            An unknown name, a wrong option, or an invalid setting.
        """
        entry, loc = self.content.compare[i], ("compare", i)
        scenario = self
        if entry.set:
            changed = self.document.with_values(entry.set, (*loc, "set"))
            scenario = _read(changed, self)
        spec = overlay(scenario.policy, entry)
        label = self.variants[i]
        expected = (
            *read_expectations(entry.expect, scenario.document, (*loc, "expect"), self._others(label)),
            *self._expected_of(label),
        )
        return scenario._case(spec, label, scenario.document, loc, expected, base=self)

    def _case(
        self,
        spec: PolicyFields,
        label: str,
        document: Document,
        loc: Loc = (),
        expectations: tuple[Expectation, ...] = (),
        *,
        base: Scenario | None = None,
    ) -> Case:
        """Return the run under the policy at `loc` in `document`; empty `loc`: from the command line."""
        content, base = self.content, base or self
        if not content.workload.deciders:
            knowledge = content.knowledge
            decisions = resolve(spec, label, document, loc, knowledge=knowledge, inherited=not loc)
            return Case(self, decisions, base, expectations)
        unnamed = "policy" not in content.model_fields_set and spec.name == content.policy.name
        if unnamed and content.workload.default_policy() is None:
            word, owner = content.workload.decider
            message = f"is missing: {owner}'s policy is its {word}, as in {{name: 1f1b}}"
            raise self.document.error((), f"policy: {message}")
        return Case(self, resolve_schedule(spec, label, content.workload, document, loc), base, expectations)


@dataclass(frozen=True)
class Case:
    """One run that a scenario describes: its work, its decisions, and its expectations.

    Attributes
    ----------
    scenario : Scenario
        Scenario with the settings of the case.
    decisions : Decisions
    expectations : tuple of Expectation
    changed_work : Work, optional
        What runs, if it is not what the scenario says (a what-if).
    base : Scenario
        Scenario as in its file; that of an entry of ``compare`` may have been changed.
    """

    scenario: Scenario
    decisions: Decisions
    base: Scenario
    expectations: tuple[Expectation, ...] = ()
    changed_work: Work | None = None

    @property
    def has_own_graph(self) -> bool:
        """Whether neither a schedule nor a what-if makes the graph."""
        return self.changed_work is None and self.decisions.schedule is None

    @cached_property
    def work(self) -> Work:
        """Graph, machine, and the workload's contribution to the summary."""
        if self.changed_work is not None:
            return self.changed_work
        scenario, decisions, content = self.scenario, self.decisions, self.scenario.content
        if (schedule := decisions.schedule) is not None:
            machine = None if content.machine is None else scenario.machine
            return content.workload.work(
                scenario.document, machine, schedule, decisions.loc, seed=content.seed
            )
        machine = scenario.machine_with(self.intra_op_threads)
        return Work(scenario.graph, machine, content.workload.report, lambda trace, advise: None)

    def misfit(self) -> str | None:
        """Return why sizes do not fit together; see `scenarios.workloads.workload.Workload.misfit`."""
        schedule, scenario = self.decisions.schedule, self.scenario
        return None if schedule is None else scenario.content.workload.misfit(scenario.document, schedule)

    @property
    def intra_op_threads(self) -> int | None:
        """Threads of TensorFlow's intra-op pool (0: as many as cores), or None."""
        return self.scenario.content.workload.intra_op_threads(self.decisions.intra_op_threads)

    @property
    def label(self) -> str:
        """Label of the run in results."""
        return self.decisions.label

    def deciding(self, **decisions: Any) -> Case:
        """Return the same case with other decisions."""
        return replace(self, decisions=self.decisions._replace(**{"fields": None} | decisions))


def scenario_of(document: Document, like: Scenario | None = None) -> Scenario:
    """Return the scenario of a document.

    Parameters
    ----------
    document : Document
    like : Scenario, optional
        Scenario of the same file under other settings: parts that the settings leave alone are neither built
        nor checked again, and policies are checked only when they are asked for.

    Raises
    ------
    ScenarioError
        Something is wrong with it.
    """
    scenario = _read(document, like)
    if like is None:
        scenario.check()
    return scenario


_WORK_KEYS: Final = ("machine", "workload", "cost")
_WORK_PROPERTIES: Final = ("machine", "machine_spec", "described_devices", "graph")
"""Properties that depend on the keys of `_WORK_KEYS` alone, and are kept if they were computed."""


def _read(document: Document, like: Scenario | None) -> Scenario:
    """Return a scenario whose policies are not checked yet."""
    root = document.root
    context = None
    if like is not None and like.document.root.child("workload") is root.child("workload"):
        context = {"workload": like.content.workload}
    try:
        content = ScenarioFile.model_validate(root.plain(leave_out=context or ()), context=context)
    except ValidationError as error:
        raise scenario_error(error, model_for(root.plain()), document) from None
    scenario = Scenario(content, document)
    if like is not None and context is not None:
        vars(scenario)["checked"] = like.checked  # its entries say for which graph and machine
    if like is not None and all(like.document.root.child(key) is root.child(key) for key in _WORK_KEYS):
        vars(scenario).update({name: vars(like)[name] for name in _WORK_PROPERTIES if name in vars(like)})
    for i, label in enumerate(scenario.variants):
        if label in scenario.variants[:i]:
            message = f"two entries are called {label!r}; give one of them a label"
            raise document.error(("compare", i), message)
    if content.expect:
        check_runs(content.expect, [*scenario.variants, _own_label(scenario.policy)], document)
    return scenario


def _own_label(policy: PolicyFields) -> str:
    return policy.name or policy.runtime or "policy"


def _with_cost(spec: dict[str, Any], cost: Any, origin: Origin) -> dict[str, Any]:
    """Return `spec` with the cost model for every device that has none, including those of a preset."""
    if cost is None:
        return spec
    preset = machine_preset(spec["preset"], origin).get("devices", {}) if "preset" in spec else {}
    devices = {**{name: {} for name in preset}, **spec.get("devices", {})}
    return {**spec, "devices": {name: {"cost": cost, **device} for name, device in devices.items()}}
