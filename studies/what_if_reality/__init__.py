"""What-ifs compared with reality: one recording of a program predicted from another, under other settings."""
