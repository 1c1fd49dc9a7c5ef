r"""Modules: groups of ops, and the places in host order where each begins and ends.

::

    wrap: layer\d+        layer0.norm  layer0.up  layer1.norm  layer1.up  head         ops
                          └───── layer0 ──────┘  └────── layer1 ────┘  └ root ┘
    no wrap               every op that reads a parameter is a module; ops that compute the gradients of
                          its parameters, or read them, are its backward
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from policies.parallel.training_step import Parameter, TrainingStep
from policies.rewrite.records import OpEntry
from sim.base.errors import GraphError, InputError

ROOT = "root"


@dataclass
class Module:
    """A group of ops, and the parameters that they read.

    Attributes
    ----------
    name : str
    parameters : list of Parameter
    forward, backward : list of int
        Places of its ops in `TrainingStep.work`.
    gives_on : bool
        Whether its backward computes gradients that other modules need.
    """

    name: str
    parameters: list[Parameter] = field(default_factory=list)
    forward: list[int] = field(default_factory=list)
    backward: list[int] = field(default_factory=list)
    gives_on: bool = False


class Modules:
    """The modules of a step; those without a parameter to train are left out.

    Parameters
    ----------
    step : TrainingStep
    wrap : str, optional
        Regular expression: ops with the same match in their names form a module, all others the root.
    number : int
        Number of the step's micro-batch; modules have the same names in each.

    Attributes
    ----------
    all : list of Module
        Modules in forward order, the root first.
    named : dict of str to Module
    root : Module or None
    turn : int
        Place of the first op after the forward.
    enter, leave, back, over : dict of int to Module
        Places where the forward and backward of each module but the root begin and end, and hooks run; `over`
        has only modules whose inputs need gradients.

    Raises
    ------
    InputError
        If `wrap` is not a regular expression, or nothing matches it.
    GraphError
        If ops have no phase, or a parameter is read in two modules.
    """

    def __init__(self, step: TrainingStep, wrap: str | None, number: int = 0) -> None:
        self.step, self.pattern, self.number = step, pattern_of(wrap), number
        phases = [record.phase for record in step.work]
        if "F" not in phases:
            raise GraphError(f"graph {step.records.name!r} does not say which ops are its forward (phase: F)")
        self.turn = len(phases) - phases[::-1].index("F")
        self.of_parameter: dict[str, str] = {}
        trained = {each.name for each in step.parameters}
        for record in step.work[: self.turn]:
            for tensor in (tensor for tensor in record.reads if tensor in trained):
                own = self._matched(record) if self.pattern else self.of_parameter.get(tensor, record.name)
                if self.of_parameter.setdefault(tensor, own) != own:
                    both = f"{self.of_parameter[tensor]} and {own}"
                    raise GraphError(f"parameter {tensor!r} is read in {both}; wrap them together")
        self.of_gradient = {
            gradient: self.of_parameter.get(each.name, ROOT)
            for each in step.parameters
            for gradient in (each.gradient, step.own_gradient(each))
        }
        found = {ROOT: Module(ROOT)}
        for place, record in enumerate(step.work):
            name = self._of(record)
            if name is not None:
                module = found.setdefault(name, Module(name))
                (module.forward if place < self.turn else module.backward).append(place)
        for each in step.parameters:
            found[self.of_parameter.get(each.name, ROOT)].parameters.append(each)
        self.all = [module for module in found.values() if module.parameters]
        if wrap is not None and {module.name for module in self.all} <= {ROOT}:
            raise InputError(f"no op that reads a parameter has a name that matches {wrap}", path=("wrap",))
        for place, record in enumerate(step.work[self.turn :], start=self.turn):
            for producer in step.records.makers(record.inputs):
                name = self._of(producer) if producer.phase != "F" else None
                if name in found and place not in found[str(name)].backward:
                    found[str(name)].gives_on = True
        for module in self.all:
            module.name = module.name.removeprefix(f"micro{number}/")
        self.named = {module.name: module for module in self.all}
        self.root = self.named.get(ROOT)
        within = [module for module in self.all if module is not self.root]
        self.enter = {module.forward[0]: module for module in within}
        self.leave = {module.forward[-1]: module for module in within}
        self.back = {module.backward[0]: module for module in within if module.backward}
        self.over = {module.backward[-1]: module for module in within if module.backward and module.gives_on}

    def _matched(self, record: OpEntry) -> str:
        match = self.pattern.search(record.name) if self.pattern else None
        return match.group() if match else ROOT

    def _of(self, record: OpEntry) -> str | None:
        """Return the module of an op; None: it has none."""
        made = (self.of_gradient[tensor] for tensor in record.tensors if tensor in self.of_gradient)
        read = (self.of_parameter[tensor] for tensor in record.reads if tensor in self.of_parameter)
        return next(made, None) or (self._matched(record) if self.pattern else next(read, None))


def pattern_of(wrap: str | None, option: str = "wrap") -> re.Pattern[str] | None:
    """Return the compiled regular expression.

    Raises
    ------
    InputError
        If it is not valid.
    """
    try:
        return None if wrap is None else re.compile(wrap)
    except (re.error, TypeError) as error:
        message = f"must be a regular expression for names of ops; found {wrap}: {error}"
        raise InputError(message, path=(option,)) from None
