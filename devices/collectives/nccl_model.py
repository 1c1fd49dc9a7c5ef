"""Which model of collectives a machine has, and the model ``nccl``: NCCL's choice, its channels, its times.

::

    collectives: {model: nccl}                     in a node by rates fitted to measured times, among nodes
                                                   what NCCL itself expects
    collectives: {model: nccl, times: tuner}       what NCCL itself expects
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from annotated_types import Ge

from devices.collectives.formulas import Formula, node_of
from devices.collectives.nccl_tuner import GENERATIONS, MOST_PER_NODE, NcclChoice, NcclTuner, tuner_of
from devices.collectives.schedules import RING_ROUNDS
from devices.describe.field_types import read_mapping
from sim.base.errors import InputError, error_path
from sim.base.options import arguments, parameters, require_call
from sim.base.plugins import NOWHERE, Origin
from sim.base.units import round_half_up
from sim.machine.communicators import Call, CollectiveModel
from sim.machine.device import Device
from sim.machine.machine import Machine

# ----------------------------------------------------------------------------------------------------------
# How long collectives of one node take by what was measured: a few rates, of what NCCL chose.
#
#     ring       launch + steps x hop + bytes on a link / channels x channel + own bytes x own
#                LL: + bytes on a link x rate of LL;  Simple: + a longer start
#     NVLS       start + (1 + 1/n) bytes x rate, the first 20 MB slower
#     exchange   start + peers x peer + bytes to others x rate, the first 20 MB slower,
#                + bytes / channels x channel + own bytes x copy
#
# "Own bytes" are those of a ring's one primitive more than it has steps on a link: of n ranks, an all-gather
# and a reduce-scatter run n of S/n, an all-reduce 2n - 1 (NCCL, ``src/device/all_gather.h``,
# ``reduce_scatter.h``, ``all_reduce.h``). In an exchange a rank copies its own part in the same kernel, whose
# warps all peers share (``src/device/sendrecv.h``).
#
# NCCL's own estimate is right for which algorithm and protocol is taken, and off by some 15 % for how long
# that takes. Its choice gives the amounts on the right; the rates are fitted to measured times
# (`studies.collectives.fit` says what each is) and come with `nccl_fitted.json`, in us and us per KB of
# 1000 bytes. Ring and exchange are those of Hockney's alpha-beta model with the steps of Thakur et al.,
# *Optimization of Collective Communication Operations in MPICH* (2005).

_FIRST_KB: Final = 20_000


def amounts(kind: str, ranks: int, nbytes: int, choice: NcclChoice) -> dict[str, float]:
    """Return how much of what has a rate a collective needs.

    Raises
    ------
    InputError
        Nobody measured such a one.
    """
    if kind in ("broadcast", "reduce") or choice.algorithm not in ("ring", "nvls", "direct"):
        raise InputError(f"nobody measured a {kind} by {choice.algorithm}, so nothing is fitted to it")
    n, kb, protocol = ranks, nbytes / 1000, choice.protocol
    if choice.algorithm == "direct":
        peers, own_kb = (n - 1, kb / n) if kind == "all_to_all" else (1, 0)
        sent = kb - own_kb
        return {
            f"exchange start {protocol}": 1,
            "exchange peer": peers,
            "exchange own": own_kb,
            f"exchange channel {protocol}": sent / choice.channels,
            "exchange first": sent / kb * min(kb, _FIRST_KB) if kb else 0,
            "exchange": sent * (2 if protocol == "ll" else 1),
        }
    if choice.algorithm == "nvls":
        traffic = 1 + 1 / n
        return {"nvls start": 1, "nvls first": traffic * min(kb, _FIRST_KB), "nvls": traffic * kb}
    rounds = RING_ROUNDS[kind]
    sent = rounds * (n - 1) / n * kb
    needs = {
        "launch": 1,
        f"hop {protocol}": rounds * (n - 1),
        f"channel {protocol}": sent / choice.channels,
        "own": kb / n,
    }
    return needs | {"ll": {"link ll": sent}, "simple": {"start simple": 1.0}}.get(protocol, {})


def taken_us(kind: str, ranks: int, nbytes: int, choice: NcclChoice, rates: Mapping[str, float]) -> float:
    """Return how long a collective takes by these rates."""
    return sum(amount * rates[name] for name, amount in amounts(kind, ranks, nbytes, choice).items())


def fitted_us(gpu: str, kind: str, per_node: Sequence[int], nbytes: int, choice: NcclChoice) -> float | None:
    """Return how long a collective takes by the rates of a GPU; None: none was measured.

    Parameters
    ----------
    gpu : str
        As in `devices.collectives.nccl_tuner.GENERATIONS`.
    kind : str
    per_node : sequence of int
        Of each node: how many ranks it has. Rates hold in one node.
    nbytes : int
    choice : NcclChoice
        What NCCL takes for it.
    """
    with suppress(InputError):
        if len(per_node) == 1:
            return taken_us(kind, sum(per_node), nbytes, choice, load_rates(gpu))
    return None


@lru_cache(maxsize=1 << 16)
def expected_us(gpu: str, kind: str, per_node: tuple[int, ...], nbytes: int) -> float:
    """Return the best that is known of how long a collective takes: by rates, or as NCCL expects.

    Examples
    --------
    >>> choice = tuner_of("h100", (8, 8)).choose("all_reduce", 2**25)
    >>> expected_us("h100", "all_reduce", (8, 8), 2**25) == choice.estimate_us
    True
    """
    choice = tuner_of(gpu, per_node).choose(kind, nbytes)
    fitted = fitted_us(gpu, kind, per_node, nbytes, choice)
    return choice.estimate_us if fitted is None else fitted


@cache
def load_rates(gpu: str) -> Mapping[str, float]:
    """Return what was fitted to a node of eight GPUs of a generation (``b200``: to one of B300).

    Examples
    --------
    >>> choice = tuner_of("h100", (8,)).choose("all_gather", 2**28)
    >>> 650 < taken_us("all_gather", 8, 2**28, choice, load_rates("h100")) < 800
    True
    """
    data = json.loads(Path(__file__).with_name("nccl_fitted.json").read_text(encoding="utf-8"))
    rates: dict[str, float] = data["gpus"][gpu]["rates"]
    return rates


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
        ``tuner``: what NCCL expects; ``fitted``: by rates fitted to measured times (within a node; not
        ``broadcast`` and ``reduce``, which nobody measured); ``auto``: fitted where they hold, else the
        tuner's.
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
    _known: dict[Hashable, tuple[Machine, NcclChoice]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    _nodes: dict[int, tuple[Machine, dict[int, int]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Refuse nodes that no search was made of."""
        if self.per_node is not None and self.per_node > MOST_PER_NODE:
            raise InputError(f"{self.per_node} GPUs in a node are more than the 8 that are modelled",
                             path=("per_node",))  # fmt: skip

    def time_ns(self, call: Call, machine: Machine) -> int:
        """Return the ns that a call takes once all its ranks are there."""
        choice = self.choice(call, machine)
        if self.times == "tuner" or choice.algorithm == "none":
            return round_half_up(choice.estimate_us * 1000)
        per_node = self._tuner(call, machine).per_node
        kind, nbytes = ("all_reduce", 4) if call.kind == "barrier" else (call.kind, call.nbytes)
        gpu = self.gpu if self.gpu != "auto" else _recognise_generation(call, machine)
        us = fitted_us(gpu, kind, per_node, nbytes, choice)
        if us is None and self.times == "fitted":
            if len(per_node) > 1:
                raise InputError(
                    "times: fitted holds within a node, and the ranks are on several; use times: tuner"
                )
            us = taken_us(kind, sum(per_node), nbytes, choice, load_rates(gpu))  # it says why there is none
        return round_half_up(1000 * (choice.estimate_us if us is None else us))

    def sms(self, call: Call, machine: Machine) -> int:
        """Return how many SMs of each rank a call takes: one for each channel."""
        return self.choice(call, machine).channels

    def choice(self, call: Call, machine: Machine) -> NcclChoice:
        """Return how NCCL runs a call."""
        key = id(machine), call
        if key not in self._known:
            self._known[key] = machine, self._tuner(call, machine).choose(call.kind, call.nbytes)
        return self._known[key][1]

    def _tuner(self, call: Call, machine: Machine) -> NcclTuner:
        name = _recognise_generation(call, machine) if self.gpu == "auto" else self.gpu
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
        per_node = tuple(sorted(map(len, on_node.values())))
        if per_node[-1] > MOST_PER_NODE:
            problem = f"{per_node[-1]} ranks on a node are more than the 8 that are modelled"
            raise InputError(f"{problem}; say per_node, if neighbours are on nodes of their own")
        return tuner_of(name, per_node, self.nvls)

    def _node_of(self, machine: Machine) -> dict[int, int]:
        """Return the node of each GPU."""
        if id(machine) not in self._nodes:
            gpus = [rank for rank, device in enumerate(machine.devices) if device.kind == "gpu"]
            names = [node_of(machine.devices[rank].name) for rank in gpus]
            if self.per_node is None and any(names):
                number = {name: k for k, name in enumerate(dict.fromkeys(names))}
                nodes = {rank: number[name] for rank, name in zip(gpus, names, strict=True)}
            else:
                nodes = {rank: k // (self.per_node or MOST_PER_NODE) for k, rank in enumerate(gpus)}
            self._nodes[id(machine)] = machine, nodes
        return self._nodes[id(machine)][1]


def over_a_host(machine: Machine, ranks: Sequence[int]) -> str | None:
    """Return the CPU over which the first of several ranks of a node reaches the next, if it does."""
    if len(ranks) < 2 or not machine.links:
        return None
    route = machine.route(ranks[0], ranks[1])
    passed = (machine.devices[machine.device_index(machine.links[k].destination)] for k in route)
    return next((device.name for device in passed if device.kind == "cpu"), None)


def _recognise_generation(call: Call, machine: Machine) -> str:
    """Return the generation of the ranks' GPUs, by their SMs."""
    counts = {machine.devices[rank].details.sms for rank in call.ranks}
    sms = counts.pop()
    for name, gpu in GENERATIONS.items():
        if not counts and sms in gpu.sms:
            return name
    generations = ", ".join(f"{name} ({gpu.sms[0]})" for name, gpu in GENERATIONS.items())
    reason = "they have different numbers of SMs" if counts else f"they have {sms or 'no'} SMs"
    raise InputError(f"nothing is known of the ranks' GPUs: {reason}; known: {generations}; say gpu: NAME")


# ----------------------------------------------------------------------------------------------------------
# Models of collectives by name, as a machine's description chooses them.
#
#     collectives: {model: formula, algorithm: ring}   ──►   Formula(algorithm="ring")
#
# A name is an entry point of the group ``sim.collectives``: a class or function whose parameters are the
# options, and which makes a `sim.machine.communicators.CollectiveModel`.


def make_collectives(spec: object, origin: Origin = NOWHERE) -> CollectiveModel:
    """Return the model that a description asks for.

    Parameters
    ----------
    spec : mapping
        ``model``, by default ``formula``, and its options.
    origin : Origin
        Where relative paths in it begin, and what code it may name.

    Raises
    ------
    InputError
        An unknown model or option, or a value that does not fit.

    Examples
    --------
    >>> make_collectives({"algorithm": "ring", "latency": "5us"})
    Formula(algorithm='ring', group=None, latency_ns=5000, bandwidth=None)
    """
    options: dict[str, Any] = dict(read_mapping(spec))
    with error_path("model"):
        name = options.pop("model", "formula")
        if not isinstance(name, str):
            raise InputError(f"{name!r} is no name of a model")
        make = origin.lookup("sim.collectives", name)
        known = parameters(make)
    more = {"origin": origin} if known.pop("origin", None) else {}  # for files that it names
    model: CollectiveModel = make(**arguments(f"the model {name!r} of collectives", known, options), **more)
    require_call(f"what the model {name!r} of collectives makes", model, "call", "machine", method="time_ns")
    return model


# ----------------------------------------------------------------------------------------------------------
# Collectives of a machine preset, where the user chose no model: NCCL's if it is known, else the formula.
#
#     preset: dgx-h100                     ──►  among GPUs NCCL's choice, channels and times, else the formula
#     preset: dgx-h100, topology: {...}    ──►  the formula: NCCL's times are those of the preset's network
#     preset: fire-flyer-2                 ──►  the formula: NCCL's choice is not known without NVSwitches


@dataclass(frozen=True)
class OfPreset:
    """Collectives as a machine preset has them.

    Parameters
    ----------
    formula : Formula
        For ranks that are no GPUs, and where there is no other.
    nccl : Nccl, optional
        For GPUs.
    because : str
        Why there is none.

    Examples
    --------
    >>> OfPreset(Formula(), Nccl(gpu="h100")).told
    "collectives take NCCL 2.30's choice and times on h100; machine.collectives chooses another model"
    """

    formula: Formula
    nccl: Nccl | None = None
    because: str = ""

    @property
    def told(self) -> str:
        """Which model it is, in one line for users who did not choose it."""
        if self.nccl is not None:
            choice = f"NCCL 2.30's choice and times on {self.nccl.gpu}"
        else:
            choice = "the fastest algorithm by latency and bandwidth of the links"
            choice += f" ({self.because})" if self.because else ""
        return f"collectives take {choice}; machine.collectives chooses another model"

    def time_ns(self, call: Call, machine: Machine) -> int:
        """Return the ns that a call takes once all its ranks are there."""
        return (self._nccl(call, machine) or self.formula).time_ns(call, machine)

    def sms(self, call: Call, machine: Machine) -> int:
        """Return how many SMs of each rank a call takes."""
        nccl = self._nccl(call, machine)
        return 0 if nccl is None else nccl.sms(call, machine)

    def _nccl(self, call: Call, machine: Machine) -> Nccl | None:
        return self.nccl if all(machine.devices[rank].kind == "gpu" for rank in call.ranks) else None


def of_preset(model: CollectiveModel, devices: Sequence[Device], changed: str | None) -> CollectiveModel:
    """Return the model that a preset names, if it holds for the machine that was made of it.

    Parameters
    ----------
    model : CollectiveModel
        Of the preset.
    devices : sequence of Device
        Of the machine.
    changed : str or None
        A key of the machine by which its network is no longer the preset's.
    """
    gpus = [device for device in devices if device.kind == "gpu"]
    if type(model) is Formula:
        return OfPreset(model, because="NCCL's choice is known of GPUs on NVSwitches only" if gpus else "")
    if not isinstance(model, Nccl) or model.gpu == "auto":
        return model
    unlike = [gpu.name for gpu in gpus if gpu.details.sms not in GENERATIONS[model.gpu].sms]
    if changed is not None:
        because = f"NCCL's are known of the preset's network, which machine.{changed} changes"
    elif unlike:
        because = f"NCCL's are known of the preset's GPUs, and {unlike[0]} is another"
    elif not gpus:
        because = "NCCL's are known of the preset's GPUs, and this machine has none"
    elif max(Counter(node_of(gpu.name) for gpu in gpus).values()) > MOST_PER_NODE:
        because = "NCCL's choice is known of nodes of 8 GPUs"
    else:
        return OfPreset(Formula(), model)
    return OfPreset(Formula(), because=because)
