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
_ARCHIVES = (
    "zipfile.ZipFile", "tarfile.open", "tarfile.TarFile.open", "h5py.File", "pandas.HDFStore", "pandas.ExcelWriter",
    "zarr.open", "zarr.open_array", "zarr.open_group", "netCDF4.Dataset", "tables.open_file", "rasterio.open",
    "mrcfile.open", "mrcfile.new", "mrcfile.new_mmap", "wave.open", "soundfile.SoundFile", "av.open", "laspy.open",
    "numpy.memmap", "numpy.lib.format.open_memmap", "pyarrow.parquet.ParquetWriter", "webdataset.TarWriter",
    "webdataset.ShardWriter", "xlsxwriter.Workbook", "tfrecord.TFRecordWriter", "tfrecord.writer.TFRecordWriter",
)  # fmt: skip
# Those that open a file to write it whatever their mode is.
_NEW = (
    "pandas.ExcelWriter", "mrcfile.new", "mrcfile.new_mmap", "pyarrow.parquet.ParquetWriter", "webdataset.TarWriter",
    "webdataset.ShardWriter", "xlsxwriter.Workbook", "tfrecord.TFRecordWriter", "tfrecord.writer.TFRecordWriter",
)  # fmt: skip
_MODES = {"numpy.memmap": 2}  # the position of the mode, where it is not the second argument
OPENERS = frozenset({"open", "io.open", "codecs.open", "gzip.open", "bz2.open", "lzma.open"})
# Functions that copy or move to their second argument.
COPIES = frozenset({"copy", "copy2", "copyfile", "copytree", "move", "rename", "renames", "replace"})


def opens_to_write(call: cst.Call, file: SourceFile) -> bool:
    """Return whether a call opens a file to write it: by its path, or as ``path.open("w")``."""
    if dotted(call.func) in OPENERS:
        is_kept = bool(call.args) and dotted(call.args[0].value) != "os.devnull"
        return is_kept and _writes(argument(call, 1, "mode"), call, file)
    is_method = isinstance(call.func, cst.Attribute) and call.func.attr.value == "open"
    return is_method and _writes(argument(call, 0, "mode"), call, file)


def opens_to_change(call: cst.Call, file: SourceFile) -> bool:
    """Return whether a call opens a file to read and write it, which has no other that keeps nothing."""
    mode = argument(call, 1, "mode") if dotted(call.func) in OPENERS else None
    return mode is not None and any(
        isinstance(one, cst.SimpleString) and one.evaluated_value in _CHANGES for one in _modes(mode.value, call, file)
    )


def opens_archive_to_write(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a call opens an archive to write it, as ``zipfile.ZipFile(path, "w")``."""
    if not flow.is_call_of(call, file, _ARCHIVES):
        return False
    if flow.is_call_of(call, file, _NEW):
        return True
    position = next((position for name, position in _MODES.items() if flow.is_call_of(call, file, (name,))), 1)
    mode = argument(call, position, "mode")
    changes = ("r+",) if position == 1 else ()  # of an array in a file, which is read that way too
    return mode is not None and any(
        isinstance(one, cst.SimpleString) and str(one.evaluated_value).startswith(("w", "a", "x", *changes))
        for one in _modes(mode.value, call, file)
    )


def path_opened(call: cst.Call) -> cst.BaseExpression:
    """Return the path that a call opens."""
    if dotted(call.func) not in OPENERS and isinstance(call.func, cst.Attribute):
        return call.func.value
    return call.args[0].value


def _writes(mode: cst.Arg | None, call: cst.Call, file: SourceFile) -> bool:
    """Return whether a mode is one to write, whichever of several it is: ``"a" if exists(path) else "w"``."""
    found = list(_modes(mode.value, call, file)) if mode is not None else []
    return bool(found) and all(isinstance(one, cst.SimpleString) and one.evaluated_value in _WRITES for one in found)


def _modes(mode: cst.BaseExpression, call: cst.Call, file: SourceFile) -> Iterator[cst.BaseExpression]:
    """Yield what a mode may be, also that of a name which the same function, or the module, sets."""
    values = [mode]
    if isinstance(mode, cst.Name):
        values = file.values_of({mode.value}, file.function(call) or file.module) or [mode]
    for value in values:
        yield from (value.body, value.orelse) if isinstance(value, cst.IfExp) else (value,)
