"""The forward and backward passes of engines."""
