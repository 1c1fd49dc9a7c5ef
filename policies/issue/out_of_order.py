"""Out-of-order issue: a window over the program, the oldest ready instruction first.

::

    program    a  b  c  d  e  f  g           window 4, b the oldest that has not been issued
                  [─────────]                b waits for data; c and e have been issued:
                  b  ·  d  ·                 d may issue, f may not although it is ready

This is the instruction window of a processor (Tomasulo 1967, "An efficient algorithm for exploiting
multiple arithmetic units", IBM Journal 11(1)), applied to ops: a window of 1 is issue in order, an
unlimited one list scheduling in program order (Graham 1969, "Bounds on multiprocessing timing
anomalies", SIAM J. Appl. Math. 17(2)).
"""

from __future__ import annotations

from policies.issue.program_order import ProgramOrder, group_programs, refuse_control_flow
from policies.option_checks import SYNCHRONISATIONS, one_of, whole
from sim import Job
from sim.policy import Order


class OutOfOrder(ProgramOrder):
    """Issue the oldest ready op among a window of instructions.

    Parameters
    ----------
    window : int, optional
        The window holds the oldest op that has not been issued and the ``window - 1`` ops after it in
        program order, across iterations. By default it is unlimited.
    synchronisation : str
        ``"completion"``: an op is ready when its inputs are computed. ``"issue"``: when they are issued.

    Raises
    ------
    InputError
        A window below 1, or another word.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> b = GraphBuilder("b holds c up")
    >>> for name, inputs, ns in (("a", [], 30), ("b", ["a"], 10), ("c", [], 10), ("d", ["c"], 30)):
    ...     _ = b.op(name, inputs=inputs, duration_ns=ns)
    >>> machine = Machine((Device("cpu0", "cpu", workers=2),))
    >>> [simulate(b.build(), machine, OutOfOrder(window)).makespan_ns for window in (1, 2, 3, None)]
    [70, 60, 40, 40]
    """

    scope = "group"

    def __init__(self, window: int | None = None, synchronisation: str = "completion") -> None:
        self.window = None if window is None else whole("out-of-order", "window", window)
        self.synchronisation = one_of("out-of-order", "synchronisation", synchronisation, SYNCHRONISATIONS)

    def as_data(self, job: Job) -> Order:
        """Return the programs and the window over them.

        Raises
        ------
        InputError
            A graph with control flow.
        """
        refuse_control_flow("out-of-order", job)
        return Order("place", group_programs(job, job.order), self.window)
