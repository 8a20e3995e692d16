"""The branches of a program: which run, which run together, and which run on all ranks."""
