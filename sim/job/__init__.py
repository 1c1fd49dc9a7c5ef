"""What is decided before time 0: where ops run, what they cost, what moves between devices."""
