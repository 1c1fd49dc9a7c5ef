"""A search by CP-SAT that Ctrl-C ends at once.

The solver keeps the interpreter from seeing the signal, or answers it itself and goes on as if its time were
up. So it searches in a thread of its own, and the main thread waits for it or for Ctrl-C.
"""

from __future__ import annotations

import threading
from typing import Any

from sim.words.units import format_duration

__all__ = ["solve"]


def solve(solver: Any, model: Any) -> Any:
    """Return the status of a search; the objective of the model is a time in ns.

    Parameters
    ----------
    solver, model : CpSolver, CpModel

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C; it tells what was found so far.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone is told of signals
        return solver.solve(model)
    solver.parameters.catch_sigint_signal = False
    ended: list[Any] = []
    over = threading.Event()

    def search() -> None:
        try:
            ended.append(solver.solve(model))
        except BaseException as error:
            ended.append(error)
        finally:
            over.set()

    threading.Thread(target=search, daemon=True).start()
    try:
        over.wait()
    except KeyboardInterrupt:
        solver.stop_search()
        over.wait()
        raise KeyboardInterrupt(_told(solver, ended[0])) from None
    if isinstance(ended[0], BaseException):
        raise ended[0]
    return ended[0]


def _told(solver: Any, status: Any) -> str:
    """Say what an interrupted search knows."""
    from ortools.sat.python import cp_model

    bound = format_duration(max(0, int(solver.best_objective_bound)))
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return f"the search has found nothing yet, and nothing can take less than {bound}"
    best = format_duration(int(solver.objective_value))
    return f"the best that the search has found takes {best}, and nothing can take less than {bound}"
