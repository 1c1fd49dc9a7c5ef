"""Routing of tokens to experts: whole numbers of tokens from a distribution, a table or a trace.

::

    tokens: 4, top_k: 1, two ranks, four experts          expert   0  1  2  3
    routing: balanced                       ──►  rank 0            1  1  1  1
                                                 rank 1            1  1  1  1
    routing: {zipf: 1}                           rank 0            2  1  1  0      4 2 1 1 of the eight
                                                 rank 1            2  1  0  1
    routing: one-hot                             both              4  0  0  0
    routing: {tokens: [5, 1, 1, 1]}              rank 0            3  0  1  0      by expert, or rank by rank
    routing: {random: 7}, {zipf: 1, seed: 7}     drawn token by token
    routing: {trace: routed.csv}                 as recorded: a table (.csv, .csv.gz) with a token per row in
                                                 columns expert0, expert1, ..., and maybe rank

Shares become whole numbers by largest remainder (ties to the first expert), over all ranks at once; each
expert's tokens are then divided over their source ranks, as evenly as whole numbers allow. No expert gets a
token twice. An expert with a *capacity* takes ceil(tokens x top_k / experts x factor) of each rank's tokens
and drops the others.

Sources: Fedus, Zoph and Shazeer, "Switch Transformers", JMLR 23 (2022), section 2.2 (capacity), applied by
each rank to its own tokens as in Megatron-LM, megatron/core/transformer/moe/moe_utils.py (``get_capacity``,
``moe_pad_expert_input_to_capacity``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any, Final

import numpy as np

from sim.base.arrays import IntArray
from sim.base.errors import InputError, error_path, hint
from sim.base.files import read_table
from sim.base.plugins import NOWHERE, Origin
from sim.base.units import format_count

_FORMS: Final = ("balanced", "one-hot", "zipf", "random", "tokens", "trace")
_MOST_EXPONENT: Final = 100
_MOST_CELLS: Final = 10_000_000
"""Tokens times experts to draw at a time."""
_MOST_TOKENS: Final = 10**12
_MOST_DRAWN: Final = 10**8


@dataclass(frozen=True, eq=False)
class ExpertRouting:
    """Tokens that each rank sends to each expert; experts are on ranks in order, equally many on each.

    Attributes
    ----------
    sent : array of int64, (ranks, experts)
        Tokens that arrive, including padding.
    choices : int
        Tokens of each rank times the experts per token.
    dropped : tuple of int
        Choices of each rank dropped for lack of capacity.
    """

    sent: IntArray
    choices: int
    dropped: tuple[int, ...]

    @cached_property
    def between(self) -> IntArray:
        """Tokens from each rank to each rank, including those that stay."""
        ranks, experts = self.sent.shape
        return np.asarray(self.sent.reshape(ranks, ranks, experts // ranks).sum(axis=2))

    @cached_property
    def arrived(self) -> IntArray:
        """Tokens received by each rank's experts."""
        return np.asarray(self.between.sum(axis=0))

    @property
    def imbalance(self) -> Fraction:
        """Tokens of the fullest rank / mean tokens of a rank.

        Examples
        --------
        >>> route_tokens("one-hot", ranks=4, experts=8, tokens=100).imbalance
        Fraction(4, 1)
        """
        total = int(self.arrived.sum())
        return Fraction(int(self.arrived.max()) * len(self.arrived), total) if total else Fraction(1)


