"""Does a training step fit, and if not: which rank, when, what owns the memory, and what would make it fit.

::

    one setting at a time, its least notch that fits: policy, micro_batch /2 .., recompute, sharding,
    shard, tp, cp, pp ×2 ..
    of those that fit: the one with the fastest step

A change of tp, cp or pp takes the ranks from dp, so that the cluster stays as large; the global batch stays,
too. Sharding over fewer ranks (HSDP) counts as one setting: of those that fit, what communicates least.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from scenarios.build.train.layout import SHARDINGS, Sharding
from scenarios.build.train.memory import Peak
from scenarios.build.train.step import peaks_of, step_ns
from scenarios.build.train.training import Training
from scenarios.work.train.hybrid import fastest_shard, shards
from sim.words.errors import InputError, OutOfMemoryError
from sim.words.units import format_bytes, format_duration

__all__ = ["Change", "changes_that_fit", "check_fits"]


_LEAN: Final = ("1f1b", "interleaved-1f1b", "v-half", "v-min")
"""Schedules that start backwards early, each holding fewer activations than those before it."""


class Change(NamedTuple):
    """One setting that makes a training fit, what its fullest rank then holds, and its step."""

    what: str
    peak: int
    step_ns: int


def _notches(of: Training) -> Iterator[list[tuple[str, Training]]]:
    """Yield ladders of a single setting, each from its least change to its greatest."""
    layout = of.layout

    def tried(what: str, **changes: object) -> list[tuple[str, Training]]:
        try:
            return [(what, replace(of, **changes))]  # type: ignore[arg-type]
        except InputError:  # sizes that do not fit each other are no way out
            return []

    if layout.pp > 1:
        yield [
            each
            for name in _LEAN
            if name != of.policy
            for each in tried(f"policy: {name}", policy=name, options={})
        ]
    ladder: list[tuple[str, Training]] = []
    smaller = of.micro_batch
    while smaller % 2 == 0:
        smaller //= 2
        ladder += tried(f"micro_batch: {smaller}", micro_batch=smaller)
    yield ladder
    levels = ("none", "selective", "full")
    steps = levels[levels.index(of.recompute) + 1 :]
    yield [each for level in steps for each in tried(f"recompute: {level}", recompute=level)]
    after: tuple[Sharding, ...] = SHARDINGS[
        SHARDINGS.index(layout.sharding) + 1 : -1
    ]  # zero-3 as it is given
    yield [
        each
        for name in after
        for each in tried(f"parallel.sharding: {name}", layout=replace(layout, sharding=name))
    ]
    yield _hybrid(of)
    for dimension in ("tp", "cp", "pp"):
        ladder, factor = [], 2
        while layout.dp % factor == 0 and factor <= 64:
            size = getattr(layout, dimension) * factor
            try:
                changed = replace(layout, **{dimension: size, "dp": layout.dp // factor})
            except InputError:
                break
            ladder += tried(f"parallel: {dimension}: {size}, dp: {changed.dp}", layout=changed)
            factor *= 2
        yield ladder


def _hybrid(of: Training) -> list[tuple[str, Training]]:
    """Return FSDP over fewer ranks than all, or over more than those that share a copy now."""
    if not of.layout.shard:
        best = fastest_shard(of)
        return [] if best is None else [(f"parallel: sharding: fsdp, shard: {best.layout.shard}", best)]
    more = [each for each in shards(of) if each.layout.shard > of.layout.shard]
    more.append(replace(of, layout=replace(of.layout, shard=0)))
    found = [replace(each, layout=replace(each.layout, sharding=of.layout.sharding)) for each in more]
    return [(f"parallel.shard: {each.layout.shard or 'all'}", each) for each in found]


def changes_that_fit(training: Training) -> list[Change]:
    """Return, for each setting, the least change of it alone that fits; the fastest step first."""
    limit, found = training.memory, []
    assert limit is not None
    for ladder in _notches(training):
        for what, changed in ladder:
            try:
                peak = max(each.nbytes for each in peaks_of(changed, changed.schedule))
                if peak > limit:
                    continue
                found.append(Change(what, peak, step_ns(changed)))
            except InputError:
                continue
            break
    return sorted(found, key=lambda change: (change.step_ns, change.what))


def check_fits(training: Training, peaks: Sequence[Peak], step: int | None) -> None:
    """Refuse a training that needs more memory than a GPU has.

    Parameters
    ----------
    training : Training
    peaks : sequence of Peak
        Of each pipeline rank.
    step : int or None
        Its step, beside which other settings are tried; None: none is.

    Raises
    ------
    OutOfMemoryError
        Telling rank, moment and owners, and the change of one setting that fits and costs least time.
    """
    limit = training.memory
    rank = max(range(len(peaks)), key=lambda r: peaks[r].nbytes)
    worst = peaks[rank]
    if limit is None or worst.nbytes <= limit:
        return
    owners = sorted(worst.parts.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{name} {_size(nbytes)}" for name, nbytes in owners if nbytes)
    same = training.layout.ranks // len(peaks)
    message = (
        f"pipeline rank {rank} (each of its {same} GPUs) needs {_size(worst.nbytes)} of {_size(limit)}, "
        f"at the {worst.when}: {shown}"
    )
    if step is None:
        raise OutOfMemoryError(message)
    message += "\n  "
    changes = changes_that_fit(training)
    if not changes:
        raise OutOfMemoryError(
            f"{message}no single change of policy, micro_batch, recompute, sharding, tp, cp or pp makes it "
            "fit: it takes more GPUs, or several changes"
        )
    best, *others = changes
    message += f"it fits with {_told(best, step)}"
    if others:
        message += "; or " + ", ".join(_told(each, step) for each in others)
    raise OutOfMemoryError(message)


def _told(change: Change, step: int) -> str:
    slower = 100 * (change.step_ns / step - 1)
    return f"{change.what} ({_size(change.peak)}, step {format_duration(change.step_ns)}, {slower:+.1f}%)"


def _size(nbytes: int) -> str:
    return format_bytes(nbytes, iec=True)
