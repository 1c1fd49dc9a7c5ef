"""What a user runs: scenario files, importers, workloads, sweeps, checks, and the command line."""
