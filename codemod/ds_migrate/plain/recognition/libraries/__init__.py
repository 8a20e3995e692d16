"""Libraries that train, step or scale for a program."""
