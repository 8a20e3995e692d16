"""Files on disk: finding, filtering, reading, writing, and the journal of what was written."""
