"""The values that differ by rank, and the conditions that do not."""
