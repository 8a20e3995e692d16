"""Checkpoint storage behind a URL, through fsspec drivers that run in a separate process."""
