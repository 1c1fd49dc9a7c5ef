"""What a calibration measures, a block a file."""
