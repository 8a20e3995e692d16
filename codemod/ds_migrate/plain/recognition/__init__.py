"""Training loops as they are found: operations, optimizers, loaders, and what keeps a loop from being converted."""
