"""The start of the ranks: by any launcher, one process for each."""
