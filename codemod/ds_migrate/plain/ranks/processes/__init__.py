"""Differences between processes whatever their data: the time, random numbers, the order of sets."""
