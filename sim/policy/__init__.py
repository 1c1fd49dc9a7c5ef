"""The policy that is asked what runs next, and what it may say as data."""
