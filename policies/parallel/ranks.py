"""Ranks: their number and devices, and a copy of one program on every device.

::

    F  B  all_reduce  U     ──►     gpu0/F  gpu0/B  gpu0/all_reduce  gpu0/U
                                    gpu1/F  gpu1/B  gpu1/all_reduce  gpu1/U        joined by ``ddp``

Copies are shifted columns: a thousand ranks of a thousand ops take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from policies.option_checks import whole
from sim.base.arrays import MOST_BUILT, UNSET, Csr, IntArray, at_most
from sim.base.errors import InputError
from sim.graph.builder import GraphBuilder
from sim.graph.graph import Graph, Role

if TYPE_CHECKING:
    from collections.abc import Mapping


MOST_RANKS: Final = 100_000
"""Most devices accepted; a larger number is taken for a typing error."""


def gpus(n: int) -> tuple[str, ...]:
    """Return the devices of `n` ranks if the machine is unknown: gpu0, gpu1, ..."""
    return tuple(f"gpu{r}" for r in range(n))


@dataclass(frozen=True)
class Ranks:
    """The value of an option for ranks: a number, devices, or neither, for as many as there is room for.

    Attributes
    ----------
    n : int or None
    names : tuple of str or None
        None: the accelerators of the machine, in machine order.

    Examples
    --------
    >>> Ranks.of("ddp", 2), Ranks.of("ddp", ["left", "right"]).names
    (Ranks(n=2, names=None), ('left', 'right'))
    """

    n: int | None = None
    names: tuple[str, ...] | None = None

    @staticmethod
    def of(policy: str, given: object, option: str = "ranks") -> Ranks:
        """Return the parsed value of an option.

        Raises
        ------
        InputError
            If it is neither a number nor a list of distinct names.
        """
        if isinstance(given, list | tuple):
            names = tuple(given)
            if names and len(set(map(str, names))) == len(names) and all(isinstance(n, str) for n in names):
                return Ranks(len(names), names)
            message = "must be a number of GPUs or a list of devices, each once"
            raise InputError(f"{policy}: {option} {message}; found {given!r}", path=(option,))
        return Ranks(whole(policy, option, given, most=MOST_RANKS))


_NUMBERS: Final = (
    *("duration_ns", "flops", "bytes_read", "bytes_written", "stage", "micro_batch"),
    *("input_distance", "after_distance"),
)
"""Columns that are the same on every rank."""


def add_ranks(
    out: GraphBuilder,
    graph: Graph,
    ranks: Sequence[str],
    attributes: Callable[[Mapping[str, Any], int], Mapping[str, Any]],
    device: Callable[[str, int], str] | None = None,
) -> None:
    """Add a copy of `graph` for every rank, with ops and tensors named after its device.

    Parameters
    ----------
    out : GraphBuilder
    graph : Graph
    ranks : sequence of str
        Device of each rank.
    attributes : callable
        ``attributes(own, rank)`` returns the attributes of an op on the rank at that place in `ranks`.
    device : callable, optional
        ``device(name, rank)`` returns a rank's device for ops that `graph` pins to device `name`, if ranks
        have several devices; by default all of a rank is on the device that it is named after.

    Raises
    ------
    InputError
        If there are more ops than fit.
    """
    at_most(MOST_BUILT, len(out) + len(ranks) * len(graph), "ops")
    n, size, given = len(ranks), len(graph), len(graph.external_names)
    facts = list(zip(graph.tensor_nbytes[:given].tolist(), graph.tensor_role[:given].tolist(), strict=True))
    pinned = graph.tensor_pin[:given].tolist()
    at = [[name if device is None else device(pin, r) for pin in graph.pins] for r, name in enumerate(ranks)]
    first: list[int] = []  # first input or parameter of each rank
    for rank, own in zip(ranks, at, strict=True):
        for name, (nbytes, role), pin in zip(graph.external_names, facts, pinned, strict=True):
            add = out.parameter if role == Role.PARAMETER else out.input
            add(f"{rank}/{name}", nbytes, device=own[pin] if pin != UNSET else None)
        first.append(out.external(f"{rank}/{graph.external_names[0]}") if given else 0)
    op, output = len(out), out.tensor(len(out))
    made = graph.outputs.indices.size
    tensors = graph.inputs.indices
    inputs = [
        np.where(tensors < given, first[r] - tensors, output + r * made + tensors - given) for r in range(n)
    ]
    after = [graph.after.indices + op + r * size for r in range(n)]
    places = list(ranks), np.repeat(np.arange(n), size)
    if device is not None:
        codes = np.tile(graph.pin_code, n)
        shift = places[1] * len(graph.pins)
        places = [name for own in at for name in own], np.where(codes == UNSET, UNSET, codes + shift)
    out.extend(
        [f"{rank}/{name}" for rank in ranks for name in graph.op_names],
        kind=(graph.kinds, np.tile(graph.kind_code, n)),
        inputs=_tile(graph.inputs, inputs),
        outputs=_tile(graph.outputs, [graph.tensor_nbytes[graph.outputs.indices]] * n),
        device=places,
        after=_tile(graph.after, after),
        phase=(graph.phases, np.tile(graph.phase_code, n)),
        dtype=(graph.dtypes, np.tile(graph.dtype_code, n)),
        **{name: np.tile(getattr(graph, name), n) for name in _NUMBERS},
        duration_by_kind={
            kind: {op + r * size + k: ns for r in range(n) for k, ns in enumerate(column.tolist()) if ns >= 0}
            for kind, column in graph.duration_by_kind.items()
        },
        attributes={
            op + r * size + k: attributes(own, r) for r in range(n) for k, own in graph.attributes.items()
        },
    )


def _tile(rows: Csr, entries: list[IntArray]) -> Csr:
    """Return the rows repeated, with the entries of each repetition."""
    counts = np.tile(rows.counts(), len(entries))
    return Csr.of_counts(counts, np.concatenate(entries))
