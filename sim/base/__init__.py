"""The foundation of everything else: units, errors, arrays, intervals, plugins, options, files."""
