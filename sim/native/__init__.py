"""What runs compiled where there is a compiler: how it is found, and loops that belong to no engine."""
