"""Key by key: unknown and removed keys, values of another type, and ``"auto"``."""

from __future__ import annotations

import enum
from typing import Any

import pydantic

from trial_runtime.pytorch.deepspeed._config_lint.problems import Problem, Problems, Setup, meant, shown
from trial_runtime.pytorch.deepspeed._config_lint.schema import Block, known, removed

_BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def check_keys(config: dict[str, Any], setup: Setup) -> Problems:
    """Check each key by itself, at every level."""
    yield from _check(config, known(), "", setup)


def _check(config: dict[str, Any], block: Block, prefix: str, setup: Setup) -> Problems:
    gone = removed()
    for key, value in config.items():
        path = f"{prefix}{key}"
        if path in gone:
            yield Problem(path, _removed(value, gone[path]))
        elif key not in block.defaults:
            yield _unknown(path, key, block)
        elif value == "auto" and isinstance(value, str):
            if block.defaults[key] != "auto" and setup.complete:
                yield Problem(path, f'"auto" is for launchers that fill it in: {_instead_of_auto(path, block, key)}')
        elif key in block.blocks:
            yield from _check_inner(value, block.blocks[key], path, setup)
        elif block.model is None and (expected := _expected(block.defaults[key], value)):
            yield Problem(path, f"{shown(value)} is not {expected}: {_default(block.defaults[key])}")
    if block.model is not None:
        yield from _model(config, block.model, prefix)


def _check_inner(value: Any, block: Block, path: str, setup: Setup) -> Problems:
    if isinstance(value, dict):
        yield from _check(value, block, f"{path}.", setup)
    elif value is not None and not (path == "zero_optimization" and isinstance(value, bool)):
        keys = ", ".join(list(block.defaults)[:3])
        yield Problem(path, f"{shown(value)} is not an object: write {{...}} with keys such as {keys}")


def _removed(value: Any, why: str) -> str:
    off = value is False or (isinstance(value, dict) and value.get("enabled") is False)
    if off:
        return "this version of DeepSpeed refuses the key, though it is off: remove it"
    return f"this version of DeepSpeed does not have it: remove it. DeepSpeed reports: {why.strip()}"


def _unknown(path: str, key: str, block: Block) -> Problem:
    names = [*block.defaults, *(name for name in removed() if "." not in name)]
    if guess := meant(key, names):
        return Problem(path, f"DeepSpeed does not know this key: did you mean {guess}?")
    for outer in ("zero_optimization", "fp16", "activation_checkpointing"):
        if "." not in path and key != "enabled" and key in known().blocks[outer].defaults:
            return Problem(path, f"DeepSpeed does not know this key here: it belongs in {outer}")
    if "." in path and key in known().defaults:
        return Problem(path, "DeepSpeed does not know this key here: it belongs to the top level")
    if block.model is not None:
        return Problem(path, f"DeepSpeed refuses this key: remove it. It knows {', '.join(sorted(block.defaults))}")
    # Some users keep notes in the file; DeepSpeed ignores them.
    return Problem(path, "DeepSpeed does not know this key and ignores it: remove it", fatal=False)


def _instead_of_auto(path: str, block: Block, key: str) -> str:
    if path in _BATCH:
        return f"write a number; merge values of the run with overwrite_deepspeed_config(config, {{{key!r}: ...}})"
    if path == "gradient_clipping":
        return "write the norm to clip at, 0.0 for no clipping"
    return _default(block.defaults[key])


def _default(default: Any) -> str:
    if isinstance(default, enum.Enum):
        default = default.value
    if not isinstance(default, bool | int | float | str):
        return "write a value, or leave the key out"
    return f"write {shown(default)} (what DeepSpeed takes without the key), or another value"


def _expected(default: Any, value: Any) -> str:
    """Return the type that the value should have and has not, from the default; empty when it fits or is not known."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(default, bool):
        return "" if value in (True, False) else "true or false"
    if isinstance(default, int) and not (number and value == int(value)):
        return "a whole number"
    if isinstance(default, float) and not number:
        return "a number"
    if isinstance(default, str) and not isinstance(value, str):
        return "a string"
    return ""


def _model(config: dict[str, Any], model: type[pydantic.BaseModel], prefix: str) -> Problems:
    """Yield what the block's own model refuses."""
    # Each object is reported at its own level.
    own = {key: value for key, value in config.items() if value != "auto" and not isinstance(value, dict)}
    try:
        model(**own)
    except pydantic.ValidationError as error:
        for problem in error.errors():
            if problem["type"] == "extra_forbidden":
                continue  # reported above
            where = ".".join(str(part) for part in problem["loc"])
            path = f"{prefix}{where}".rstrip(".")
            text = _message_of(model, problem)
            yield Problem(path, f"invalid value {shown(problem['input'])}: {text}" if where else text)
    except (AssertionError, ValueError, TypeError) as error:  # models that check in their own way
        yield Problem(prefix.rstrip("."), str(error))


def _message_of(model: type[pydantic.BaseModel], problem: Any) -> str:
    """Return a model's message about a value, with the possible values."""
    name = str(problem["loc"][0]) if problem["loc"] else ""
    fields = (field for key, field in model.model_fields.items() if name in (key, field.alias))
    kind = next((field.annotation for field in fields), None)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return f"write one of {', '.join(str(member.value) for member in kind)}"
    message: str = problem["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return f"{message[0].lower()}{message[1:]}".replace("input should be", "write")
