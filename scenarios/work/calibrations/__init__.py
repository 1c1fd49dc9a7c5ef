"""What GPUs reach: calibrations that come with this project, in files of our own, and of SimuMax."""
