"""The calls of functions: their arguments, and the values that each call makes."""
