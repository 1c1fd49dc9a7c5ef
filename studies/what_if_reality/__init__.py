"""What-ifs held against reality: one recording of a program predicted from another, under other settings."""
