"""The places where optimizers are made and bound."""
