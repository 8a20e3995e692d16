"""The model registry's names, which raise an error when they are used."""

from trial_runtime.experimental.client import Model, ModelOrderBy, ModelSortBy, ModelVersion, OrderBy

__all__ = ["Model", "ModelOrderBy", "ModelSortBy", "ModelVersion", "OrderBy"]
