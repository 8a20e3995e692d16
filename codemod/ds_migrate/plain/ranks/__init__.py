"""Several ranks: they start, agree, use separate devices, and leave output to rank 0."""
