"""Validation: does the simulator predict what the same plan or policy does for real?

::

    draw ──► plans/ ──► predict ──► predictions/ ──► report ──► report.md, report.json, figures
               │        (simulator)                    ▲
               └──────► measure ──► measurements/ ─────┘
                        (numpy, torch)

The steps are joined by files, one an experiment, so that a measurement may happen on another machine than
the prediction, a lost experiment loses no other, and a run can be resumed. Predictions are written, with
the digest of their plans and of their calibration, before the measurement, which writes their digest down.
Drawing and measuring import numpy and torch only.
"""
