"""The text that is written: engines, calls on them, imports of helpers."""
