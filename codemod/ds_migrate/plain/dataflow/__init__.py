"""The values that variables of a program may hold, followed over its files."""
