"""Counterparts of ``model_hub``, Determined's trials for other libraries."""