def route_tokens(
    spec: object,
    *,
    ranks: int,
    experts: int,
    tokens: int | None = None,
    top_k: int = 1,
    capacity_factor: float | None = None,
    pad: bool = False,
    origin: Origin = NOWHERE,
) -> ExpertRouting:
    """Return the number of tokens that each rank sends to each expert.

    Parameters
    ----------
    spec : str or mapping
        ``balanced``, ``one-hot`` or ``{one-hot: expert}``, ``{zipf: exponent}`` (with ``seed``: drawn),
        ``{random: seed}``, ``{tokens: [...]}`` (by expert, or by rank and expert), ``{trace: file}``.
    ranks, experts : int
    tokens : int, optional
        Tokens of each rank; not needed with a table or a trace.
    top_k : int
        Number of experts per token.
    capacity_factor : float, optional
        Tokens that an expert accepts from a rank / an equal share of them; by default all.
    pad : bool
        Whether ranks pad what they send to the capacity.
    origin : Origin
        Location against which a trace's path is resolved.

    Raises
    ------
    InputError
        If the form is unknown, or numbers contradict one another.

    Examples
    --------
    >>> route_tokens({"zipf": 1}, ranks=2, experts=4, tokens=4).sent.tolist()
    [[2, 1, 1, 0], [2, 1, 0, 1]]
    >>> found = route_tokens("one-hot", ranks=2, experts=4, tokens=8, capacity_factor=1.5)
    >>> found.sent.tolist(), found.dropped
    ([[3, 0, 0, 0], [3, 0, 0, 0]], (5, 5))
    """
    if experts % ranks:
        raise InputError(f"{ranks} ranks cannot share {format_count(experts, 'expert')}", path=("experts",))
    if top_k > experts:
        raise InputError(f"a token cannot go to {top_k} experts of {experts}", path=("top_k",))
    sent = _Form(spec, ranks, experts, tokens, top_k, origin).tokens_sent()
    choices = int(sent[0].sum())
    if capacity_factor is None:
        if pad:
            raise InputError("has no effect without capacity_factor", path=("pad",))
        return ExpertRouting(sent, choices, (0,) * ranks)
    if isinstance(capacity_factor, bool) or not 0 < capacity_factor < float("inf"):
        raise InputError(f"must be a number above 0; found {capacity_factor!r}", path=("capacity_factor",))
    capacity = ceil(choices / experts * capacity_factor)
    accepted = np.minimum(sent, capacity)
    dropped = tuple((sent - accepted).sum(axis=1).tolist())
    return ExpertRouting(np.full_like(sent, capacity) if pad else accepted, choices, dropped)


UnplacedRouting = Callable[..., ExpertRouting]
"""A partial call of `route_tokens`, before ranks and tokens are known."""


