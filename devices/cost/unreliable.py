"""Warnings of costs that may be off by more than a factor of 2.

A fitted model says how sure it is of each op (:mod:`devices.cost.kernel_costs`), a table measures how far its
neighbours contradict one another (:mod:`devices.cost.cost_table`). A plain roofline knows no launch, no share
of the peak that kernels reach, and no time in which computing and moving do not overlap: it is a lower bound.
"""

from __future__ import annotations


class UnreliableCostWarning(UserWarning):
    """A cost may be wrong by more than a factor of 2."""


class _OfASubject(UnreliableCostWarning):
    def __init__(self, message: str, subject: str) -> None:
        super().__init__(message)
        self.subject = subject


class PlainRooflineWarning(_OfASubject):
    """Ops of a real device take its plain roofline.

    Attributes
    ----------
    subject : str
        The preset of the device: whoever shows warnings of many runs may show one for each subject.
    """


class BorrowedRateWarning(_OfASubject):
    """Ops compute at the rate of another data type, as their device has none for their own.

    Attributes
    ----------
    subject : str
        Preset or kind of device, and data type: whoever shows warnings of many runs may show one for each.
    """


class UnknownWorkWarning(_OfASubject):
    """Products, convolutions or attention have no flop, and so the time of their bytes.

    Attributes
    ----------
    subject : str
        The kind of the first: whoever shows warnings of many runs may show one for each.
    """


class UnusedTableWarning(_OfASubject):
    """No op takes its duration from a measured table that a device has.

    Attributes
    ----------
    subject : str
        The device, and the table's kinds of op: whoever shows warnings of many runs may show one for each.
    """
