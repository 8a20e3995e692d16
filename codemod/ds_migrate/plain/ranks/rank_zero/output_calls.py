"""Calls that do nothing but output: they print, plot, and write files that the program leaves behind."""

from __future__ import annotations

import re

import libcst as cst

from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.engines.checkpoints import HELPERS
from ds_migrate.plain.decisions.plan import ProgramPlan
from ds_migrate.plain.ranks.files.opened_files import COPIES, opens_to_write, path_opened
from ds_migrate.plain.ranks.files.path_texts import PathTexts
from ds_migrate.plain.ranks.files.rank_files import RankFiles
from ds_migrate.plain.ranks.rank_zero.loggers import BARS
from ds_migrate.plain.ranks.rank_zero.skippable_expressions import SkippableExpressions
from ds_migrate.syntax.nodes import argument, called_name, dotted, last_name, walk
from ds_migrate.syntax.source import SourceFile

_PRINTS = frozenset({"print", "sys.stdout.write", "sys.stdout.flush", "sys.stderr.write", "sys.stderr.flush"})
_TERMINALS = (
    "click.echo", "click.secho", "typer.echo", "typer.secho", "rich.print", "termcolor.cprint", "loguru.logger.trace",
    "loguru.logger.debug", "loguru.logger.info", "loguru.logger.success",
)  # fmt: skip
_CONSOLES = {"print": ("rich.console.Console",), "log": ("rich.console.Console",), "rule": ("rich.console.Console",)}
_PRINTERS = ("print", *sorted(f"{bar}.write" for bar in BARS), "pprint.pprint", "pprint.pp", *_TERMINALS)
# What is written in memory is read again by the rank that writes it.
_BUFFERS = ("io.BytesIO", "io.StringIO", "six.BytesIO", "six.StringIO")
# Copying or removing what rank 0 has saved: on another rank it may not be there, or gone already.
_SAVES = (
    "torch.save", "shutil.copyfile", "shutil.copy", "shutil.copy2", "shutil.move", "os.rename", "os.replace",
    "os.remove", "os.unlink", "os.symlink", "os.link", "os.renames", "os.rmdir", "os.removedirs", "shutil.rmtree",
    "shutil.copytree", "shutil.make_archive", "os.fsync",
)  # fmt: skip
_ARTIFACTS = (
    "matplotlib.pyplot.savefig", "matplotlib.pyplot.imsave", "matplotlib.pyplot.show",
    "torchvision.utils.save_image", "numpy.save", "numpy.savez", "numpy.savez_compressed", "numpy.savetxt",
    "cv2.imwrite", "imageio.imwrite", "imageio.imsave", "imageio.mimsave", "imageio.mimwrite", "imageio.v2.imwrite",
    "imageio.v2.imsave", "imageio.v2.mimsave", "imageio.v3.imwrite", "skimage.io.imsave", "scipy.io.savemat",
    "scipy.io.wavfile.write", "soundfile.write", "torchaudio.save", "torchvision.io.write_png",
    "torchvision.io.write_jpeg", "torchvision.io.write_video", "joblib.dump", "safetensors.torch.save_file",
    "safetensors.torch.save_model", "torch.jit.save", "tifffile.imwrite", "tifffile.imsave", "nibabel.save",
    "SimpleITK.WriteImage", "scipy.sparse.save_npz", "scipy.misc.imsave", "librosa.output.write_wav",
    "omegaconf.OmegaConf.save", "faiss.write_index", "skvideo.io.vwrite", "torchvision.io.write_file",
    "open3d.io.write_point_cloud", "open3d.io.write_triangle_mesh", "mrcfile.write",
)  # fmt: skip
_SAVING_METHODS = frozenset(
    {"savefig", "to_csv", "to_json", "to_pickle", "to_excel", "to_parquet", "write_text", "write_bytes",
     "save_pretrained", "to_feather", "to_hdf", "tofile", "symlink_to", "write_html", "write_image", "to_filename",
     "to_netcdf", "to_markdown", "to_latex"}
)  # fmt: skip
_DUMPS = ("pickle.dump", "json.dump", "yaml.dump")
_WRITES = frozenset({"write", "writelines", "writerow", "writerows"})
_OF_PATHS = frozenset({"touch", "unlink"})
_MOVES = frozenset({"rename", "replace", "rmdir"})
# Those that write to their second argument.
_MOVING = COPIES | {"symlink", "link"}
# Those whose path comes behind what they write.
_PATH_SECOND = (
    "torchvision.utils.save_image", "joblib.dump", "torch.jit.save", "nibabel.save", "SimpleITK.WriteImage",
    "omegaconf.OmegaConf.save", "faiss.write_index", "safetensors.torch.save_file", "safetensors.torch.save_model",
)  # fmt: skip
# Methods that save what a library makes, with how the names of its makers begin.
_SAVED_OBJECTS = {
    "save": ("PIL.", "torchvision.transforms.functional.to_pil_image", "torchvision.transforms.ToPILImage"),
    "write": ("plyfile.PlyData",),
}
_PLOTS = "matplotlib."
_DEPTH = 4
_OF_TABLES = re.compile(r"path|buf|file|fname|writer")


