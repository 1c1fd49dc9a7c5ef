"""Models of collectives by name, as a machine's description chooses them.

::

    collectives: {model: formula, algorithm: ring}   ──►   Formula(algorithm="ring")

A name is an entry point of the group ``sim.collectives``: a class or function whose parameters are the
options, and which makes a `sim.machine.communicators.CollectiveModel`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from devices.collectives.formulas import Formula, node_of
from devices.collectives.nccl_model import Nccl
from devices.collectives.nccl_tuner import GENERATIONS
from devices.describe.field_types import read_mapping
from sim.base.errors import InputError, error_path
from sim.base.options import arguments, parameters, require_call
from sim.base.plugins import NOWHERE, Origin
from sim.machine.communicators import Call, CollectiveModel
from sim.machine.device import Device
from sim.machine.machine import Machine

DEFAULT_MODEL = "formula"


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
        name = options.pop("model", DEFAULT_MODEL)
        if not isinstance(name, str):
            raise InputError(f"{name!r} is no name of a model")
        make = origin.lookup("sim.collectives", name)
        taken = parameters(make)
    more = {"origin": origin} if taken.pop("origin", None) else {}  # for files that it names
    made: CollectiveModel = make(**arguments(f"the model {name!r} of collectives", taken, options), **more)
    require_call(f"what the model {name!r} of collectives makes", made, "call", "machine", method="time_ns")
    return made


# ----------------------------------------------------------------------------------------------------------
# Collectives of a machine preset, where nobody chose a model: NCCL's if it is known, else the formula.
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
        """Which model it is, in a line for whoever did not choose it."""
        if self.nccl is not None:
            what = f"NCCL 2.30's choice and times on {self.nccl.gpu}"
        else:
            what = "the fastest algorithm by latency and bandwidth of the links"
            what += f" ({self.because})" if self.because else ""
        return f"collectives take {what}; machine.collectives chooses another model"

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
    elif max(Counter(node_of(gpu.name) for gpu in gpus).values()) > 8:
        because = "NCCL's choice is known of nodes of 8 GPUs"
    else:
        return OfPreset(Formula(), model)
    return OfPreset(Formula(), because=because)
