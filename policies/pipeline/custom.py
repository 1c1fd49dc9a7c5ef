"""The user's own order (``custom``): a table of actions, one row per rank.

    0F0,0F1,,,0B0,0B1          rank 0 holds stage 0, because its row has the actions of stage 0
    ,1F0,1B0,1F1,1B1           rank 1 holds stage 1; empty cells are idle ticks and are ignored

The format is torch's (see below). Sizes follow from the table: one rank per row, and as many stages and
micro-batches as its largest numbers imply. A wrong order is refused with the reason
(`policies.pipeline.validate`).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable
from pathlib import Path

from policies.pipeline.evaluate import UNIT_TIMES, Evaluation, evaluate
from policies.pipeline.pipeline_schedule import Action, Programs, Schedule, Slot, is_communication, parse_slot
from policies.pipeline.validate import validate
from sim.base.errors import InputError, error_path, in_file
from sim.base.files import read_text
from sim.base.units import format_count


def custom(
    ranks: int | None = None,
    micro_batches: int | None = None,
    chunks: int | None = None,
    *,
    file: str | None = None,
    order: str | None = None,
    replicas: bool = False,
) -> Schedule:
    r"""Return a schedule read from a file or from text.

    Parameters
    ----------
    ranks, micro_batches, chunks : int, optional
        Sizes that the workload expects; a table of other sizes is refused.
    file, order : str
        Path of the table, or the table itself; give exactly one.
    replicas : bool
        Whether a stage may be on several ranks, each with its own micro-batches. By default this is
        an error.

    Returns
    -------
    Schedule
        Valid: complete, and free of deadlock.

    Raises
    ------
    InputError
        If there is no table or a wrong one; the message lists missing, duplicate or impossible actions.
    StuckError
        If the order deadlocks; the message says which rank waits for what.

    Examples
    --------
    >>> custom(order="0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1").stage_to_rank
    (0, 1)
    """
    if (file is None) == (order is None):
        raise InputError("a custom schedule needs a table of actions: give either file or order")
    with error_path("order" if file is None else "file"):
        programs = read_csv(file) if file is not None else parse_csv(order or "")
    schedule = from_programs(programs, replicas=replicas)
    validate(schedule, ranks, micro_batches, chunks)
    return schedule


def from_programs(programs: Programs, *, replicas: bool = False) -> Schedule:
    """Return a schedule made from the program of each rank, with sizes and placement inferred.

    Raises
    ------
    InputError
        If no row has an action or the numbers are far too large for the number of actions; without
        `replicas`, if a row is empty or a stage is on several ranks.
    """
    actions = [(rank, a) for rank, program in enumerate(programs) for slot in program for a in slot.parts]
    if not actions:
        raise InputError("the custom order has no actions; a row is one rank's program, such as 0F0,0B0")
    idle = next((rank for rank, program in enumerate(programs) if not program), None)
    if idle is not None and not replicas:
        raise InputError(f"row {idle + 1} of the custom order (rank {idle}) has no action; leave the row out")
    stages = 1 + max(a.stage for _, a in actions)
    micro_batches = 1 + max(a.micro_batch for _, a in actions)
    if stages * micro_batches > 1000 * len(actions):  # below this, validation lists what is missing
        sizes = ((stages, "stage"), (micro_batches, "micro-batch"), (len(actions), "action"))
        numbers = ", ".join(format_count(n, noun) for n, noun in sizes)
        raise InputError(f"the custom order has, by its largest numbers, {numbers}")
    home: dict[tuple[int, int], int] = {}
    first: dict[int, tuple[int, Action]] = {}
    for rank, a in actions:
        home.setdefault((a.stage, a.micro_batch), rank)
        other, example = first.setdefault(a.stage, (rank, a))
        if other != rank and not replicas:
            message = f"stage {a.stage} is on rank {other} ({example}) and on rank {rank} ({a})"
            more = "a stage lives on one rank. If both ranks hold a copy of it, say replicas: true"
            raise InputError(f"{message}; {more}")
    fallback = {stage: rank for stage, (rank, _) in first.items()}
    columns = [
        tuple(home.get((s, k), fallback.get(s, 0)) for s in range(stages)) for k in range(micro_batches)
    ]
    placements = tuple(dict.fromkeys(columns))
    number = {placement: i for i, placement in enumerate(placements)}
    return Schedule("custom", programs, placements, tuple(number[column] for column in columns))


# ----------------------------------------------------------------------------------------------------------
# Schedules as text: writing and reading torch's CSV format.
#
# One row per rank, one cell per slot, an empty cell for an idle tick::
#
#     0F0,0F1,,,0B0,0B1
#     ,1F0,1B0,1F1,1B1
#
# ``torch.distributed.pipelining`` writes this with ``_dump_csv`` and loads it with ``_load_csv``. Its
# *lowered* form has communication in the same rows (``2SEND_F1``, ``0UNSHARD``); reading skips those
# cells, because transfers follow from the placement of stages.
#
# A rank holds the stages whose actions are in its row.


def to_csv(schedule: Schedule) -> str:
    r"""Return a schedule as torch's CSV, one row per rank, without idle cells.

    Recompute actions (``1R2``) are included; torch has no such action and refuses them.

    Examples
    --------
    >>> from policies.pipeline.registry import generate
    >>> to_csv(generate("1f1b", ranks=2, micro_batches=2))
    '0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n'
    """
    return "".join(",".join(map(str, program)) + "\n" for program in schedule.programs)


def parse_csv(text: str, *, source: str = "the order") -> Programs:
    r"""Return the programs of a table, one per row, without idle cells.

    A row without commas may separate its cells by blanks. Trailing empty rows are dropped.

    Parameters
    ----------
    text : str
        The table.
    source : str
        Name for messages, such as a file name.

    Raises
    ------
    InputError
        If a cell is not an action, or there is no row.

    Examples
    --------
    >>> [" ".join(map(str, program)) for program in parse_csv("0F0,,0B0\n1F0 1B0")]
    ['0F0 0B0', '1F0 1B0']
    """
    lines = text.rstrip().splitlines()
    if not lines:
        raise InputError(f"{source} is empty; it needs one row of actions a rank, such as 0F0,0B0")
    programs: list[list[Slot]] = [[] for _ in lines]
    for rank, line in enumerate(lines):
        for column, cell in enumerate(_cells(line), start=1):
            if cell and not is_communication(cell):
                with in_file(f"{source}, row {rank + 1} (rank {rank}), cell {column}"):
                    programs[rank].append(parse_slot(cell))
    return tuple(map(tuple, programs))


def read_csv(path: str | Path) -> Programs:
    """Return the programs of a file, read by `parse_csv`.

    Raises
    ------
    InputError
        If the file cannot be read or is not such a table.
    """
    text = read_text(path, unpack=False)
    first = next((cell for line in text.splitlines() for cell in _cells(line) if cell), "0F0")
    if not is_communication(first):
        try:
            parse_slot(first)
        except InputError:  # an unrelated file: do not show its contents
            raise InputError(f"{path}: is no table of actions: its first cell is none, such as 0F3") from None
    return parse_csv(text, source=str(path))


def _cells(line: str) -> Iterable[str]:
    cells = next(csv.reader([line]), []) if "," in line else line.split()
    return (cell.strip() for cell in cells)


# ----------------------------------------------------------------------------------------------------------
# A schedule as a text picture: one row per rank, one column per tick.
#
#     rank 0  F0 F1 .  .  B0 -- .  B1 --     a slot's name at its first tick, -- at the others,
#     rank 1  .  F0 B0 -- F1 B1 -- .  .      and . where the rank is idle
#
# A tick is the greatest common divisor of all times. A name is phase and micro-batch. On ranks with two
# stages the names of the second are in lower case (``f0``): the second chunk, or the upward pipeline of two.
# With more stages per rank, names are in full, as in torch's format (``4F0``). A compound slot is ``F5&b1``.

_MOST_TICKS = 4000
"""Columns of the widest picture; wider ones would be unreadable and are refused."""


def need_readable(ticks: int) -> None:
    """Raise if a picture of at least so many ticks would be too wide to read.

    Raises
    ------
    InputError
        It would be.
    """
    if ticks > _MOST_TICKS:
        problem = f"a picture of {ticks:,} ticks or more cannot be read"
        raise InputError(f"{problem}; draw fewer micro-batches, or times with a larger common divisor")


def picture(schedule: Schedule, evaluation: Evaluation | None = None) -> str:
    """Return the schedule drawn as a grid of rank × time.

    Parameters
    ----------
    schedule : Schedule
        Schedule to draw.
    evaluation : Evaluation, optional
        Times of its slots; by default `evaluate` with `UNIT_TIMES`.

    Raises
    ------
    InputError
        If the picture would be too wide to read.

    Examples
    --------
    >>> from policies.pipeline.registry import generate
    >>> print(picture(generate("1f1b", ranks=2, micro_batches=2)))
    rank 0  F0 F1 .  .  B0 -- .  B1 --
    rank 1  .  F0 B0 -- F1 B1 -- .  .
    """
    run = evaluation if evaluation is not None else evaluate(schedule, UNIT_TIMES)
    tick = math.gcd(*(time for rank in (*run.starts, *run.ends) for time in rank)) or 1
    ticks = run.makespan // tick
    need_readable(ticks)
    name = _namer(schedule)
    rows = [["."] * ticks for _ in range(schedule.ranks)]
    for rank, (program, starts, ends) in enumerate(zip(schedule.programs, run.starts, run.ends, strict=True)):
        for slot, start, end in zip(program, starts, ends, strict=True):
            first, last = start // tick, end // tick
            if first < last:
                rows[rank][first:last] = ["&".join(map(name, slot.parts)), *["--"] * (last - first - 1)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    label = len(str(schedule.ranks - 1))
    lines = []
    for rank, row in enumerate(rows):
        cells = " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(f"rank {rank:>{label}}  {cells}".rstrip())
    return "\n".join(lines)


def _namer(schedule: Schedule) -> Callable[[Action], str]:
    """Return a function that names an action, as briefly as is unambiguous on its rank."""
    lanes: list[set[tuple[int, int]]] = [set() for _ in range(schedule.ranks)]
    for number, placement in enumerate(schedule.placements):
        for stage, rank in enumerate(placement):
            lanes[rank].add((number, stage))
    single = all(len({stage for _, stage in pairs}) <= 1 for pairs in lanes)
    if not single and max(map(len, lanes)) > 2:
        return str
    second = set() if single else {max(pairs) for pairs in lanes if len(pairs) == 2}

    def short(a: Action) -> str:
        lane = (schedule.replica_of[a.micro_batch], a.stage)
        return f"{a.phase.lower() if lane in second else a.phase}{a.micro_batch}"

    return short
