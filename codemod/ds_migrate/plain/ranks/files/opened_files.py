"""Calls that open a file to write it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.syntax.nodes import argument, dotted
from ds_migrate.syntax.source import SourceFile

_WRITES = frozenset("".join(parts) for parts in (
    (how, plus, kind) for how in "wax" for plus in ("", "+") for kind in ("", "b", "t")
)) | {"wb+", "ab+"}  # fmt: skip
_CHANGES = frozenset({"r+", "rb+", "r+b", "r+t", "rt+"})
# Files with parts, which none but their own library can write: there is no such file that keeps nothing.
_ARCHIVES = ("zipfile.ZipFile", "tarfile.open", "h5py.File", "zarr.open", "numpy.memmap")
# Those that write a file whatever they are given.
_NEW = ("pandas.ExcelWriter", "webdataset.TarWriter", "webdataset.ShardWriter", "tfrecord.TFRecordWriter")
OPENERS = frozenset({"open", "io.open", "codecs.open", "gzip.open", "bz2.open", "lzma.open", "jsonlines.open"})
# Functions that copy or move to their second argument.
COPIES = frozenset({"copy", "copy2", "copyfile", "copytree", "move", "rename", "renames", "replace"})


def opens_to_write(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a call opens a file to write it: by its path, or as ``path.open("w")``."""
    modes = _modes_of(call, file, flow)
    return bool(modes) and all(mode in _WRITES for mode in modes)


def opens_to_change(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a call may open a file to write it, and no other one that keeps nothing can be opened instead.

    It reads the file too, or opens it to read or to write it, as its mode is.
    """
    modes = _modes_of(call, file, flow) if dotted(call.func) in OPENERS else []
    return any(mode is None or mode in _CHANGES | _WRITES for mode in modes) and not opens_to_write(call, file, flow)


def opens_archive_to_write(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a call opens an archive to write it, as ``zipfile.ZipFile(path, "w")``."""
    if not flow.is_call_of(call, file, _ARCHIVES):
        return flow.is_call_of(call, file, _NEW)
    is_array = flow.is_call_of(call, file, ("numpy.memmap",))
    mode = argument(call, 2 if is_array else 1, "mode")
    changes = ("w", "a", "x") if is_array else ("w", "a", "x", "r+")  # an array is read by "r+", too
    modes = _modes(mode.value, file, flow) if mode is not None else ()
    return any(one is not None and one.startswith(changes) for one in modes)


def path_opened(call: cst.Call) -> cst.BaseExpression:
    """Return the path that a call opens."""
    if dotted(call.func) not in OPENERS and isinstance(call.func, cst.Attribute):
        return call.func.value
    return call.args[0].value


def _modes_of(call: cst.Call, file: SourceFile, flow: Flow) -> list[str | None]:
    """Return what the mode of a call that opens a file may be; it has none where it reads, or keeps nothing."""
    if call.args and dotted(call.args[0].value) == "os.devnull":
        return []
    is_method = isinstance(call.func, cst.Attribute) and call.func.attr.value == "open"
    is_opener = dotted(call.func) in OPENERS
    mode = argument(call, 1 if is_opener else 0, "mode") if is_opener or is_method else None
    return list(_modes(mode.value, file, flow)) if mode is not None else []


def _modes(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> Iterator[str | None]:
    """Yield what a mode may be, also where a name, an attribute or a parameter holds it; None is any."""
    ends = list(flow.callers.ends(node, file))
    for end, home in [one for one in ends if not isinstance(one[0], cst.Name)] or ends:
        if isinstance(end, cst.IfExp):
            yield from (*_modes(end.body, home, flow), *_modes(end.orelse, home, flow))
        else:
            yield str(end.evaluated_value) if isinstance(end, cst.SimpleString) else None
