"""What measured durations are of: the data types of the ops, and what is in a duration besides the kernel.

A kernel that is measured in a chain, back to back with others, has in its time the pause before the next. A
device has that pause as its ``gap``, and counted twice, short kernels take half as long again::

    measured, a chain of 200            |kernel|gap|kernel|gap| ...      506 us: 2.5 us each
    simulated with 2.5 us + gap 1.6 us  |kernel    |gap|kernel    |gap|  827 us
    simulated with 2.5 us - gap         |kernel|gap|kernel|gap| ...      506 us

So a table, and a fit to one, says what it contains, and the cost model takes off what the device adds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from devices.describe.field_types import dtype_name
from devices.describe.fields import Field, read_fields
from sim.base.arrays import BoolArray, IntArray
from sim.base.errors import InputError
from sim.base.files import loads_once, read_bytes
from sim.graph.graph import Graph
from sim.machine.device import Device


class Measured(NamedTuple):
    """What a table, or a fit to one, rests on.

    Attributes
    ----------
    dtypes : tuple of str
        Data types of the measured ops; empty: it does not say.
    contains : tuple of str
        What is in a duration besides the kernel: ``gap``, or nothing.
    """

    dtypes: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()

    @classmethod
    def read(cls, spec: object) -> Measured:
        """Read ``{dtypes: [bf16], contains: [gap]}``.

        Raises
        ------
        InputError
            Another key, or something else that a duration is said to contain.

        Examples
        --------
        >>> Measured.read({"dtypes": ["bfloat16"], "contains": ["gap"]})
        Measured(dtypes=('bf16',), contains=('gap',))
        """
        return cls(**read_fields(spec, _FIELDS, "measured"))

    def to_json(self) -> dict[str, list[str]]:
        """Return what `read` reads."""
        return {key: list(words) for key, words in self._asdict().items() if words}

    def covers(self, graph: Graph) -> BoolArray:
        """Return which ops have a measured data type, or name none."""
        if not self.dtypes:
            return np.ones(len(graph), np.bool_)
        known = np.array([dtype_name(name) in self.dtypes for name in graph.dtypes] + [True])
        found: BoolArray = known[graph.dtype_code]  # the code of no data type is -1, which is the last
        return found

    def alone_ns(self, measured_ns: IntArray, device: Device) -> IntArray:
        """Return durations without what the device adds to each op."""
        return np.maximum(measured_ns - device.gap_ns, 0) if "gap" in self.contains else measured_ns


NOTHING_SAID: Final = Measured()
"""Of a table that does not say: any data type, and kernels alone."""


_FIELDS: Final = {
    "dtypes": Field("dtypes", "dtypes", "of the measured ops"),
    "contains": Field("contains", "contents", "what is in a duration besides the kernel"),
}


# ----------------------------------------------------------------------------------------------------------
# Reading a file with a schema: JSON, maybe gzipped, and every failure in one line that names the file.


def read_record(path: str | Path, what: str, *schemas: str) -> dict[str, Any]:
    """Return the mapping in a file whose key ``schema`` is one of some.

    Parameters
    ----------
    path : path
    what : str
        What the file should be, for messages: ``"a cost table"``.
    *schemas : str

    Raises
    ------
    InputError
        No such file, no JSON, or another schema.
    """
    try:
        data = loads_once(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as JSON: {error}") from error
    found = data.get("schema") if isinstance(data, dict) else None
    if found not in schemas:
        accepted = " or ".join(map(repr, schemas))
        ours = f", found {found!r}" if isinstance(found, str) and found.startswith("sim.") else ""
        raise InputError(f"{path}: not {what}: 'schema' must be {accepted}{ours}")
    return data  # type: ignore[no-any-return]


@contextmanager
def well_formed(path: str | Path) -> Iterator[None]:
    """Turn what goes wrong while the content of a file is taken apart into an error that names the file."""
    try:
        yield
    except KeyError as error:
        raise InputError(f"{path}: the key {error} is missing") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: malformed: {error}") from error
