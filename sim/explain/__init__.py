"""Why did it take so long? Idle time by reason, the executed critical path, and who is to blame."""

from sim.explain.idle import REASONS, IdlePieces, idle_pieces, idle_reasons
from sim.explain.path import Step, executed_path
from sim.explain.text import Gap, explain_text, largest_gaps
from sim.explain.waits import final_waits

__all__ = [
    "REASONS",
    "Gap",
    "IdlePieces",
    "Step",
    "executed_path",
    "explain_text",
    "final_waits",
    "idle_pieces",
    "idle_reasons",
    "largest_gaps",
]
