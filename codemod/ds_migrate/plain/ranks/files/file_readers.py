"""Files that ranks read again while rank 0 may still write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_conditions import RankConditions
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.ranks.files.call_order import CallOrder
from ds_migrate.plain.ranks.files.file_names import BLANK, FileNames, may_be_one, root_of
from ds_migrate.plain.ranks.files.looks import first_look, path_of
from ds_migrate.plain.ranks.files.numbered_folders import LISTS
from ds_migrate.plain.ranks.files.opened_files import COPIES, OPENERS, opens_to_write
from ds_migrate.plain.ranks.rank_guards import is_guarded
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.plain.recognition.lone_scripts import runs_alone
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, called_name, code, dotted, dotted_names, last_name
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile

_READS = (
    "numpy.load", "numpy.loadtxt", "numpy.genfromtxt", "pandas.read_csv", "pandas.read_json", "pandas.read_pickle",
    "pandas.read_parquet", "torch.load", "joblib.load", "PIL.Image.open", "cv2.imread", "imageio.imread",
    "imageio.v2.imread", "matplotlib.pyplot.imread", "scipy.io.loadmat", "torchaudio.load", "soundfile.read",
    "safetensors.torch.load_file", "os.stat", "os.path.getsize", "sentence_transformers.SentenceTransformer",
    "sentence_transformers.models.Transformer", "safetensors.safe_open",
)  # fmt: skip
# Functions of libraries that read the path which they are given, by their names: torch.jit.load, read_excel, imread.
_READER = re.compile(r"(im)?(load|read)(_\w+|image)?", re.IGNORECASE)
_READING_METHODS = frozenset({"read_text", "read_bytes", "stat", "lstat"})
_LISTING_DATASETS = ("torchvision.datasets.ImageFolder", "torchvision.datasets.DatasetFolder")
_SUFFIXES = {"numpy.save": ".npy", "numpy.savez": ".npz", "numpy.savez_compressed": ".npz"}  # of names without one
_PATTERN = re.compile(r"\*(\.\w+)[\"']")  # the ending of "*.png"
_REMOVES = ("os.remove", "os.unlink", "shutil.rmtree")
_OF_ANY_PATH = frozenset({"self", "os", "os.path", "os.path.join", "str", "Path", "pathlib", "pathlib.Path"})
Read = tuple[SourceFile, cst.Call]
Write = tuple[SourceFile, cst.Call, cst.BaseExpression]  # with its path


class Listed(NamedTuple):
    """The names of a folder that a call lists, those of the folders around it, and the ending of the files."""

    names: frozenset[str]
    around: frozenset[str]
    ending: str


class FileReaders:
    """The calls of a program that read files, and the waits before those that read what rank 0 writes."""

    def __init__(self, facts: LoopFacts, files: list[SourceFile], runtime: RuntimeNames, converted: Converted) -> None:
        self._facts = facts
        self._runtime = runtime
        self._converted = converted
        self.call_order = CallOrder(facts)
        self._names = FileNames(facts.flow)
        self._conditions = RankConditions(facts.flow)
        self._reads = [
            (file, call, self._names.of(path, file))
            for file in files for call in file.nodes(cst.Call)
            for path in self._paths_read(call, file)
            if not is_guarded(call, file)
        ]  # fmt: skip
        self._lists = [
            (file, call, self._listed(call, file))
            for file in files for call in file.nodes(cst.Call)
            if self._is_list(call, file) and not is_guarded(call, file)
        ]  # fmt: skip
        self._waits: dict[int, SourceFile] = {}

    def of(self, write: cst.Call, path: cst.BaseExpression, file: SourceFile) -> list[Read]:
        """Return the calls that may read what a call has written to a path, later in the program."""
        names = self._names_written((file, write, path))
        return [
            (other, read)
            for other, read, known in self._reads
            if known & names and read is not write and self.call_order.may_follow((other, read), (file, write))
        ]

    def likely_of(self, write: Write) -> Iterator[Read]:
        """Yield the calls that may read what another one has written, by names of which parts are not written out."""
        names, (home, written, _) = self._names_written(write), write
        around = {id(outer) for outer in home.ancestors(written)}
        for file, read, known in self._reads:
            if read is written or known & names or not may_be_one(names, known):
                continue
            loops = [outer for outer in file.ancestors(read) if isinstance(outer, (cst.For, cst.While))]
            if all(id(loop) in around for loop in loops) and self.call_order.may_follow((file, read), (home, written)):
                yield file, read

    def saves_of(self, load: cst.Call, file: SourceFile, saves: Iterable[Read]) -> Iterator[Read]:
        """Yield the calls of ``torch.save()`` that may save what a call loads, by the names of their files."""
        names = self._names.of(load.args[0].value, file) if load.args else frozenset[str]()
        for home, save in saves:
            path = argument(save, 1, "f")
            saved = self._names.of(path.value, home) if path is not None else frozenset[str]()
            if saved & names or may_be_one(saved, names):
                yield home, save

    def lists_of(self, write: Write) -> list[Read]:
        """Return the calls that may list a folder with what another call has written, behind it."""
        home, _, path = write
        names, parts = self._names_written(write), dotted_names(path) - _OF_ANY_PATH
        return [
            (file, found)
            for file, found, listed in self._lists
            if (self._is_filled(listed, write) or (file is home and self._lists_some(found, names, parts)))
            and self.call_order.may_follow((file, found), write[:2])
        ]

    def _is_list(self, call: cst.Call, file: SourceFile) -> bool:
        return called_name(call) in LISTS or self._facts.flow.is_call_of(call, file, _LISTING_DATASETS)

    def _listed(self, call: cst.Call, file: SourceFile) -> Listed:
        """Return the folder that a call lists, the folders around it, and the ending of the files that it looks for."""
        owner = (
            call.func.value if isinstance(call.func, cst.Attribute) and not self._is_of_library(call, file) else None
        )
        folder = owner if owner is not None else path_of(call)
        if folder is None:
            return Listed(frozenset(), frozenset(), "")
        names = frozenset(name for name in self._names.of(folder, file) if not name.startswith("<"))
        ending = next(iter(_PATTERN.findall(expression_text(call))), "")
        around = self._names.folders(folder, file) - {BLANK}
        return Listed(around if any("*" in name for name in names) else names - {BLANK}, around, ending)

    def _is_filled(self, listed: Listed, write: Write) -> bool:
        """Return whether a call may write to a folder that another one lists, by the names of folders."""
        home, call, path = write
        is_copy = last_name(call.func) in COPIES  # its target may be a folder
        filled = self._names.parts(path, home) if is_copy else self._names.folders(path, home)
        names = self._names.of(path, home)
        if listed.ending and not any(name.endswith((listed.ending, BLANK, ">")) for name in names):
            return False
        return bool(filled & listed.names or (BLANK in filled and filled & listed.around))

    def _lists_some(self, call: cst.Call, names: frozenset[str], parts: set[str]) -> bool:
        """Return whether a call lists files with one of these endings, or those in a folder of the same name."""
        owner = [call.func.value] if isinstance(call.func, cst.Attribute) else []
        folders = [call.args[0].value] if call.args else owner
        patterns = [text for folder in folders for text in _PATTERN.findall(expression_text(folder))]
        if patterns:
            return any(name.endswith(ending) for name in names for ending in patterns)
        return any(parts & dotted_names(root_of(folder)) for folder in folders)

    def is_read(self, write: Write) -> bool:
        """Return whether a call may read what another one writes, before or after."""
        names = self._names_written(write)
        return any(known & names for _, _, known in self._reads)

    def below(self, block: cst.CSTNode, write: Write) -> list[Read]:
        """Return the calls in a block that may read what a call of the same file writes."""
        names, (home, *_) = self._names_written(write), write
        return [
            (file, call)
            for file, call, known in self._reads
            if file is home and known & names and any(outer is block for outer in file.ancestors(call))
        ]

    def looks_for(self, call: cst.Call, file: SourceFile, write: Write) -> bool:
        """Return whether a call asks for the file that another one may write behind it."""
        asked = path_of(call)
        if asked is None or not self._names.of(asked, file) & self._names_written(write):
            return False
        return self.call_order.may_follow(write[:2], (file, call))

    def _names_written(self, write: Write) -> frozenset[str]:
        file, call, path = write
        names = self._names.of(path, file)
        found = self._facts.flow.values(call.func, file)
        suffix = next((_SUFFIXES[value.name] for value in found if value.name in _SUFFIXES), "")
        if not suffix or all(name.endswith(suffix) for name in names):
            return names
        return names | {name + suffix for name in names} | {"{}" + suffix}

    def can_wait(self, read: Read) -> bool:
        """Return whether all ranks come to a call that reads as often, so that they can wait for each other there."""
        file, call = read
        return self._meet(first_look(call, file), file)

    def _meet(self, place: cst.CSTNode, file: SourceFile) -> bool:
        return runs_alone(file, self._facts.flow) and self._conditions.reach_all(place, file)

    def wait(self, read: Read) -> None:
        """Let all ranks wait before a call that reads what rank 0 has written."""
        file, call = read
        if self._wait_before(first_look(call, file), call, file) and is_removed_later(call, file):
            file.after(file.statement(call), self._runtime.wait(file))

    def wait_above(self, read: Read, write: Read) -> bool:
        """Let ranks wait where calls lead to one that reads, behind those that lead to one that writes.

        Return whether they can, or none of the calls does.
        """
        places = list(self.call_order.following(read, write))
        if not all(self._meet(node, file) for file, node in places):
            return False
        for file, node in places:
            self._wait_before(file.statement(node), node, file)
        return True

    def _wait_before(self, place: cst.BaseStatement, node: cst.CSTNode, file: SourceFile) -> bool:
        """Let ranks wait before a statement; return whether they did not yet."""
        if id(place) in self._waits:
            return False
        self._waits[id(place)] = file
        file.before(place, self._runtime.wait(file))
        self._converted(Code.PLAIN_RANK_ZERO, file, node, "ranks wait until rank 0 has written what they read")
        return True

    def waits_before(self, place: cst.CSTNode) -> bool:
        """Return whether ranks wait before a statement already."""
        return id(place) in self._waits

    def waits_in(self, file: SourceFile) -> bool:
        """Return whether ranks wait somewhere in a file."""
        return any(other is file for other in self._waits.values())

    def _paths_read(self, call: cst.Call, file: SourceFile) -> list[cst.BaseExpression]:
        """Return what may be the paths that a call reads: all arguments where its name alone shows that it reads."""
        path, name = self._path_read(call, file), called_name(call)
        if path is not None:
            return [path]
        is_reader = _READER.fullmatch(name) is not None and name != "load_state_dict"
        is_followed = is_reader and bool(of_kind(self._facts.flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD))
        given = [arg.value for arg in call.args] if is_reader and not is_followed else []
        return [value for value in given if BLANK not in self._names.of(value, file)]  # of which nothing is written out

    def _path_read(self, call: cst.Call, file: SourceFile) -> cst.BaseExpression | None:
        """Return the path that a call reads."""
        if dotted(call.func) in OPENERS:
            return call.args[0].value if call.args and not opens_to_write(call, file, self._facts.flow) else None
        if self._facts.flow.is_call_of(call, file, _READS):
            return call.args[0].value if call.args else None
        if called_name(call).endswith("from_pretrained"):
            return call.args[0].value if call.args else None
        if isinstance(call.func, cst.Attribute):
            is_open = (
                call.func.attr.value == "open"
                and not opens_to_write(call, file, self._facts.flow)
                and not self._is_of_library(call, file)
            )
            return call.func.value if is_open or call.func.attr.value in _READING_METHODS else None
        return None

    def _is_of_library(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call is of a function of a library: ``glob.glob()``, and not ``Path("data").glob()``."""
        return bool(of_kind(self._facts.flow.values(call.func, file), Kind.EXTERNAL))


def is_removed_later(load: cst.Call, file: SourceFile) -> bool:
    """Return whether the function that loads a file removes it behind this, as rank 0 does while others may load."""
    loaded = code(load.args[0].value) if load.args else None
    for call in file.nodes(cst.Call, below=file.function(load) or file.module):
        of_path = call.func.value if isinstance(call.func, cst.Attribute) and not call.args else None
        removed = call.args[0].value if dotted(call.func) in _REMOVES and call.args else None
        path = of_path if of_path is not None and called_name(call).endswith("unlink") else removed
        if path is not None and code(path) == loaded and file.position(load) < file.position(call):
            return True
    return False
