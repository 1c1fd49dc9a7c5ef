"""A training run of many steps on a machine that fails: checkpoints, recovery, goodput."""
