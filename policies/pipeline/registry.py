"""The schedules by name: one table, from which names, options and refusals follow.

A family is a function ``make(ranks, micro_batches[, chunks], **options)``; its options are its
keyword-only parameters, so that naming one in the signature is all it takes to add one; ``time_limit_ns``
is written ``time_limit: 5s``, as everywhere. Other packages
add families as entry points of the group ``sim.pipelines``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args, get_origin

from policies.pipeline.families.chimera import chimera
from policies.pipeline.families.custom import custom
from policies.pipeline.families.dualpipe import dualpipe, dualpipe_v
from policies.pipeline.families.gpipe import gpipe
from policies.pipeline.families.interleaved import interleaved_1f1b
from policies.pipeline.families.looped_bfs import looped_bfs
from policies.pipeline.families.one_f_one_b import one_f_one_b
from policies.pipeline.families.pipedream import pipedream
from policies.pipeline.family_options import require_choice, require_positive
from policies.pipeline.orders.pipeline_schedule import Schedule
from policies.pipeline.recompute import Checkpoint, with_recompute
from policies.pipeline.zero_bubble.interleaved_zb import interleaved_zb
from policies.pipeline.zero_bubble.v_block import v_half, v_min
from policies.pipeline.zero_bubble.zb_auto import zb_auto
from policies.pipeline.zero_bubble.zb_h import zb_h1, zb_h2
from policies.pipeline.zero_bubble.zb_v import zb_v
from sim.words import plugins
from sim.words.errors import InputError, UnknownNameError, nearest
from sim.words.options import SUFFIXES, misfit, parameters, require_call, spelling

__all__ = ["default_chunks", "generate", "options", "schedules"]


@dataclass(frozen=True, slots=True)
class _Family:
    """A generator, what it is in one line, and how many chunks it has when nothing is said."""

    make: Callable[..., Schedule]
    line: str
    chunks: int = 1


_FAMILIES: dict[str, _Family] = {
    "gpipe": _Family(gpipe, "all forwards, then all backwards (order: lifo or fifo)"),
    "1f1b": _Family(one_f_one_b, "one forward, one backward (PipeDream-flush)"),
    "pipedream": _Family(pipedream, "asynchronous 1F1B: no flush, stashed weights, replicated stages"),
    "interleaved-1f1b": _Family(interleaved_1f1b, "1F1B over several chunks a rank (Megatron)"),
    "looped-bfs": _Family(looped_bfs, "chunk after chunk, all micro-batches at once (breadth-first)"),
    "zb-h1": _Family(zb_h1, "zero bubble by hand, within 1F1B's memory"),
    "zb-h2": _Family(zb_h2, "zero bubble by hand, with up to 2p-1 activations alive"),
    "interleaved-zb": _Family(interleaved_zb, "zero bubble over interleaved chunks"),
    "zb-v": _Family(zb_v, "zero bubble in a V, within 1F1B's memory", chunks=2),
    "zb-auto": _Family(zb_auto, "an order searched for given times and a memory limit (ZB-1p, ZB-2p, ZB-V)"),
    "v-half": _Family(v_half, "a V with half of 1F1B's memory", chunks=2),
    "v-min": _Family(v_min, "a V with a third of 1F1B's memory", chunks=2),
    "dualpipe": _Family(dualpipe, "two directions, forward and backward overlapped (DeepSeek)"),
    "dualpipe-v": _Family(dualpipe_v, "DualPipe cut in half: one model in a V", chunks=2),
    "chimera": _Family(chimera, "two opposite pipelines, two replicas of the model"),
    "custom": _Family(custom, "the user's own order, from a table in torch's form"),
}

_GROUP = "sim.pipelines"
"""Entry points of other packages' schedules: functions like those above; ``make.chunks`` if not 1."""

_SIZES = ("ranks", "micro_batches", "chunks")


def schedules() -> list[tuple[str, str]]:
    """Return every schedule's name, with what it is in one line.

    Examples
    --------
    >>> schedules()[1]
    ('1f1b', 'one forward, one backward (PipeDream-flush)')
    """
    own = [(name, family.line) for name, family in _FAMILIES.items()]
    others = [name for name in plugins.names(_GROUP) if name not in _FAMILIES]
    return own + [(name, _family(name).line) for name in others]


def default_chunks(name: str) -> int:
    """Return how many stages a rank has of a schedule when nothing is said: 2 in a V, else 1.

    Raises
    ------
    UnknownNameError
        There is no such schedule.

    Examples
    --------
    >>> default_chunks("zb-v")
    2
    """
    return _family(name).chunks


