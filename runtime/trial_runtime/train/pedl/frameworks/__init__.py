"""The frameworks of ``pedl``, of which only PyTorch is served."""
