"""The best schedule there is, by constraint programming: a job's tasks, resources and windows."""
