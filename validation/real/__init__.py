"""Real execution: the same plan, or the same policy object, on threads and on a GPU.

::

    sim.Plan ────────► execute ─┐                     ┌─ timer    sleeps: any number of streams
                                ├─► Executor (lanes) ─┼─ threads  numpy kernels that release the GIL
    policy object ───► drive ───┘                     └─ cuda     torch streams, events, graphs, SM partitions
                                        │
                                        └─► Observation: a `sim.Trace` of measured times, whether the results
                                            are right, how much the machine disturbed the run

Importing this needs only numpy; torch is imported by `validation.gpu.cuda` on use. Nothing here
needs the simulator's dependencies, so that a machine that only measures can do without them.
"""