@dataclass
class _Form:
    """One form of routing, and the sizes that it has to fit."""

    given: object
    ranks: int
    experts: int
    tokens: int | None
    top_k: int
    origin: Origin

    def tokens_sent(self) -> IntArray:
        """Return the tokens from each rank to each expert."""
        form, value, options = self._read()
        if form == "tokens":
            return self._read_table(value)
        if form == "trace":
            if not isinstance(value, str):
                raise _error(f"trace must be a file; found {value!r}")
            with error_path("routing"):
                sent = self._read_trace(self.origin.file(value))
            return self._check_counts(sent)
        if self.tokens is None:
            raise InputError("how many tokens has a rank? Only a table or a trace says it", path=("tokens",))
        n = self.tokens * self.ranks
        if n > _MOST_TOKENS:
            raise InputError(f"{n:,} tokens are more than anybody routes", path=("tokens",))
        if form == "one-hot":
            first, totals = _whole_number(form, value, self.experts - 1), np.zeros(self.experts, np.int64)
            totals[np.arange(first, first + self.top_k) % self.experts] = n
            return self._deal(totals)
        if form == "random":
            return self._draw(self._weights(0), _whole_number(form, value))
        weights = self._weights(value if form == "zipf" else 0)
        if "seed" in options:
            return self._draw(weights, _whole_number("seed", options["seed"]))
        return self._deal(self._apportion(weights))

    def _read(self) -> tuple[str, Any, Mapping[str, Any]]:
        if not isinstance(self.given, Mapping):
            if self.given not in ("balanced", "one-hot"):
                raise _error(f"found {self.given!r}{hint(str(self.given), _FORMS)}")
            return str(self.given), 0, {}
        options = dict(self.given)
        forms = [key for key in options if key in _FORMS[1:]]
        if len(forms) != 1:
            strange = next((str(key) for key in options if key not in (*_FORMS, "seed")), None)
            text = ", ".join(map(str, options)) if strange is None else f"{strange!r}{hint(strange, _FORMS)}"
            raise _error(f"found {text}; it takes one of {', '.join(_FORMS[1:])}")
        value, accepted = options.pop(forms[0]), ["seed"] if forms == ["zipf"] else []
        for key in (key for key in options if key not in accepted):
            raise _error(f"{forms[0]} takes no {key!r}{hint(str(key), accepted)}")
        return forms[0], value, options

    def _weights(self, exponent: object) -> list[Fraction]:
        """Return 1/(x + 1)**exponent in decimal arithmetic, which is the same everywhere."""
        number = isinstance(exponent, int | float) and not isinstance(exponent, bool)
        if not number or not 0 <= exponent <= _MOST_EXPONENT:  # type: ignore[operator]
            raise _error(f"zipf must be an exponent from 0 to {_MOST_EXPONENT}; found {exponent!r}")
        context = Context(prec=50)
        power = context.minus(Decimal(str(exponent)))
        return [Fraction(context.power(Decimal(x + 1), power)) for x in range(self.experts)]

    def _apportion(self, weights: Sequence[Fraction]) -> IntArray:
        """Return all tokens apportioned by weight in whole numbers; no expert gets a token twice."""
        assert self.tokens is not None
        limit = self.tokens * self.ranks
        remaining, open_ = limit * self.top_k, list(range(self.experts))
        totals = np.zeros(self.experts, np.int64)
        while open_:
            total = sum(weights[x] for x in open_)
            full = [x for x in open_ if remaining * weights[x] > limit * total]
            if not full:
                break
            totals[full] = limit
            remaining -= limit * len(full)
            open_ = [x for x in open_ if x not in full]
        shares = [remaining * weights[x] / total for x in open_]
        totals[open_] = [int(share) for share in shares]
        leftover = remaining - sum(int(share) for share in shares)
        by_remainder = sorted(range(len(open_)), key=lambda k: int(shares[k]) - shares[k])
        totals[[open_[k] for k in by_remainder[:leftover]]] += 1
        return totals

    def _deal(self, totals: IntArray) -> IntArray:
        """Return the tokens of each expert by source rank; each rank has equally many."""
        sent = np.tile(totals // self.ranks, (self.ranks, 1))
        first = 0
        for x, extra in enumerate((totals % self.ranks).tolist()):
            sent[np.arange(first, first + extra) % self.ranks, x] += 1
            first += extra
        return sent

    def _draw(self, weights: Sequence[Fraction], seed: int) -> IntArray:
        """Return the tokens per expert if every token draws its experts in turn, none twice."""
        assert self.tokens is not None
        if self.tokens * self.ranks * self.top_k > _MOST_DRAWN:
            message = f"at most {_MOST_DRAWN:,} choices are drawn; use a distribution"
            raise InputError(message, path=("tokens",))
        scale = 2**62 / sum(weights)
        width = np.array([max(1, int(weight * scale)) for weight in weights], np.int64)
        end = np.cumsum(width)
        rng = np.random.default_rng([seed, *b"routing"])
        sent = np.zeros((self.ranks, self.experts), np.int64)
        for row in sent:
            for begin in range(0, self.tokens, _MOST_CELLS // self.top_k):
                n = min(self.tokens - begin, _MOST_CELLS // self.top_k)
                chosen = np.zeros((n, 0), np.int64)
                for _ in range(self.top_k):
                    # a place among the remaining experts: those already chosen are skipped
                    pick = rng.integers(0, end[-1] - width[chosen].sum(axis=1), size=n)
                    for x in chosen.T:
                        pick += np.where(pick >= end[x] - width[x], width[x], 0)
                    chosen = np.sort(np.column_stack((chosen, np.searchsorted(end, pick, "right"))), axis=1)
                row += np.bincount(chosen.ravel(), minlength=self.experts)
        return sent

    def _read_table(self, value: object) -> IntArray:
        """Return the tokens of a table: by expert, or by rank and expert."""
        rows = value if isinstance(value, list | tuple) else []
        by_rank = bool(rows) and all(isinstance(row, list | tuple) for row in rows)
        cells = [cell for row in rows for cell in row] if by_rank else list(rows)
        if not cells or not all(type(cell) is int and 0 <= cell <= _MOST_TOKENS for cell in cells):
            raise _error("tokens must be a list of whole numbers, of each expert, or one such list a rank")
        lengths = {len(row) for row in rows} if by_rank else {len(rows)}
        if lengths != {self.experts} or (by_rank and len(rows) != self.ranks):
            have = f"{len(rows)} lists of {sorted(lengths)}" if by_rank else f"{len(rows)}"
            message = f"tokens must be {self.experts} numbers, or {self.ranks} lists of them"
            raise _error(f"{message}; found {have}")
        if by_rank:
            return self._check_counts(np.array(rows, np.int64))
        total = sum(cells)
        if total % (self.ranks * self.top_k):
            message = f"tokens are {total:,} choices, which {self.ranks} ranks with top_k {self.top_k} cannot"
            raise _error(f"{message} have made equally")
        return self._check_counts(self._deal(np.array(cells, np.int64)))

    def _read_trace(self, path: Path) -> IntArray:
        """Return the tokens of a trace; without ranks in it, each rank has an equal contiguous part."""
        header, rows = read_table(path)
        chosen = [name for name in header if name.startswith("expert")]
        if not chosen or {*header} - {"rank", *chosen}:
            message = "its first line must name the columns expert0, expert1, ..., and may name rank"
            raise InputError(f"{path}: {message}")
        n = len(rows)
        if len(chosen) != self.top_k or not n:
            message = f"must have {self.top_k} expert(s) a token, as top_k says"
            raise InputError(f"{path}: {message}; found {n} tokens with {len(chosen)}")
        if "rank" not in header and n % self.ranks:
            message = f"{path}: {n:,} tokens cannot be shared by {self.ranks} ranks"
            raise InputError(f"{message}; give it a column rank")
        sent = [[0] * self.experts for _ in range(self.ranks)]
        for k, (line, row) in enumerate(rows):
            try:
                experts = [int(row[name]) for name in chosen]
                rank = int(row["rank"]) if "rank" in row else k * self.ranks // n
            except ValueError as error:
                raise InputError(f"{line}: {error}") from None
            for column, numbers, size in (("rank", (rank,), self.ranks), ("expert", experts, self.experts)):
                if min(numbers) < 0 or max(numbers) >= size:
                    wrong = next(number for number in numbers if not 0 <= number < size)
                    raise InputError(f"{line}: the token has {column} {wrong}; there are 0 to {size - 1}")
            if len({*experts}) < len(experts):
                raise InputError(f"{line}: the token goes to one expert twice")
            for x in experts:
                sent[rank][x] += 1
        return np.array(sent, np.int64)

    def _check_counts(self, sent: IntArray) -> IntArray:
        """Raise if the counts are not the tokens that the ranks have."""
        chosen = sent.sum(axis=1).tolist()
        tokens = chosen[0] // self.top_k if self.tokens is None else self.tokens
        for rank, count in enumerate(chosen):
            if count != tokens * self.top_k:
                rule = f"each has {tokens:,} tokens, which go to {self.top_k} experts"
                raise _error(f"rank {rank} sends {count:,}, and {rule}")
        if tokens and int(sent.max()) > tokens:
            rank, x = (int(k) for k in np.argwhere(sent > tokens)[0])
            more = f"rank {rank} sends {int(sent[rank, x]):,} to expert {x}, and has {tokens:,} tokens"
            raise _error(f"{more}; none goes to an expert twice")
        return sent


def _whole_number(name: str, value: object, limit: int = 2**63) -> int:
    if type(value) is not int or not 0 <= value <= limit:
        raise _error(f"{name} must be a whole number from 0 to {limit}; found {value!r}")
    return value


def _error(message: str) -> InputError:
    return InputError(message, path=("routing",))
