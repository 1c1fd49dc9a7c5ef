"""Validation: does the simulator predict what the same plan or policy does on real hardware?

::

    draw ──► plans/ ──► predict ──► predictions/ ──► report ──► report.md, report.json, figures
               │        (simulator)                    ▲
               └──────► measure ──► measurements/ ─────┘
                        (numpy, torch)

The steps are linked by files, one per experiment, so that a measurement may happen on another machine than
the prediction, losing one experiment loses no other, and a run can be resumed. Predictions are written, with
the digest of their plans and of their calibration, before the measurement, which records their digest.
Drawing and measuring import only numpy and torch.
"""
