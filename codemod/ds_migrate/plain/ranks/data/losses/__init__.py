"""Losses over the share of a rank: what they are made of, and what is no mean over samples."""
