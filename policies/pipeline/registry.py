"""The schedules by name, from one group of entry points that also defines their options.

A family is a function ``make(ranks, micro_batches[, chunks], **options)``. Its options are its keyword-only
parameters, so that adding one to the signature is enough; ``time_limit_ns`` is written ``time_limit: 5s``,
as everywhere. The default of `chunks` applies if none is given. All families, including those of other
packages, are entry points of the group ``sim.pipelines``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from inspect import Parameter
from typing import Any, Final

from policies.option_checks import whole
from policies.pipeline.custom import custom
from policies.pipeline.pipeline_schedule import Checkpoint, Schedule, with_recompute
from policies.pipeline.validate import validate
from sim.base import plugins
from sim.base.arrays import MOST_BUILT
from sim.base.errors import InputError, MisfitError, UnknownNameError, UnknownOptionError
from sim.base.options import arguments, parameters, require_call, spelling

_GROUP: Final = "sim.pipelines"
_SIZES = ("ranks", "micro_batches", "chunks")


def schedules() -> list[tuple[str, str]]:
    """Return every schedule's name with a one-line description.

    Examples
    --------
    >>> schedules()[0]
    ('1f1b', 'Generate the 1F1B schedule.')
    """
    return [(schedule.name, schedule.summary) for schedule in plugins.describe(_GROUP)]


def default_chunks(name: str) -> int:
    """Return the default number of stages per rank: 2 if a schedule may have several, else 1.

    With one chunk an interleaved schedule would be the plain one (arXiv 2104.04473, section 2.2).

    Raises
    ------
    UnknownNameError
        There is no such schedule.

    Examples
    --------
    >>> default_chunks("zb-v")
    2
    """
    chunks = parameters(_family(name)).get("chunks")
    return chunks.default if chunks is not None and isinstance(chunks.default, int) else 1


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
    defaults = {spelling(key): p.default for key, p in _family_options(name).items()}
    return defaults if name == "custom" else {**defaults, "checkpoint": "never"}


def check_options(name: str, given: Mapping[str, Any], *, others: Collection[str] = ()) -> None:
    """Raise if a schedule lacks one of the given options, without generating it.

    Parameters
    ----------
    name : str
        One of `schedules`.
    given : mapping of str to object
        Options, as for `generate`.
    others : collection of str
        Further names that the caller accepts, such as ``chunks``.

    Raises
    ------
    UnknownNameError
        If the schedule is unknown.
    InputError
        If an option is unknown (the nearest is named), or its value has the wrong type.

    Examples
    --------
    >>> check_options("gpipe", {"ordr": "fifo"})
    Traceback (most recent call last):
        ...
    sim.base.errors.UnknownOptionError: ordr: gpipe has no option 'ordr'; did you mean 'order'?
    """
    accepted = {**_family_options(name), "checkpoint": parameters(generate)["checkpoint"]}
    known = [*options(name), *others]
    for key in given:
        if key not in known and (name, key) != ("custom", "checkpoint"):
            raise UnknownOptionError(name, str(key), known)
    arguments(name, accepted, {key: value for key, value in given.items() if key not in others})


MOST_SLOTS: Final = MOST_BUILT
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
        Sizes. Only ``custom`` does not need them: its table has them.
    chunks : int, optional
        Stages per rank; by default 1, and 2 for schedules with chunks.
    checkpoint : {"never", "except_last", "always"}
        Micro-batches to recompute before their backward.
    **given
        The schedule's own `options`, such as ``order="fifo"``; quantities carry their unit, as in
        ``time_limit="5s"``.

    Returns
    -------
    Schedule

    Raises
    ------
    UnknownNameError
        If the schedule or the value of an option is unknown.
    InputError
        If a size is refused (the message says why), an option is unknown (the nearest is named), or a
        schedule of another package is incomplete (`validate`).

    Examples
    --------
    >>> schedule = generate("interleaved-1f1b", ranks=2, micro_batches=4, chunks=2)
    >>> schedule.stages, schedule.stage_to_rank
    (4, (0, 1, 0, 1))
    """
    values = arguments(name, _family_options(name), given)
    if name == "custom":
        if checkpoint != "never":
            message = "a custom order has its own recompute actions (0R3)"
            raise InputError(f"{message}; the option checkpoint is not for it")
        return custom(ranks, micro_batches, chunks, **values)
    chunks = default_chunks(name) if chunks is None else chunks
    for option, size in (("ranks", ranks), ("micro_batches", micro_batches), ("chunks", chunks)):
        whole(name, option, size)
    slots = (ranks or 1) * (micro_batches or 1) * chunks
    if slots > MOST_SLOTS:
        text = f"{ranks:,} ranks of {chunks:,} stages with {micro_batches:,} micro-batches"
        raise InputError(f"{text} are {slots:,} forwards; there may be {MOST_SLOTS:,}")
    sizes = {"ranks": ranks, "micro_batches": micro_batches}
    if _has_chunks(name):
        sizes["chunks"] = chunks
    elif chunks != 1:
        several = ", ".join(other for other, _ in schedules() if _has_chunks(other))
        raise MisfitError(
            f"{name} has one stage a rank, not {chunks} chunks; with several chunks: {several}",
            reason=f"{name} has one stage a rank",
        )
    schedule = _family(name)(**sizes, **values)
    if not isinstance(schedule, Schedule):
        raise InputError(f"the pipeline schedule {name!r} should return a Schedule, not {schedule!r:.60}")
    # Tests validate those of this package, which takes long.
    if not _family(name).__module__.startswith(f"{__package__}."):
        validate(schedule, **sizes)
    return with_recompute(schedule, checkpoint)


def _family_options(name: str) -> dict[str, Parameter]:
    """Return the parameters of a family that are its options."""
    return {key: p for key, p in parameters(_family(name)).items() if key not in _SIZES}


def _has_chunks(name: str) -> bool:
    return name != "custom" and "chunks" in parameters(_family(name))


def _family(name: str) -> Callable[..., Schedule]:
    if ":" in name:  # a schedule must not be code named by a scenario
        raise UnknownNameError("pipeline schedule", name, plugins.names(_GROUP))
    make: Callable[..., Schedule] = plugins.lookup(_GROUP, name)
    chunked = callable(make) and "chunks" in parameters(make)
    require_call(f"the pipeline schedule {name!r}", make, *(_SIZES if chunked else _SIZES[:2]))
    return make
