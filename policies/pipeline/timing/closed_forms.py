"""What the textbook says a schedule takes: formulas, each with the sizes for which it is exact.

p ranks, m micro-batches, v chunks; F, B = I + W per stage (a chunk is a stage); equal stages, free
transfers. "Work" is what one rank computes: m·v·(F + B).

    name                what       = work +                    exact when
    gpipe               makespan   (p-1)(F+B)                  always
    1f1b                makespan   (p-1)(F+B)                  m ≥ p
    interleaved-1f1b    makespan   (p-1)(F+B)                  p divides m
    looped-bfs          makespan   (p-1)(F+B)                  m ≥ p
    zb-h1               makespan   (p-1)·max(F+I-W, I, F)      m ≥ p
    zb-h2               span       (p-1)·max(F+I-2W, I-F, 0)   m ≥ 2p-1
    zb-v                span       0                           F = I = W, m ≥ 2p-1
    dualpipe            makespan   (p/2-1)(F&B + B - 3W)       F = I ≥ W, F&B = F+B
    dualpipe-v          makespan   (p-1)(F&B + B - 3W)         F = I ≥ W, F&B = F+B
    chimera             makespan   (p-2)·max(F, B)             m = p; or F = B and p divides m

The bubble is the excess over the whole: for GPipe (p-1)/(m+p-1). Some papers give it relative to the
work, for interleaved (p-1)/(v·m): ``excess / work``.

Outside these sizes the formulas are bounds or nothing; then there is no closed form, and
`policies.pipeline.evaluate` still computes the exact value.

Sources: Huang et al., arXiv 1811.06965; Narayanan et al., arXiv 2104.04473, section 2.2; Qi et al.,
arXiv 2401.10241, section 2 (there for F+I ≥ 2W and I ≥ F; the maxima and domains here were found by
exhaustive evaluation and are property-tested); deepseek-ai/DualPipe, README.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from policies.pipeline.timing.evaluate import StageTimes

__all__ = ["ClosedForm", "closed_form"]


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """A formula with its value.

    Attributes
    ----------
    quantity : {"makespan", "span"}
        What it gives: from first start to last end of all ranks, or the longest of one rank.
    formula : str
        The excess over the work, as in the table above.
    work : int
        What one rank computes.
    excess : int
        What the formula adds to it.
    """

    quantity: Literal["makespan", "span"]
    formula: str
    work: int
    excess: int

    @property
    def value(self) -> int:
        """The makespan or span."""
        return self.work + self.excess

    @property
    def bubble(self) -> Fraction:
        """The excess over the whole."""
        return Fraction(self.excess, self.value) if self.value else Fraction(0)


@dataclass(frozen=True, slots=True)
class _Sizes:
    p: int
    m: int
    v: int
    times: StageTimes

    def split(self) -> tuple[int, int, int] | None:
        """Return F, I, W, where the backward is given in its two halves."""
        times = self.times
        if times.input_grad is None or times.weight_grad is None:
            return None
        return times.forward, times.input_grad, times.weight_grad


_Excess = Callable[[_Sizes], int | None]
"""The excess over the work, or None where the formula is not exact."""


def closed_form(
    name: str, *, ranks: int, micro_batches: int, chunks: int = 1, times: StageTimes
) -> ClosedForm | None:
    """Return what the textbook says of a schedule, or None where no exact formula is known.

    Parameters
    ----------
    name : str
        The schedule.
    ranks, micro_batches, chunks : int
        Sizes.
    times : StageTimes
        Times of every stage, all equal; transfers are free.

    Examples
    --------
    >>> form = closed_form("1f1b", ranks=4, micro_batches=8, times=StageTimes(forward=1, backward=2))
    >>> form.value, form.bubble, form.formula
    (33, Fraction(3, 11), '(p-1)(F+B)')
    >>> closed_form("zb-auto", ranks=4, micro_batches=8, times=StageTimes(forward=1, backward=2)) is None
    True
    """
    if name not in _FORMS:
        return None
    quantity, formula, excess = _FORMS[name]
    sizes = _Sizes(ranks, micro_batches, chunks, times)
    found = excess(sizes)
    if found is None:
        return None
    work = micro_batches * chunks * (times.of("F") + times.of("B"))
    return ClosedForm(quantity, formula, work, found)


def _fill_and_drain(s: _Sizes) -> int:
    return (s.p - 1) * (s.times.of("F") + s.times.of("B"))


def _zb_h1(s: _Sizes) -> int | None:
    split = s.split()
    if split is None or s.m < s.p:
        return None
    f, i, w = split
    return (s.p - 1) * max(f + i - w, i, f)


def _zb_h2(s: _Sizes) -> int | None:
    split = s.split()
    if split is None or s.m < 2 * s.p - 1:
        return None
    f, i, w = split
    return (s.p - 1) * max(f + i - 2 * w, i - f, 0)


def _zb_v(s: _Sizes) -> int | None:
    split = s.split()
    return 0 if split is not None and len(set(split)) == 1 and s.m >= 2 * s.p - 1 else None


def _dualpipe(s: _Sizes, half: int) -> int | None:
    split, together = s.split(), s.times.overlapped
    if split is None:
        return None
    f, i, w = split
    if f != i or w > f or (together is not None and together != f + i + w):
        return None
    return (half - 1) * ((f + i + w) + (i + w) - 3 * w)


def _chimera(s: _Sizes) -> int | None:
    f, b = s.times.of("F"), s.times.of("B")
    if s.m == s.p or (f == b and s.m % s.p == 0):
        return (s.p - 2) * max(f, b)
    return None


_FORMS: dict[str, tuple[Literal["makespan", "span"], str, _Excess]] = {
    "gpipe": ("makespan", "(p-1)(F+B)", _fill_and_drain),
    "1f1b": ("makespan", "(p-1)(F+B)", lambda s: _fill_and_drain(s) if s.m >= s.p else None),
    "interleaved-1f1b": ("makespan", "(p-1)(F+B)", lambda s: _fill_and_drain(s) if s.m % s.p == 0 else None),
    "looped-bfs": ("makespan", "(p-1)(F+B)", lambda s: _fill_and_drain(s) if s.m >= s.p else None),
    "zb-h1": ("makespan", "(p-1)·max(F+I-W, I, F)", _zb_h1),
    "zb-h2": ("span", "(p-1)·max(F+I-2W, I-F, 0)", _zb_h2),
    "zb-v": ("span", "0", _zb_v),
    "dualpipe": ("makespan", "(p/2-1)(F&B + B - 3W)", lambda s: _dualpipe(s, s.p // 2)),
    "dualpipe-v": ("makespan", "(p-1)(F&B + B - 3W)", lambda s: _dualpipe(s, s.p)),
    "chimera": ("makespan", "(p-2)·max(F, B)", _chimera),
}
