"""Show a report: on a terminal, as a patch, or in a format for machines. Nothing here decides anything."""
