"""What commands say of the costs that runs took: which are lower bounds, and which do not compare."""
