"""Origins of what a program is given and does not make: the argument that it is, of which function."""
