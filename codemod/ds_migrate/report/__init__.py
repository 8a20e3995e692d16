"""How a report is shown: on a terminal, as a patch, or as JSON. Nothing here decides anything."""
