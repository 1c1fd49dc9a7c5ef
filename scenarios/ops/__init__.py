"""Shared by importers and inline ops: attributes, costs by formula, functions, control flow."""
