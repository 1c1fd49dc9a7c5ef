"""Cases to run, drawn by seed, their backends, and the files that hold them."""
