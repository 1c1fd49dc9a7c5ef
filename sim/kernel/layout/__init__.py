"""A job as the columns of integers that the kernel runs on: tasks, routes, what is shared."""
