"""The model ``nccl`` of a machine's collectives: NCCL's choice, its channels, and how long it takes.

::

    collectives: {model: nccl}                     in a node by rates fitted to measured times, if there are
                                                   any; else what NCCL itself expects
    collectives: {model: nccl, times: tuner}       what NCCL itself expects
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from annotated_types import Ge

from devices.collectives.nccl.constants import GENERATIONS
from devices.collectives.nccl.rates import known_us, load_rates, taken_us
from devices.collectives.nccl.tuner import Choice, Tuner
from devices.collectives.nodes import node_of
from sim.machine.communicators import Call
from sim.machine.machine import Machine
from sim.words.errors import InputError
from sim.words.units import round_half_up

__all__ = ["Nccl"]

_MOST_PER_NODE: Final = 8


@dataclass(frozen=True)
class Nccl:
    """Collectives as NCCL 2.30 runs them on nodes with NVSwitches and a network card for each GPU.

    Parameters
    ----------
    gpu : str
        ``a100``, ``h100``, ``h200`` or ``b200``; ``auto``: by the number of SMs of the ranks' GPUs.
    per_node : int, optional
        How many neighbouring GPUs of the machine form a node; by default those of a node by name
        (``node3/gpu0``), and on a machine that names no nodes 8.
    times : str
        ``tuner``: what NCCL expects; ``fitted``: by rates fitted to measured times (within a node, for
        ``a100``, ``h100`` and ``h200``; not ``broadcast`` and ``reduce``, which nobody measured); ``auto``:
        fitted where they hold, else the tuner's.
    nvls : bool
        Whether the switches may add up, which they cannot do with int8, for one.

    Examples
    --------
    >>> from sim import Device
    >>> machine = Machine(tuple(Device(f"gpu{k}") for k in range(8)))
    >>> model = Nccl(gpu="h100")
    >>> call = Call("all_reduce", 2**26, tuple(range(8)))
    >>> model.choice(call, machine).algorithm, model.sms(call, machine), model.time_ns(call, machine)
    ('nvls', 16, 326122)
    """

    gpu: Literal["auto", "a100", "h100", "h200", "b200"] = "auto"
    per_node: Annotated[int, Ge(1)] | None = None
    times: Literal["auto", "tuner", "fitted"] = "auto"
    nvls: bool = True
    _tuners: dict[tuple[str, tuple[int, ...]], Tuner] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _known: dict[Hashable, tuple[Machine, Choice]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    _nodes: dict[int, tuple[Machine, dict[int, int]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Refuse fitted times of a GPU that nobody measured, and nodes that no search was made of."""
        if self.times == "fitted" and self.gpu != "auto":
            load_rates(self.gpu)
        if self.per_node is not None and self.per_node > _MOST_PER_NODE:
            raise InputError(f"{self.per_node} GPUs in a node are more than the 8 that are modelled",
                             path=("per_node",))  # fmt: skip

    def time_ns(self, call: Call, machine: Machine) -> int:
        """Return the ns that a call takes once all its ranks are there."""
        choice = self.choice(call, machine)
        if self.times == "tuner" or choice.algorithm == "none":
            return round_half_up(choice.estimate_us * 1000)
        tuner = self._tuner(call, machine)
        kind, nbytes = ("all_reduce", 4) if call.kind == "barrier" else (call.kind, call.nbytes)
        gpu = self.gpu if self.gpu != "auto" else _recognised(call, machine)
        if self.times == "auto":
            return round_half_up(1000 * known_us(gpu, kind, tuner.per_node, nbytes, choice))
        if len(tuner.per_node) > 1:
            raise InputError(
                "times: fitted holds within a node, and the ranks are on several; use times: tuner"
            )
        return round_half_up(1000 * taken_us(kind, tuner.ranks, nbytes, choice, load_rates(gpu)))

    def sms(self, call: Call, machine: Machine) -> int:
        """Return how many SMs of each rank a call takes: one for each channel."""
        return self.choice(call, machine).channels

    def choice(self, call: Call, machine: Machine) -> Choice:
        """Return how NCCL runs a call."""
        key = id(machine), call
        if key not in self._known:
            self._known[key] = machine, self._tuner(call, machine).choose(call.kind, call.nbytes)
        return self._known[key][1]

    def _tuner(self, call: Call, machine: Machine) -> Tuner:
        name = _recognised(call, machine) if self.gpu == "auto" else self.gpu
        node_of = self._node_of(machine)
        on_node: dict[int, list[int]] = {}
        for rank in call.ranks:
            if rank not in node_of:
                device = machine.devices[rank]
                raise InputError(f"NCCL connects GPUs, and {device.name} is a {device.kind}")
            on_node.setdefault(node_of[rank], []).append(rank)
        first = on_node[node_of[call.ranks[0]]]
        if self.gpu == "auto" and (cpu := over_a_host(machine, first)) is not None:
            a, b = (machine.devices[rank].name for rank in first[:2])
            raise InputError(
                f"NCCL's rules are known here for GPUs on NVSwitches, and {a} reaches {b} over {cpu}; say "
                f"gpu: {name} if the links leave NVLink out, or take model: formula"
            )
        key = name, tuple(sorted(map(len, on_node.values())))
        if key not in self._tuners:
            if key[1][-1] > _MOST_PER_NODE:
                most = f"{key[1][-1]} ranks on a node are more than the 8 that are modelled"
                raise InputError(f"{most}; say per_node, if neighbours are on nodes of their own")
            self._tuners[key] = Tuner(GENERATIONS[name], key[1], self.nvls)
        return self._tuners[key]

    def _node_of(self, machine: Machine) -> dict[int, int]:
        """Return the node of each GPU."""
        if id(machine) not in self._nodes:
            gpus = [d for d, device in enumerate(machine.devices) if device.kind == "gpu"]
            names = [node_of(machine.devices[d].name) for d in gpus]
            if self.per_node is None and any(names):
                number = {name: k for k, name in enumerate(dict.fromkeys(names))}
                found = {d: number[name] for d, name in zip(gpus, names, strict=True)}
            else:
                found = {d: k // (self.per_node or _MOST_PER_NODE) for k, d in enumerate(gpus)}
            self._nodes[id(machine)] = machine, found
        return self._nodes[id(machine)][1]


def over_a_host(machine: Machine, ranks: Sequence[int]) -> str | None:
    """Return the CPU over which the first of several ranks of a node reaches the next, if it does."""
    if len(ranks) < 2 or not machine.links:
        return None
    route = machine.route(ranks[0], ranks[1])
    passed = (machine.devices[machine.device_index(machine.links[k].destination)] for k in route)
    return next((device.name for device in passed if device.kind == "cpu"), None)


def _recognised(call: Call, machine: Machine) -> str:
    """Return the generation of the ranks' GPUs, by their SMs."""
    found = {machine.devices[rank].details.sms for rank in call.ranks}
    sms = found.pop()
    for name, gpu in GENERATIONS.items():
        if not found and sms in gpu.sms:
            return name
    known = ", ".join(f"{name} ({gpu.sms[0]})" for name, gpu in GENERATIONS.items())
    what = "they have different numbers of SMs" if found else f"they have {sms or 'no'} SMs"
    raise InputError(f"nothing is known of the ranks' GPUs: {what}; known: {known}; say gpu: NAME")