def options(name: str) -> Mapping[str, Any]:
    """Return the options of a schedule with their defaults.

    Raises
    ------
    UnknownNameError
        There is no such schedule.

    Examples
    --------
    >>> options("gpipe")
    {'order': 'lifo', 'checkpoint': 'never'}
    """
    parameters = inspect.signature(_family(name).make).parameters
    own = {spelling(key): p.default for key, p in parameters.items() if key not in _SIZES}
    return own if name == "custom" else {**own, "checkpoint": "never"}


MOST_SLOTS: Final = 10_000_000
"""Most forwards of a schedule, stages times micro-batches."""


def generate(
    name: str,
    *,
    ranks: int | None = None,
    micro_batches: int | None = None,
    chunks: int | None = None,
    checkpoint: Checkpoint = "never",
    **given: Any,
) -> Schedule:
    """Generate a schedule by name.

    Parameters
    ----------
    name : str
        One of `schedules`.
    ranks, micro_batches : int
        Sizes. Only ``custom`` can do without: its table has them.
    chunks : int, optional
        Stages a rank; by default 1, and 2 for the V-shaped schedules.
    checkpoint : {"never", "except_last", "always"}
        Which micro-batches are recomputed before their backward.
    **given
        The schedule's own `options`, such as ``order="fifo"``; quantities carry their unit, as in
        ``time_limit="5s"``.

    Returns
    -------
    Schedule

    Raises
    ------
    UnknownNameError
        There is no such schedule, or an option has an unknown value.
    InputError
        A size is refused (the message says why), or there is no such option (the nearest is named).

    Examples
    --------
    >>> schedule = generate("interleaved-1f1b", ranks=2, micro_batches=4, chunks=2)
    >>> schedule.stages, schedule.stage_to_rank
    (4, (0, 1, 0, 1))
    """
    family = _family(name)
    known = options(name)
    for key in given:
        if key not in known:
            close = nearest(key, known)
            hint = f"; did you mean {close!r}?" if close else ""
            raise InputError(f"{name} has no option {key!r}{hint} Known: {', '.join(known) or '(none)'}")
    named = {spelling(parameter): p for parameter, p in parameters(family.make).items()}
    arguments: dict[str, Any] = {}
    for key, value in given.items():
        parameter, annotation = named[key].name, named[key].annotation
        if parameter != key:  # a quantity
            arguments[parameter] = SUFFIXES[parameter.removeprefix(key)](value, what=f"{name}: {key}")
            continue
        arguments[key] = value
        if get_origin(annotation) is Literal and isinstance(value, str):
            require_choice(key, value, get_args(annotation))
        wanted = misfit(annotation, value)
        if wanted is not None:
            raise InputError(f"{name}: {key} should be {wanted}, not {value!r}")
    if name == "custom":
        if checkpoint != "never":
            raise InputError(
                "a custom order has its own recompute actions (0R3); the option checkpoint is not for it"
            )
        return custom(ranks, micro_batches, chunks, **arguments)
    chunks = family.chunks if chunks is None else chunks
    require_positive(ranks=ranks, micro_batches=micro_batches, chunks=chunks)
    slots = (ranks or 1) * (micro_batches or 1) * chunks
    if slots > MOST_SLOTS:
        raise InputError(
            f"{ranks:,} ranks of {chunks:,} stages with {micro_batches:,} micro-batches are {slots:,} "
            f"forwards; there may be {MOST_SLOTS:,}"
        )
    sizes = {"ranks": ranks, "micro_batches": micro_batches}
    if "chunks" in inspect.signature(family.make).parameters:
        sizes["chunks"] = chunks
    elif chunks != 1:
        several = ", ".join(
            n for n, f in _FAMILIES.items() if "chunks" in inspect.signature(f.make).parameters
        )
        raise InputError(f"{name} has one stage a rank, not {chunks} chunks; with several chunks: {several}")
    return with_recompute(family.make(**sizes, **arguments), checkpoint)


def _family(name: str) -> _Family:
    if name in _FAMILIES:
        return _FAMILIES[name]
    if name not in plugins.names(_GROUP):
        raise UnknownNameError("pipeline schedule", name, [known for known, _ in schedules()])
    make = plugins.lookup(_GROUP, name)
    require_call(f"the pipeline schedule {name!r}", make, "ranks", "micro_batches")
    return _Family(make, (inspect.getdoc(make) or "").partition("\n")[0], getattr(make, "chunks", 1))
