"""The programs of a project: the files that belong to one, parsed once for all that read them."""
