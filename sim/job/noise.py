"""Noise: durations that vary from task to task, and devices that are slower than they should be.

Every task's duration is drawn once, before time 0, from the seed alone, so that two policies meet the
same random durations and a run can be repeated::

    actual = nominal · device's factor · exp(N(-σ²/2, σ)) · (straggler: factor, with probability p)

The log-normal factor has mean 1: noise does not make the work longer on average, only the waiting.

Under control flow the tasks are not known before time 0. There a task's duration follows from the seed,
its op, and the loops and iterations that it runs in (`draw_by_tag`), so that all policies still meet the same
durations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sim.base.arrays import LATEST_NS, FloatArray, IntArray
from sim.base.errors import InputError
from sim.machine.machine import Machine


@dataclass(frozen=True)
class Noise:
    """How durations vary.

    Attributes
    ----------
    sigma : float
        Standard deviation of the logarithm of the factor drawn for each task; 0.05 is about 5 %.
    devices : mapping of str to float
        Device → constant factor: 1.2 is a device that is 20 % slower.
    straggler_probability, straggler_factor : float
        Probability that a task is a straggler, and the factor by which it then takes longer.

    Raises
    ------
    InputError
        A negative number, a probability above 1, or a factor that is not positive.
    """

    sigma: float = 0.0
    devices: Mapping[str, float] = field(default_factory=dict)
    straggler_probability: float = 0.0
    straggler_factor: float = 1.0

    def __post_init__(self) -> None:
        """Raise on values that cannot be drawn."""
        if self.sigma < 0 or not 0 <= self.straggler_probability <= 1:
            raise InputError(
                f"noise: sigma must be >= 0 and straggler_probability between 0 and 1; found "
                f"{self.sigma} and {self.straggler_probability}"
            )
        for name, factor in {**self.devices, "straggler_factor": self.straggler_factor}.items():
            if factor <= 0:
                raise InputError(f"noise: the factor of {name} must be positive, found {factor}")

    def expected_ns(self, duration_ns: IntArray, device_of: IntArray, machine: Machine) -> FloatArray:
        """Return the mean duration of each op on its device.

        Raises
        ------
        UnknownNameError
            There is a factor for a device that the machine does not have.
        """
        factor = np.ones(len(machine.devices))
        for name, slower in self.devices.items():
            factor[machine.device_index(name)] = slower
        return duration_ns * factor[device_of]

    def draw(self, expected_ns: FloatArray, shape: tuple[int, ...], rng: np.random.Generator) -> IntArray:
        """Return durations of tasks in whole ns, rounded half up, from the means in the last dimension.

        Examples
        --------
        >>> Noise(straggler_probability=1, straggler_factor=1.5).draw(
        ...     np.array([1000.0, 2000.0]), (1, 2), np.random.default_rng(0)
        ... ).tolist()
        [[1500, 3000]]
        """
        drawn = expected_ns * lognormal(self.sigma, shape, rng)
        drawn = np.where(rng.random(shape) < self.straggler_probability, drawn * self.straggler_factor, drawn)
        if not drawn.max(initial=0) < LATEST_NS:
            raise InputError("noise: makes a task longer than 146 years, the most that there may be")
        return np.floor(drawn + 0.5).astype(np.int64)


def lognormal(sigma: float, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return factors of mean 1 whose logarithms have the standard deviation `sigma`."""
    return np.exp(rng.normal(-(sigma**2) / 2, sigma, shape))


def draw_by_tag(noise: Noise, expected_ns: FloatArray, seed: int, op: int, iteration: int, frame: str) -> int:
    """Return the duration of an op in a repetition of the graph and in loops (``outer:2/inner:0``).

    Parameters
    ----------
    noise : Noise
    expected_ns : array of float, one entry per op
        Mean durations.
    seed, op, iteration : int
    frame : str
    """
    rng = np.random.default_rng([seed, *b"noise", op, iteration, *frame.encode()])
    return int(noise.draw(expected_ns[op : op + 1], (1,), rng)[0])
