"""What importers and inline ops share: attributes, costs by formula, functions, control flow."""
