"""Real execution: the same plan, or the same policy object, on threads and on a GPU.

::

    sim.Plan ────────► execute ─┐                     ┌─ timer    sleeps: any number of streams
                                ├─► Executor (lanes) ─┼─ threads  numpy kernels that release the GIL
    policy object ───► drive ───┘                     └─ cuda     torch streams, events, graphs, SM partitions
                                        │
                                        └─► Observation: a `sim.Trace` of measured times, whether the results
                                            are right, how much the machine disturbed the run

Importing this needs numpy alone; torch is imported by `validation.gpu.cuda` when it is used. Nothing here
needs the simulator's dependencies, so that a machine which only measures does not have to have them.
"""
