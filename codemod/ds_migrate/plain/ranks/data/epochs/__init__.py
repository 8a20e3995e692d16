"""Sums, averages, counts and collections of an epoch, which each rank makes over its share of the data."""
