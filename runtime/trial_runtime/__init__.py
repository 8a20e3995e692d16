"""The runtime that trains migrated trials on plain torch and DeepSpeed."""

__version__ = "0.1.0"
