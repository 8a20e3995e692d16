"""Imports of the optional packages, when they are needed."""

from __future__ import annotations

import importlib
from typing import Any


def transformers() -> Any:
    """Return the package ``transformers``. Raises ImportError with what to install."""
    return _package("transformers")


def datasets() -> Any:
    """Return the package ``datasets``. Raises ImportError with what to install."""
    return _package("datasets")


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ImportError(f"model_hub.huggingface needs {name}, which is not installed: pip install {name}") from error
