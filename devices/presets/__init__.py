"""Known devices and machines: descriptions in YAML, every number with its source beside it.

::

    devices/presets/h200-sxm.yaml              a device        make_device("gpu0", {"preset": "h200-sxm"})
    devices/presets/machines/dgx-h100.yaml     a machine       make_machine({"preset": "dgx-h100"})

A file describes real hardware with the keys of `devices.describe.fields`. Peak rates are the vendor's; launch
costs are medians of public profiler traces, named in the file. To use better measurements, write a preset and
register it in the entry-point group ``sim.devices`` or ``sim.machines``: a mapping, or a function that
returns one and whose docstring is the line shown in listings. The presets here are registered in the same
way: ``devices.presets:h200_sxm`` is such a function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import yaml

from sim.base import plugins
from sim.base.errors import InputError

__all__ = ["device_preset", "machine_preset", "preset_text", "presets"]

_FOLDERS: Final = (files(__name__), files(__name__) / "machines")


def device_preset(name: str, origin: plugins.Origin = plugins.NOWHERE) -> dict[str, Any]:
    """Return the description of the device called `name`.

    Raises
    ------
    UnknownNameError
        There is none; the message has the nearest name.

    Examples
    --------
    >>> device_preset("h200-sxm")["sms"]
    132
    """
    return _describe("sim.devices", name, origin)


def machine_preset(name: str, origin: plugins.Origin = plugins.NOWHERE) -> dict[str, Any]:
    """Return the description of the machine called `name`.

    Raises
    ------
    UnknownNameError
        There is none; the message has the nearest name.

    Examples
    --------
    >>> machine_preset("dgx-h100")["devices"]["gpu"]
    {'preset': 'h100-sxm', 'count': 8}
    """
    if name in plugins.names("sim.devices") and name not in plugins.names("sim.machines"):
        raise InputError(f"{name!r} is a device; a machine has devices: {{NAME: {name}}}")
    return _describe("sim.machines", name, origin)


def preset_text(name: str) -> str | None:
    """Return the file of a preset of ours, with a source beside every number; None: there is no such file."""
    file = next((file for folder in _FOLDERS if (file := folder / f"{name}.yaml").is_file()), None)
    return None if file is None else file.read_text(encoding="utf-8")


def presets(group: str = "sim.devices") -> list[plugins.Description]:
    """Return name, one line and origin of all presets of a group, sorted by name.

    Parameters
    ----------
    group : str
        ``"sim.devices"`` or ``"sim.machines"``.
    """
    return plugins.describe(group)


def _describe(group: str, name: str, origin: plugins.Origin) -> dict[str, Any]:
    preset = origin.lookup(group, name)
    spec = preset() if callable(preset) else preset
    if not isinstance(spec, Mapping):
        raise InputError(f"the preset {name!r} is no description: it should be a mapping, found {spec!r}")
    return dict(spec)


@cache
def __getattr__(name: str) -> Callable[[], dict[str, Any]]:
    """Return the preset of the file called `name`, with ``_`` for ``-``: what entry points refer to."""
    text = preset_text(name.replace("_", "-"))
    if text is None:
        raise AttributeError(f"module {__name__!r} has no attribute and no preset {name!r}")
    spec: dict[str, Any] = yaml_content(text)

    def preset() -> dict[str, Any]:
        return dict(spec)

    preset.__doc__ = spec["description"]
    return preset


def yaml_content(text: str) -> Any:
    """Return what YAML of ours holds."""
    # CSafeLoader is the same, written in C; not every build of PyYAML has it.
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def yaml_beside(module: str, name: str) -> Any:
    """Return what a YAML file of ours holds that stands beside a module, whose ``__file__`` is given."""
    return yaml_content(Path(module).with_name(name).read_text(encoding="utf-8"))
