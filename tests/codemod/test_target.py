"""The names that converted code may import are those that the runtime has."""

from __future__ import annotations

import importlib

import pytest
from ds_migrate.target import DEEPSPEED_MODULE, MOVED, RUNTIME, SHARED


@pytest.mark.parametrize("module", SHARED)
def test_the_runtime_has_every_name_that_the_codemod_takes_from_it(module: str) -> None:
    package = importlib.import_module(RUNTIME.module(module))
    for name in SHARED[module]:
        if not hasattr(package, name):
            importlib.import_module(f"{package.__name__}.{name}")


@pytest.mark.parametrize("name", [*MOVED.values(), "EngineModule", "overwrite_deepspeed_config"])
def test_the_deepspeed_api_is_there(name: str) -> None:
    assert hasattr(importlib.import_module(RUNTIME.module(DEEPSPEED_MODULE)), name)


@pytest.mark.parametrize(
    "name", ["determined.experimental.client", "determined.common.set_logger", "determined.launch"]
)
def test_what_the_runtime_lacks_is_known(name: str) -> None:
    assert not RUNTIME.has(name)
