"""What explanations are made of: derived columns of a trace, and the place and time that one asks about."""
