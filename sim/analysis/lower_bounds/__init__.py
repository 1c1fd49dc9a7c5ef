"""What lower bounds are made of: the ways to and from each task, and the work of a machine between them."""
