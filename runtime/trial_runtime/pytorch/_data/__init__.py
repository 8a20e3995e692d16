"""Training data: loaders, what each rank draws from them, and how a resumed run continues in the middle."""
