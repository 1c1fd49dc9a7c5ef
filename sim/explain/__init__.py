"""Why did it take so long? Idle time by reason, the executed critical path, and who is to blame."""

from sim.explain.idle import REASONS, IdlePieces, idle_pieces, idle_reasons

__all__ = ["REASONS", "IdlePieces", "idle_pieces", "idle_reasons"]
