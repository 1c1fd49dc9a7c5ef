"""Why did it take so long? Idle time by reason, the executed critical path, and who is to blame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sim.words.lazy import lazy

if TYPE_CHECKING:
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

_WHERE: Final = {
    "Gap": "sim.explain.text",
    "IdlePieces": "sim.explain.idle",
    "REASONS": "sim.explain.idle",
    "Step": "sim.explain.path",
    "executed_path": "sim.explain.path",
    "explain_text": "sim.explain.text",
    "final_waits": "sim.explain.waits",
    "idle_pieces": "sim.explain.idle",
    "idle_reasons": "sim.explain.idle",
    "largest_gaps": "sim.explain.text",
}

__getattr__ = lazy(__name__, _WHERE)
