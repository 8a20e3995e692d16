"""Find the keys that the installed DeepSpeed reads from a config, by letting it read one.

DeepSpeed has no list of its keys: sub-blocks are pydantic models or plain dicts, the top level is read key by key. A
dict that notes what it is asked for, given to DeepSpeed's own reader, reveals the keys and their defaults of the
installed version.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import typing
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pydantic

MISSING: Any = type("Missing", (), {"__repr__": lambda _: "(unknown)"})()
"""The default of a key that is read without one."""

# Read outside of DeepSpeed's reader of configs.
_READ_ELSEWHERE = {
    (): ("sequence_parallel_size", "data_parallel_size", "allgather_size"),
    ("optimizer",): ("params",),
    ("scheduler",): ("params",),
}
# Read in parts only: arguments of classes, and what depends on other values.
_OPEN = frozenset({"params", "curriculum_learning", "random_ltd"})
_UNKNOWN = "__not_a_key__"


@dataclasses.dataclass(frozen=True)
class Block:
    """Object of a config.

    Attributes:
        defaults: what DeepSpeed takes where a key is absent, by key; ``MISSING`` where that is not known.
        blocks: the keys that hold objects.
        model: the pydantic model that reads it, None for a plain dict.
    """

    defaults: dict[str, Any]
    blocks: Mapping[str, Block]
    model: type[pydantic.BaseModel] | None = None


@functools.cache
def known() -> Block:
    """Return the whole config, as the installed DeepSpeed reads it."""
    return _plain(())


class _Blocks(Mapping[str, Block]):
    """The blocks of a plain dict, each found when it is asked for: a config has few of them.

    Args:
        path: of the dict.
        keys: those that may hold objects.
    """

    def __init__(self, path: tuple[str, ...], keys: Collection[str]) -> None:
        self._path = path
        self._keys = keys
        self._find = functools.cache(_inner)

    def __getitem__(self, key: str) -> Block:
        found = self._find((*self._path, key)) if key in self._keys else None
        if found is None:
            raise KeyError(key)
        return found

    def __iter__(self) -> Iterator[str]:
        return (key for key in self._keys if key in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def removed() -> dict[str, str]:
    """Return the reason by dotted name for the keys whose mere presence DeepSpeed refuses."""
    from deepspeed.runtime import config

    return {
        **getattr(config, "_REMOVED_TOP_LEVEL_CONFIG_KEYS", {}),
        **{f"zero_optimization.{k}": why for k, why in getattr(config, "_REMOVED_ZERO_CONFIG_KEYS", {}).items()},
    }


class _Recorder(dict[str, Any]):
    """A dict that notes what it is asked for, and the default given with the question."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.asked: dict[str, Any] = {}

    def get(self, key: str, default: Any = None) -> Any:
        self.asked[key] = default
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.asked.setdefault(key, MISSING)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.asked.setdefault(str(key), MISSING)
        return super().__contains__(key)

    def keys(self) -> Any:
        return self

    def __copy__(self) -> _Recorder:
        return self


def _read(path: tuple[str, ...], block: _Recorder) -> Exception | None:
    """Let DeepSpeed read a config that holds ``block`` at ``path`` and little else; what it raised."""
    from deepspeed.runtime.config import DeepSpeedConfig

    content: dict[str, Any] = block
    for key in reversed(path):
        content = {key: content, "type": "Adam"} if path[0] in ("optimizer", "scheduler") else {key: content}
    if path:
        content["train_micro_batch_size_per_gpu"] = 1
    logger = logging.getLogger("DeepSpeed")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # it logs what it reads
    try:
        DeepSpeedConfig(content)
    except Exception as error:
        return error
    finally:
        logger.setLevel(level)
    return None


def _plain(path: tuple[str, ...]) -> Block:
    """Return the plain dict at ``path``."""
    block = _Recorder({} if path else {"train_micro_batch_size_per_gpu": 1})
    _read(path, block)
    defaults = {key: default for key, default in block.asked.items() if ".".join((*path, key)) not in removed()}
    defaults.update(dict.fromkeys(_READ_ELSEWHERE.get(path, ()), MISSING))
    if path == ("pipeline",):
        from deepspeed.runtime.config import get_pipeline_config

        defaults = {**get_pipeline_config({}), "use_reentrant": True}
    scalars = bool | int | float | str
    inner_keys = [key for key, value in defaults.items() if key not in _OPEN and not isinstance(value, scalars)]
    return Block(defaults, _Blocks(path, inner_keys))


def _inner(path: tuple[str, ...]) -> Block | None:
    """Return the object at ``path``; None when it is not an object, or not known."""
    probe = _Recorder({_UNKNOWN: None})
    error = _read(path, probe)
    if isinstance(error, pydantic.ValidationError):
        return _model_named(error)
    if probe.asked.keys() - {_UNKNOWN} or path == ("pipeline",):
        return _plain(path)
    return None


def _model_named(error: pydantic.ValidationError) -> Block | None:
    """Return the model that an error about an unknown key comes from."""
    found = [model for model in _models() if model.__name__ == error.title]
    for problem in error.errors():
        if len(found) == 1 and problem["loc"][-1] == _UNKNOWN:
            block: Block | None = _modelled(found[0])
            for key in problem["loc"][:-1]:
                block = block.blocks.get(str(key)) if block else None
            return block
    return None


def _models() -> Iterator[type[pydantic.BaseModel]]:
    """Yield every model class that DeepSpeed has loaded, once."""
    seen: set[type] = set()
    waiting: list[type[pydantic.BaseModel]] = [pydantic.BaseModel]
    while waiting:
        model = waiting.pop()
        if model not in seen:
            seen.add(model)
            waiting.extend(model.__subclasses__())
            if model.__module__.startswith("deepspeed."):
                yield model


def _modelled(model: type[pydantic.BaseModel]) -> Block:
    defaults, blocks = {}, {}
    for name, field in model.model_fields.items():
        names = {name, field.alias} - {None}
        for key in typing.cast("set[str]", names):
            made = field.is_required() or field.default_factory is not None
            defaults[key] = MISSING if made else field.default
            for part in (field.annotation, *typing.get_args(field.annotation)):
                if isinstance(part, type) and issubclass(part, pydantic.BaseModel):
                    blocks[key] = _modelled(part)
    return Block(defaults, blocks, model)
