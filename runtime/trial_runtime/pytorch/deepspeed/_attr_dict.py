"""Hyperparameters as attributes."""

from __future__ import annotations

from typing import Any


class AttrDict(dict[str, Any]):
    """A dict whose items are attributes too, dicts inside it likewise.

    A missing attribute raises AttributeError, so ``hasattr`` works, which ``deepspeed.initialize(args=...)`` relies on.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for key, value in self.items():
            self[key] = value

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, _nested(value))

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no item {name!r}; there are: {', '.join(map(str, self)) or 'none'}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]
        except KeyError:
            raise AttributeError(name) from None


def _nested(value: Any) -> Any:
    if isinstance(value, dict) and not isinstance(value, AttrDict):
        return AttrDict(value)
    if isinstance(value, list):
        return [_nested(item) for item in value]
    return value
