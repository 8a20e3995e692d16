"""Several ranks: they start, agree, use separate devices, share the data, and leave output to rank 0."""
