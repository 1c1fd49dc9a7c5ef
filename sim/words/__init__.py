"""What everything else is said in: errors, units, options, plugins, intervals, files."""
