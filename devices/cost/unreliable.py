"""Where a cost may be off by more than a factor of 2, and the warning that says so.

A fitted model says how sure it is of each op (:mod:`devices.cost.kernel_costs`), a table measures how far its
neighbours contradict one another (:mod:`devices.cost.cost_table`). A plain roofline knows no
launch, no share of the peak that kernels reach, and no time in which computing and moving do not overlap.
What it lacks is allowed for here by two numbers for a kind of op::

    launch + (arithmetic + traffic) / share  >  2 x max(arithmetic, traffic)       may be twice as long

Short ops are met by the launch, and ops whose two sides take similar times by the sum. The numbers were
chosen on tables of an H200 so that no measured op escapes that took more
than twice its roofline, and as few as possible of the others are met; ``docs/costs.md`` counts them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

COLLECTIVES: Final = ("all_gather", "all_reduce", "reduce_scatter", "alltoall")


class UnreliableCostWarning(UserWarning):
    """A cost may be wrong by more than a factor of 2."""


class PlainRooflineWarning(UnreliableCostWarning):
    """Ops of a real device take a roofline that real kernels of such ops exceeded more than twofold.

    Attributes
    ----------
    subject : str
        The preset of the device: whoever shows warnings of many runs may show one for each subject.
    """

    def __init__(self, message: str, subject: str) -> None:
        super().__init__(message)
        self.subject = subject


class BorrowedRateWarning(UnreliableCostWarning):
    """Ops compute at the rate of another data type, as their device has none for their own.

    Attributes
    ----------
    subject : str
        Preset or kind of device, and data type: whoever shows warnings of many runs may show one for each.
    """

    def __init__(self, message: str, subject: str) -> None:
        super().__init__(message)
        self.subject = subject


class Allowance(NamedTuple):
    """What is allowed for beyond the data sheet before twice the roofline is called impossible.

    Attributes
    ----------
    launch_ns : int
        Launch, ramp and drain.
    share : float
        Of the peak rates; at or below one half every op may take twice its roofline.
    """

    launch_ns: int
    share: float


_PRODUCT: Final = Allowance(30_000, 0.85)  # least that meets all 12,119 of 28,595: 28,585 ns at this share
_COLLECTIVE: Final = Allowance(60_000, 0.6)  # least that meets all 196 of 252: 49,710 ns at this share
ALLOWANCES: Final = {
    "matmul": _PRODUCT,
    "attention": Allowance(0, 0.465),  # the share that large ones reach on an H200: met at every size
    **dict.fromkeys(("collective", *COLLECTIVES), _COLLECTIVE),
}
"""By kind of op, from the tables of the H200. What was not measured is taken for a product."""


def may_take_twice(kind: str, arithmetic_ns: ArrayLike, traffic_ns: ArrayLike) -> NDArray[np.bool_]:
    """Return which ops may take more than twice their plain roofline.

    Parameters
    ----------
    kind : str
        Of the ops; one that was not measured is taken for a matrix product.
    arithmetic_ns, traffic_ns : array_like, broadcast together
        The two sides of the roofline, in ns. An op that has neither does nothing, and cannot.

    Examples
    --------
    A product that is bound by memory for 30 us, one for 50 us, and one for 50 us on both sides:
    30 + 30 / 0.85 = 65 > 60, but 30 + 50 / 0.85 = 89 < 100, and 30 + 100 / 0.85 = 148 > 100.

    >>> may_take_twice("matmul", [0, 0, 50_000], [30_000, 50_000, 50_000]).tolist()
    [True, False, True]
    >>> may_take_twice("attention", [10_000_000], [0]).tolist()
    [True]
    """
    launch_ns, share = ALLOWANCES.get(kind, _PRODUCT)
    one, other = np.asarray(arithmetic_ns, np.float64), np.asarray(traffic_ns, np.float64)
    longest = np.maximum(one, other)
    found: NDArray[np.bool_] = (longest > 0) & (launch_ns + (one + other) / share > 2 * longest)
    return found
