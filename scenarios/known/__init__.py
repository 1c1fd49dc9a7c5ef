"""What a scenario may name, and what ships with the program: told from docstrings, signatures and files."""
