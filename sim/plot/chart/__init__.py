"""The parts of a Gantt chart (`sim.plot.gantt` puts them together).

::

    bars.py   lanes and bars, arrows and critical path: what is shown, without matplotlib
    drawn.py  bars as polygons, lanes of one height with their names
    names.py  names in bars, where there is room
    lines.py  arrows between lanes, and the critical path
"""
