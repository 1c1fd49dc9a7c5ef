"""Why did it take so long? Idle time by reason, the executed critical path, and who is to blame."""

from sim.explain.idle import REASONS, IdlePieces, idle_pieces, idle_reasons
from sim.explain.path import Step, executed_path
from sim.explain.waits import final_waits

__all__ = [
    "REASONS",
    "IdlePieces",
    "Step",
    "executed_path",
    "final_waits",
    "idle_pieces",
    "idle_reasons",
]
