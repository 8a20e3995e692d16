"""Rewrite trials for the API before 0.13 as today's PyTorchTrials, before the rest of the conversion reads them."""
