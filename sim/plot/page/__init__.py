"""What a page shows (`sim.plot.html`), and the page itself: HTML, style sheet, JavaScript without a library.

::

    html.py     bars of a run as columns of numbers     columns.js  what they mean: times, stories, lanes
                use of devices, explanation, gaps       chart.js    canvas, zoom, critical path, themes
                                                        told.js     explanation, table of ops
"""
