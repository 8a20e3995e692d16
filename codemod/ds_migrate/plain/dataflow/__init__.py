"""What the variables of a program may hold, followed over its files."""
