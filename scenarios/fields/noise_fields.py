"""Noise of a scenario: ``noise: {sigma: 0.05, devices: {gpu1: 1.2}, straggler_probability: 1%, ...}``.

The words of `sim.job.noise.Noise`, checked and placed in the file.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from devices.describe.quantities import Name, Strict, reader
from sim.words.units import parse_fraction

if TYPE_CHECKING:
    from sim.job.noise import Noise

__all__ = ["NoiseFields"]


Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A factor of durations: 1.2 is 20 % slower."""

Spread = Annotated[float, Field(ge=0, lt=10, allow_inf_nan=False)]
"""Standard deviation of the logarithm of a factor: 0.05 is about 5 %."""

Probability = Annotated[
    float,
    BeforeValidator(reader(lambda value: float(parse_fraction(value, what="")))),
    WithJsonSchema({"type": ["number", "string"]}),
]


class NoiseFields(Strict):
    """How durations vary; policies do not see this."""

    sigma: Annotated[
        Spread,
        Field(description="standard deviation of the logarithm of each task's factor; 0.05 is about 5 %"),
    ] = 0.0
    devices: Annotated[
        dict[Name, Factor],
        Field(default_factory=dict, description="factor of each device: 1.2 is 20 % slower"),
    ]
    straggler_probability: Annotated[
        Probability, Field(description="probability that a task is a straggler")
    ] = 0.0
    straggler_factor: Annotated[Factor, Field(description="how many times longer a straggler takes")] = 1.0

    def noise(self, known: Container[str]) -> Noise:
        """Return it for `sim.job.build_job.make_job`, of the devices that are `known`."""
        from sim.job.noise import Noise

        devices = {name: factor for name, factor in self.devices.items() if name in known}
        return Noise(self.sigma, devices, self.straggler_probability, self.straggler_factor)
