"""The loaders of a program, and the batches that training draws from them."""
