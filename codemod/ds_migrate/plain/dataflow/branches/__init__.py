"""The branches of a program: which run, and which run together."""
