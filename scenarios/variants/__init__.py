"""Many variants of one scenario: repeats, sweeps, searches, what-ifs."""
