"""What several ranks need: how they start, agree, share devices, and leave output to rank 0."""
