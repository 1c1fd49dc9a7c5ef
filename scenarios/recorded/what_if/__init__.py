"""What-ifs: a recorded program with other durations, other kernels, or other launches.

Each is a function from graph to graph in a file of its own. `changes` has their keys in a scenario, in the
order in which they are applied::

    remove, fuse                        what there is
    device, scale, bandwidth, host, gap how long it takes
    launch_cost, cuda_graph             how it is launched
    streams                             where it runs

They read the attributes that importers of recordings write (`scenarios.importers.traces.kineto`), so they
work on what any of them imports; what a recording does not tell is refused, or said.
"""
