"""Decisions on a loop: its engines, their configs, and how each operation is converted."""
