"""Make ``import determined`` mean :mod:`trial_runtime`, so that an original trial runs unchanged.

Each ``determined[.x.y]`` becomes *the same module object* as ``trial_runtime[.x.y]``: a class reached by either name is
one class, and ``isinstance`` holds across both. A module that the runtime lacks is an ImportError with a reason, never
the installed ``determined`` package by accident.

``pedl``, its name in 2019, is :mod:`trial_runtime.train.pedl`.

``model_hub``, Determined's package of trials for other libraries, is :mod:`trial_runtime.model_hub`, where the project
has no folder of that name.

Determined's DeepSpeed examples take their ``AttrDict`` from the package ``attrdict``, which cannot be imported since
Python 3.10. The runtime's is used where there is no other.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

ALIAS = "determined"
TARGET = "trial_runtime"
_MODEL_HUB = "model_hub"
_COMMON = "determined_common"  # what determined.common was in releases before 0.13
_PEDL, _PEDL_MODULE = "pedl", "trial_runtime.train.pedl"  # what Determined was called in 2019
_ATTR_DICT = "trial_runtime.pytorch.deepspeed._attr_dict"
_SHIM = str(Path(__file__).parent / "shim")


class _SameModule(importlib.abc.Loader):
    """Loader that returns the target module, unchanged, under the alias's name."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._spec: importlib.machinery.ModuleSpec | None = None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:  # noqa: ARG002
        module = importlib.import_module(self._target)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just put the alias's spec on the module; relative imports inside it need its own.
        module.__spec__ = self._spec


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == "attrdict" and not is_importable(fullname):
            return importlib.machinery.ModuleSpec(fullname, _SameModule(_ATTR_DICT))
        package, _, rest = fullname.partition(".")
        if package == _MODEL_HUB and not is_importable(package):
            name = f"{TARGET}.{fullname}"
        elif package == ALIAS:
            name = f"{TARGET}.{rest}" if rest else TARGET
        elif package == _PEDL and not is_importable(package):
            name = f"{_PEDL_MODULE}.{rest}" if rest else _PEDL_MODULE
        elif package == _COMMON and not is_importable(package):
            name = f"{TARGET}.common.{rest}" if rest else f"{TARGET}.common"
        else:
            return None
        found = importlib.util.find_spec(name)
        if found is None:
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: here {ALIAS!r} is {TARGET!r}, which has no {name!r}. "
                f"It offers what trials use; what talks to a Determined cluster is not part of it.",
                name=fullname,
            )
        return importlib.machinery.ModuleSpec(
            fullname, _SameModule(name), is_package=found.submodule_search_locations is not None
        )


def is_importable(name: str) -> bool:
    """Return whether a module of this name exists that is not the distribution of this name."""
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return importlib.machinery.PathFinder.find_spec(name) is not None
    return False


_finder = _Finder()


def install() -> None:
    """Resolve ``determined`` imports of this process to ``trial_runtime``. Calling it again changes nothing.

    Raises:
        RuntimeError: the installed ``determined`` package has been imported already.
    """
    if _finder in sys.meta_path:
        return
    loaded = sys.modules.get(ALIAS)
    if loaded is not None:
        raise RuntimeError(
            f"{ALIAS!r} is already imported from {getattr(loaded, '__file__', '?')}; "
            f"install the alias before anything imports it"
        )
    sys.meta_path.insert(0, _finder)
    if _SHIM not in sys.path:
        sys.path.insert(1, _SHIM)  # for spawned children, which inherit the path but not the finder


def uninstall() -> None:
    """Undo :func:`install` and forget the aliased modules; modules that hold references keep them."""
    if _finder not in sys.meta_path:
        return
    sys.meta_path.remove(_finder)
    if _SHIM in sys.path:
        sys.path.remove(_SHIM)
    for name in list(sys.modules):
        package = name.partition(".")[0]
        is_served = package in (_MODEL_HUB, _COMMON, _PEDL) and sys.modules[name].__name__.startswith(TARGET)
        if package == ALIAS or is_served:
            del sys.modules[name]
