"""The machine that is measured: its clock, its pulse, its BLAS, and statistics of what it does."""
