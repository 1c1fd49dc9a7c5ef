"""Who runs what next: ready queues, programs in order, executors of frameworks, replay of a plan."""
