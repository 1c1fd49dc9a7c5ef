"""What the tasks of one device share while they run: cores, time slices, SMs, memory bandwidth."""
