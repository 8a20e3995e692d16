"""``ds-train runs``: the run directories that were left, listed, compared, exported and removed."""