class OutputCalls:
    """The calls of a program, and what they output.

    Attributes:
        skippable: the expressions that may be left out with them.
    """

    def __init__(self, plan: ProgramPlan) -> None:
        self._plan = plan
        self._flow = plan.facts.flow
        self._paths = PathTexts(plan.facts.flow)
        self._of_rank = RankFiles(plan.facts.flow)
        collective = {id(state.call) for state in plan.state_calls if state.name in HELPERS}
        self.skippable = SkippableExpressions(self._flow, collective)

    def is_print(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call prints on the screen, and not to a file that is opened for it."""
        where = next((a.value for a in call.args if a.keyword is not None and a.keyword.value == "file"), None)
        is_screen = where is None or (dotted(where) or "").startswith("sys.")
        called = self._flow.values(call.func, file)
        function = file.function(call)
        is_stream = function is not None and function.name.value in ("write", "flush")  # where sys.stderr may go
        printers = _PRINTERS if is_stream else (*_PRINTERS, *_PRINTS)
        is_print = dotted(call.func) in _PRINTS or (
            bool(called) and all(value.kind is Kind.EXTERNAL and value.name in printers for value in called)
        )
        writers = {"write": tuple(BARS), **_CONSOLES}.items()
        is_print |= any(self._is_of_made(call, method, makers, file) for method, makers in writers)
        return is_screen and is_print

    def saves(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call saves, copies or removes files of the program."""
        method = call.func if isinstance(call.func, cst.Attribute) and call.func.attr.value in _MOVES else None
        is_of_path = (
            method is not None
            and len(call.args) < 2  # replace() of a text takes two
            and (self._is_made(method.value, ("pathlib.",), file) or self._paths.is_path(method.value, file))
        )
        return (is_of_path or self._flow.is_call_of(call, file, _SAVES)) and not self._is_of_rank(call, file)

    def is_artifact(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call writes a file that the program makes beside its training, for all ranks."""
        return self._writes_artifact(call, file) and not self._is_of_rank(call, file)

    def is_artifact_of_rank(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call writes such a file for its rank alone."""
        return self._writes_artifact(call, file) and self._is_of_rank(call, file)

    def path_of_rank(self, call: cst.Call, file: SourceFile) -> cst.BaseExpression | None:
        """Return the path of such a file that a call writes for its rank alone."""
        return self._path_of(call, file) if self.is_artifact_of_rank(call, file) else None

    def writes(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call writes a file, or to one that is open."""
        if self.saves(call, file) or self.is_artifact(call, file) or self._flow.is_call_of(call, file, _DUMPS):
            return True
        is_written = isinstance(call.func, cst.Attribute) and call.func.attr.value in _WRITES
        return is_written and not self.is_print(call, file)

    def opens_for_all(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call opens a file to write it that is no file of one rank."""
        return opens_to_write(call, file, self._flow) and not self._of_rank.is_path(path_opened(call), file)

    def _writes_artifact(self, call: cst.Call, file: SourceFile) -> bool:
        is_method = isinstance(call.func, cst.Attribute) and call.func.attr.value in _SAVING_METHODS
        known = of_kind(self._flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD)
        is_touched = isinstance(call.func, cst.Attribute) and call.func.attr.value in _OF_PATHS
        return (((is_method and _names_file(call)) or is_touched) and not known) or (
            self._flow.is_call_of(call, file, _ARTIFACTS) or self._saves_object(call, file)
        )

    def _saves_object(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call saves what a library makes: ``image.save(path)`` of an image of PIL."""
        made = _SAVED_OBJECTS.items()
        return bool(call.args) and any(self._is_of_made(call, method, makers, file) for method, makers in made)

    def _is_of_made(self, call: cst.Call, method: str, makers: tuple[str, ...], file: SourceFile) -> bool:
        """Return whether a call is of a method of what a library has made, by how the names of its makers begin."""
        func = call.func
        return isinstance(func, cst.Attribute) and func.attr.value == method and self._is_made(func.value, makers, file)

    def _is_of_rank(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call writes to a buffer in memory, or writes or removes a temporary file of the rank."""
        is_moved = last_name(call.func) in _MOVING and len(call.args) > 1
        places = [call.func.value] if isinstance(call.func, cst.Attribute) else []
        places += [arg.value for arg in (call.args[1:] if is_moved else call.args)]
        path = self._path_of(call, file)
        return any(self._is_made(p, _BUFFERS, file) or self._of_rank.is_one(p, file) for p in places) or (
            path is not None and self._of_rank.is_path(path, file)
        )

    def _is_made(self, node: cst.BaseExpression, makers: tuple[str, ...], file: SourceFile) -> bool:
        """Return whether a library has made an object, or what has made that: ``image`` of ``image.resize()``.

        The names of its makers begin as these do. Each call is looked at once: many ways may lead to one.
        """
        todo, seen = [(node, file, _DEPTH)], set[int]()
        for part, home, depth in todo:  # grows
            values = of_kind(self._flow.values(part, home), Kind.OBJECT)
            for maker, place in [(self._flow.node(v), self._flow.file(v)) for v in values] or [(part, home)]:
                if not isinstance(maker, cst.Call) or id(maker) in seen:
                    continue
                seen.add(id(maker))
                if any(value.name.startswith(makers) for value in self._flow.values(maker.func, place)):
                    return True
                if depth > 0:
                    todo.append(
                        (maker.func.value if isinstance(maker.func, cst.Attribute) else maker.func, place, depth - 1)
                    )
        return False

    def path_written(self, call: cst.Call, file: SourceFile) -> cst.BaseExpression | None:
        """Return the path that a call writes to."""
        if opens_to_write(call, file, self._flow):
            return path_opened(call)
        is_move = last_name(call.func) in _MOVING and self.saves(call, file)  # os.replace("best.tmp", "best.pt")
        if is_move or self._flow.is_call_of(call, file, ("torch.save",)) or self.is_artifact(call, file):
            return self._path_of(call, file)
        return None

    def _path_of(self, call: cst.Call, file: SourceFile) -> cst.BaseExpression | None:
        """Return where a call that saves or writes puts its file."""
        if called_name(call) == "show":  # plt.show(block=False)
            return None
        if self._flow.is_call_of(call, file, ("torch.save",)):
            path = argument(call, 1, "f")
            return path.value if path is not None else None
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in _OF_PATHS | {"write_text", "write_bytes"}:
            return call.func.value
        is_second = self._flow.is_call_of(call, file, _PATH_SECOND) or last_name(call.func) in _MOVING
        given = call.args[1 if is_second and len(call.args) > 1 else 0 :]
        return given[0].value if given else None

    def gathers_state(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether all ranks must evaluate what is saved, as each has a share of the optimizer's state."""
        saved = {id(node) for node in walk(call)}
        gathered = [state for state in self._plan.state_calls if state.name == "state_dict"]
        calls = [
            inner
            for state in gathered
            for inner in (
                state.call, *self._plan.facts.flow.callers.leading_to(state.function, file, file.function(call))
            )
        ]  # fmt: skip
        return any(id(inner) in saved for inner in calls)

    def is_output_call(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call that stands by itself does nothing but output."""
        is_output = self.saves(call, file) or self.is_print(call, file) or self.is_artifact(call, file)
        return is_output and self.skippable.arguments_are_skippable(call, file)

    def is_plot(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call only draws into a figure of matplotlib."""
        return any(value.name.startswith(_PLOTS) for value in self._flow.values(call.func, file))


def calls_in(statement: cst.CSTNode, file: SourceFile) -> list[cst.Call]:
    """Return the calls that stand by themselves in a statement."""
    return [node.value for node in file.nodes(cst.Expr, below=statement) if isinstance(node.value, cst.Call)]


def _names_file(call: cst.Call) -> bool:
    """Return whether a method gets what it writes to; without that, those of tables return a text."""
    is_table = last_name(call.func).startswith("to_")
    return any(
        arg.keyword is None or not is_table or _OF_TABLES.search(arg.keyword.value) is not None for arg in call.args
    )
