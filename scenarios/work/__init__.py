"""What runs: the kinds of workload, one a file."""
