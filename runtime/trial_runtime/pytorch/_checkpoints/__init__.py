"""Checkpoints: written, committed, verified, loaded, and copied to remote storage."""
