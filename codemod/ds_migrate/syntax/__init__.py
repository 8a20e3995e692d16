"""Reading and rewriting Python source: the libcst tree, its edits, its names."""
