"""The result of a run: its columns (`sim.record.record`) and the most common queries on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from sim.job.job import Job
from sim.job.transfers import Flow
from sim.machine.task import Task
from sim.policy import Policy
from sim.record.record import TASK_COLUMNS, TRANSFER_COLUMNS, ColumnWriter, Record

if TYPE_CHECKING:
    import pandas as pd

    from sim.record.plan import Plan


class Trace(Record):
    """The outcome of a run, as `simulate` returns it: the columns of `Record`, and methods that start an
    analysis.
    """

    @classmethod
    def from_tasks(cls, job: Job, flow: Flow, policy: Policy, tasks: list[Task]) -> Self:
        """Return the trace of tasks that ran elsewhere."""
        columns = ColumnWriter((*TASK_COLUMNS, "calls_ns"), len(tasks))
        for task in tasks:
            columns.add(task)
        transfers, waits = ColumnWriter(TRANSFER_COLUMNS, 0).columns(), policy.not_before_ns(job)
        return cls.from_columns(job, flow, policy, columns.columns(), transfers, not_before_ns=waits)

    def to_pandas(self, *, transfers: bool = False) -> pd.DataFrame:
        """Return the tasks, and optionally the transfers, as a table with words for codes.

        See `sim.export.tables.task_table`.
        """
        from sim.export.tables import task_table

        return task_table(self, transfers=transfers)

    def _repr_html_(self) -> str:
        """Return the notebook display: makespan, lower bound, and how each device spent its time."""
        from sim.export.tables import device_rows, summary_lines
        from sim.metrics import summary
        from sim.notebook import card

        results = summary(self)
        title = f"Trace of {self.job.graph.name} under {self.policy}"
        return card(title, summary_lines(self, results), device_rows(results))

    def plan(self, *, timed: bool = False) -> Plan:
        """Return the run's decisions: order on every stream, waits, order of issue; see `plan_of`."""
        from sim.record.plan import plan_of

        return plan_of(self, timed=timed)

    def check(self) -> None:
        """Check the invariants that hold for every run (see `sim.invariants`).

        Raises
        ------
        InvariantError
            The message names the first task or transfer that breaks one.
        """
        from sim.invariants import check

        check(self)
