"""List schedulers: ops in the order of a rank, each on the device where it ends first."""
