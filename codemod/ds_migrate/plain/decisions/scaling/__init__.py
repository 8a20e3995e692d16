"""Scaling of losses: the GradScaler of a program, and its calls."""
