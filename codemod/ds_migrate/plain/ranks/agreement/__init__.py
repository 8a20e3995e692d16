"""Decisions, counts and names in which ranks would differ: they agree on them, or have those of rank 0."""
