"""What everything else stands on: units, errors, arrays, intervals, plugins, options, files."""
