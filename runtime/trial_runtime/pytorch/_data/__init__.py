"""Training data: loaders, each rank's share and random draws, and resuming in the middle of an epoch."""
