"""The items of lists, dicts and records."""
