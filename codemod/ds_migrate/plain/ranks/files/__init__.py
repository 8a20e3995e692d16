"""Files that a program looks for, reads and makes: rank 0 makes them, and the others find them complete."""
