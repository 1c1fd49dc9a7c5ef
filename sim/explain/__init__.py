"""Why a run took so long: paths, idle time, bounds, memory, and the sentences that say so."""
