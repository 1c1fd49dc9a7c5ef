"""Pipeline schedules as pure data: which rank runs what, in which order.

    generate("1f1b", ranks=4, micro_batches=8)     → Schedule: one program a rank, stages placed
    validate(schedule)                             → nothing, or the reason why it is no schedule
    evaluate(schedule, StageTimes(...))            → exact start and end of everything
    peak_activations(schedule)                     → activations alive on each rank
    closed_form("1f1b", ...)                       → what the textbook says
    picture(schedule)                              → rank × time, in text
    to_csv(schedule), parse_csv(text)              → torch.distributed.pipelining's form

Nothing here has a clock or a device, and nothing is simulated: the simulator issues the programs in
order and has to come to the same times as `evaluate`.
"""

from policies.pipeline.families.pipedream import Staleness, staleness
from policies.pipeline.orders.action import PHASES, Action, Overlap, Phase, Slot, parse_action, parse_slot
from policies.pipeline.orders.clock_cycles import clock_cycles, clock_table
from policies.pipeline.orders.pipeline_schedule import Schedule
from policies.pipeline.orders.schedule_text import parse_csv, read_csv, to_csv, write_csv
from policies.pipeline.orders.validate import problems, validate
from policies.pipeline.orders.waits import Dependencies
from policies.pipeline.recompute import with_recompute
from policies.pipeline.registry import default_chunks, generate, options, schedules
from policies.pipeline.timing.activations import StageActivations, peak_activations, transformer_activations
from policies.pipeline.timing.closed_forms import ClosedForm, closed_form
from policies.pipeline.timing.evaluate import Evaluation, StageTimes, evaluate
from policies.pipeline.timing.picture import picture

__all__ = [
    "PHASES",
    "Action",
    "ClosedForm",
    "Dependencies",
    "Evaluation",
    "Overlap",
    "Phase",
    "Schedule",
    "Slot",
    "StageActivations",
    "StageTimes",
    "Staleness",
    "clock_cycles",
    "clock_table",
    "closed_form",
    "default_chunks",
    "evaluate",
    "generate",
    "options",
    "parse_action",
    "parse_csv",
    "parse_slot",
    "peak_activations",
    "picture",
    "problems",
    "read_csv",
    "schedules",
    "staleness",
    "to_csv",
    "transformer_activations",
    "validate",
    "with_recompute",
    "write_csv",
]
