"""The names of engines, and the functions that they reach."""
