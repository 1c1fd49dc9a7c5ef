"""What-ifs tried one after another: which, and what comes out."""
