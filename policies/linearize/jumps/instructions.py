"""Instructions of a virtual machine, and programs of them.

Four instructions, as in TVM's and Relax's VM (tvm/include/tvm/runtime/vm/bytecode.h), without the registers
that hold its values, as the simulator has none::

    call step      if p else +4      goto -6      ret

Jumps are relative to the instruction itself. `policies.linearize.jumps.program_with_jumps` compiles graphs to
them, `policies.issue.executors.virtual_machine` walks them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sim import Graph
from sim.graph.frames import FrameStructure

__all__ = ["Call", "Goto", "If", "Instruction", "Program", "Ret"]


@dataclass(frozen=True)
class Call:
    """Run `op`."""

    op: int


@dataclass(frozen=True)
class If:
    """Go on with the next instruction where `predicate` is true, else jump."""

    predicate: int
    false_offset: int = 0


@dataclass(frozen=True)
class Goto:
    """Jump."""

    offset: int = 0


@dataclass(frozen=True)
class Ret:
    """The end."""


Instruction = Call | If | Goto | Ret


@dataclass
class Program:
    """Instructions, and where loops are.

    Attributes
    ----------
    instructions : list of Instruction
    frame : list of int
        Frame (`sim.graph.frames.FrameStructure`) in which each instruction stands.
    head : dict of int to int
        Position of a loop's first instruction → its frame.
    structure : FrameStructure or None
        None for a graph without control flow.
    """

    instructions: list[Instruction] = field(default_factory=list)
    frame: list[int] = field(default_factory=list)
    head: dict[int, int] = field(default_factory=dict)
    structure: FrameStructure | None = None

    def listing(self, graph: Graph) -> str:
        """Return the program as text, one instruction a line.

        Examples
        --------
        >>> from sim import GraphBuilder
        >>> from policies.linearize.jumps.program_with_jumps import compile_program
        >>> b = GraphBuilder("two")
        >>> _ = b.op("a"), b.op("b", inputs=["a"])
        >>> print(compile_program(b.build(), [0, 1]).listing(b.build()))
        0  call a
        1  call b
        2  ret
        """
        return "\n".join(
            f"{k}  {_text(instruction, graph)}" for k, instruction in enumerate(self.instructions)
        )


def _text(instruction: Instruction, graph: Graph) -> str:
    match instruction:
        case Call(op):
            return f"call {graph.op_names[op]}"
        case If(predicate, offset):
            return f"if {graph.op_names[predicate]} else {offset:+d}"
        case Goto(offset):
            return f"goto {offset:+d}"
        case Ret():
            return "ret"
