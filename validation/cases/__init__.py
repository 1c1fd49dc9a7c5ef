"""What is run, and on which backends: cases, drawn by seed, and the files that hold them."""
