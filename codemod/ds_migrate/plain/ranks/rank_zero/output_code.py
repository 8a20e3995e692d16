"""Code of a program that does nothing but output: it prints, plots, or writes files that the program leaves behind."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.torch_names import NO_GRAD
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import ProgramPlan
from ds_migrate.plain.ranks.files.opened_files import opens_to_write, path_opened
from ds_migrate.plain.ranks.rank_guards import asks_for_rank
from ds_migrate.plain.ranks.rank_zero.skippable_expressions import (
    SkippableExpressions,
    is_local_target,
    is_made_in,
    local_names,
)
from ds_migrate.syntax.nodes import argument, body_of, docstring, dotted, targets, walk
from ds_migrate.syntax.source import SourceFile

_PRINTS = frozenset({"print", "sys.stdout.write", "sys.stdout.flush", "sys.stderr.write", "sys.stderr.flush"})
_PRINTERS = ("tqdm.tqdm.write", "tqdm.auto.tqdm.write", "tqdm.std.tqdm.write", "pprint.pprint", "pprint.pp")
# Copying or removing what rank 0 has saved: on another rank it may not be there, or gone already.
_SAVES = (
    "torch.save", "shutil.copyfile", "shutil.copy", "shutil.copy2", "shutil.move", "os.rename", "os.replace",
    "os.remove", "os.unlink", "os.symlink", "shutil.rmtree",
)  # fmt: skip
_ARTIFACTS = (
    "matplotlib.pyplot.savefig", "matplotlib.pyplot.imsave", "matplotlib.pyplot.show",
    "torchvision.utils.save_image", "numpy.save", "numpy.savez", "numpy.savez_compressed", "numpy.savetxt",
    "cv2.imwrite", "imageio.imwrite", "imageio.imsave", "imageio.mimsave", "imageio.mimwrite", "imageio.v2.imwrite",
    "imageio.v2.imsave", "imageio.v2.mimsave", "imageio.v3.imwrite", "skimage.io.imsave", "scipy.io.savemat",
    "scipy.io.wavfile.write", "soundfile.write", "torchaudio.save", "torchvision.io.write_png",
    "torchvision.io.write_jpeg", "torchvision.io.write_video", "joblib.dump", "safetensors.torch.save_file",
    "safetensors.torch.save_model",
)  # fmt: skip
_SAVING_METHODS = frozenset(
    {"savefig", "to_csv", "to_json", "to_pickle", "to_excel", "to_parquet", "write_text", "write_bytes",
     "save_pretrained"}
)  # fmt: skip
_LOGS = frozenset({"debug", "info", "warning", "warn", "error", "exception", "critical", "log"})
_PLOTS = "matplotlib."


class OutputCode:
    """The statements and functions of a program that do nothing but output."""

    def __init__(self, plan: ProgramPlan) -> None:
        self._plan = plan
        self._flow = plan.facts.flow
        self.skippable = SkippableExpressions(self._flow, {id(state.call) for state in plan.state_calls})
        self._known: dict[int, bool] = {}

    # -- calls -----------------------------------------------------------------------------------------------------

    def is_print(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call prints on the screen, and not to a file that is opened for it."""
        where = next((a.value for a in call.args if a.keyword is not None and a.keyword.value == "file"), None)
        is_screen = where is None or (dotted(where) or "").startswith("sys.")
        return is_screen and (dotted(call.func) in _PRINTS or self._flow.is_call_of(call, file, _PRINTERS))

    def saves(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call saves, copies or removes files of the program."""
        return self._flow.is_call_of(call, file, _SAVES)

    def is_artifact(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call writes a file that the program makes beside its training."""
        is_method = isinstance(call.func, cst.Attribute) and call.func.attr.value in _SAVING_METHODS
        known = of_kind(self._flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD)
        if is_method and call.args and not known:
            return True
        return self._flow.is_call_of(call, file, _ARTIFACTS) or self._saves_image(call, file)

    def _saves_image(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call is ``image.save(path)`` of an image that PIL has made."""
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "save" or not call.args:
            return False
        values = of_kind(self._flow.values(call.func.value, file), Kind.OBJECT)
        makers = [self._flow.node(value) for value in values]
        return any(
            isinstance(maker, cst.Call)
            and any(v.name.startswith("PIL.") for v in self._flow.values(maker.func, self._flow.file(value)))
            for maker, value in zip(makers, values, strict=True)
        )

    def path_written(self, call: cst.Call, file: SourceFile) -> cst.BaseExpression | None:
        """Return the path that a call writes to."""
        if opens_to_write(call):
            return path_opened(call)
        if self._flow.is_call_of(call, file, ("torch.save",)):
            path = argument(call, 1, "f")
            return path.value if path is not None else None
        if not self.is_artifact(call, file) or not call.args:
            return None
        is_of_path = isinstance(call.func, cst.Attribute) and call.func.attr.value in ("write_text", "write_bytes")
        if is_of_path and isinstance(call.func, cst.Attribute):
            return call.func.value
        is_second = self._flow.is_call_of(call, file, ("torchvision.utils.save_image", "joblib.dump"))
        return call.args[1 if is_second and len(call.args) > 1 else 0].value

    def gathers_state(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether all ranks must evaluate what is saved, as each has a share of the optimizer's state."""
        saved = {id(node) for node in walk(call)}
        gathered = [state for state in self._plan.state_calls if state.name == "state_dict"]
        calls = [
            inner
            for state in gathered
            for inner in (
                state.call, *self._plan.facts.callers.leading_to(state.function, file, file.function(call))
            )
        ]  # fmt: skip
        return any(id(inner) in saved for inner in calls)

    def is_output_call(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call that stands by itself does nothing but output."""
        is_output = self.saves(call, file) or self.is_print(call, file) or self.is_artifact(call, file)
        return is_output and self.skippable.arguments_are_skippable(call, file)

    # -- statements ------------------------------------------------------------------------------------------------

    def is_output(self, statement: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether a statement does nothing but output, so that it may be left out as a whole."""
        if isinstance(statement, (cst.SimpleStatementLine, cst.SimpleStatementSuite)):
            calls = output_calls(statement, file)
            return len(calls) == len(statement.body) and all(self.is_output_call(call, file) for call in calls)
        if file.edits.is_touched(statement):  # ranks may decide together there
            return False
        if isinstance(statement, cst.If) and not asks_for_rank(statement.test):
            rest = statement.orelse
            rest_is_output = rest is None or (
                self.is_output(rest, file) if isinstance(rest, cst.If) else self._is_output_block(rest.body, file)
            )
            is_block = self._is_output_block(statement.body, file)
            return is_block and rest_is_output and self.skippable.is_skippable(statement.test, file)
        if isinstance(statement, cst.For):
            again = self.skippable.can_be_iterated_again(statement.iter, file)
            is_quiet = again and self.skippable.is_skippable(statement.iter, file) and statement.orelse is None
            return is_quiet and self._is_output_block(statement.body, file) and not self._leaks(statement, file)
        return False

    def _is_output_block(self, block: cst.BaseSuite, file: SourceFile) -> bool:
        if isinstance(block, cst.SimpleStatementSuite):
            return self.is_output(block, file)
        return all(self.is_output(inner, file) for inner in block.body)

    def _leaks(self, loop: cst.For, file: SourceFile) -> bool:
        """Return whether what a loop counts with may be used behind it."""
        names = {n.value for n in walk(loop.target) if isinstance(n, cst.Name)}
        inside = {id(node) for node in walk(loop)}
        scope = file.function(loop) or file.module
        return any(
            node.value in names and id(node) not in inside and not _is_bound_around(node, file)
            for node in file.nodes(cst.Name, below=scope)
        )

    # -- functions -------------------------------------------------------------------------------------------------

    def only_outputs(self, function: cst.FunctionDef, file: SourceFile) -> bool:
        """Return whether a function does nothing but output, and returns nothing, so that it may be left out."""
        key = id(function)
        if key not in self._known:
            self._known[key] = False  # one that calls itself
            self._known[key] = self._only_outputs(function, file)
        return self._known[key]

    def _only_outputs(self, function: cst.FunctionDef, file: SourceFile) -> bool:
        if (
            function.asynchronous is not None
            or file.edits.is_touched(function)
            or file.nodes(cst.Yield, below=function)
        ):
            return False
        decorators = [dotted(d.decorator) or dotted(getattr(d.decorator, "func", None)) for d in function.decorators]
        if any(name not in ("staticmethod", "torch.no_grad") for name in decorators):
            return False
        if function.name.value.startswith("__") or file.nodes(cst.FunctionDef, cst.ClassDef, below=function.body):
            return False
        reader = _FunctionReader(self, function, file)
        text = docstring(function)
        return all(reader.is_left_out(node) for node in body_of(function) if node is not text) and reader.has_output

    def calls_output(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call is of functions of the program that only output."""
        values = self._flow.values(call.func, file)
        found = [self._flow.node_of(value.key) for value in of_kind(values, Kind.FUNCTION, Kind.METHOD)]
        return (
            bool(found)
            and len(found) == len(values)
            and all(
                one is not None and isinstance(one[1], cst.FunctionDef) and self.only_outputs(one[1], one[0])
                for one in found
            )
        )

    def is_plot(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call only draws into a figure of matplotlib."""
        return any(value.name.startswith(_PLOTS) for value in self._flow.values(call.func, file))

    def is_context_without_gradients(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        return isinstance(node, cst.Call) and self._flow.is_call_of(node, file, NO_GRAD)

    def is_global_of_one(self, name: str, function: cst.FunctionDef, file: SourceFile) -> bool:
        """Return whether a global name is read by one function alone, beside what sets it where the module begins."""
        inside = {id(node) for node in walk(function)}
        for other in self._flow.files.values():
            for node in other.nodes(cst.Name):
                if node.value != name or id(node) in inside:
                    continue
                if other is not file or other.function(node) is not None:
                    if other is file or not _is_own_name(node, other):
                        return False
                elif not isinstance(other.statement(node), cst.SimpleStatementLine):
                    return False
        return True


class _FunctionReader:
    """Reads the statements of a function, and whether they output, and do nothing else that is seen outside of it."""

    def __init__(self, code: OutputCode, function: cst.FunctionDef, file: SourceFile) -> None:
        self._code = code
        self._function = function
        self._file = file
        self._bound = local_names(function, file)
        self._open: set[str] = set()
        self.has_output = False

    def is_left_out(self, node: cst.CSTNode) -> bool:
        """Return whether nothing but output is missed when a statement does not run."""
        skippable = self._code.skippable
        if isinstance(node, (cst.SimpleStatementLine, cst.IndentedBlock, cst.SimpleStatementSuite)):
            return all(self.is_left_out(inner) for inner in node.body)
        if isinstance(node, (cst.Pass, cst.Break, cst.Continue, cst.Global, cst.Import, cst.ImportFrom)):
            return True
        if isinstance(node, cst.Return):
            return node.value is None or dotted(node.value) == "None"
        if isinstance(node, cst.Assert):
            return skippable.is_skippable(node.test, self._file)
        if isinstance(node, (cst.Assign, cst.AugAssign, cst.AnnAssign)):
            return all(map(self._is_own, targets(node))) and (node.value is None or self._is_quiet(node.value))
        if isinstance(node, cst.Expr):
            return self._is_left_out_expression(node.value)
        if isinstance(node, cst.If) and asks_for_rank(node.test):  # a guard of the program
            return False
        if isinstance(node, (cst.If, cst.While)):
            rest = node.orelse is None or self.is_left_out(node.orelse)
            return skippable.is_skippable(node.test, self._file) and self.is_left_out(node.body) and rest
        if isinstance(node, cst.For):
            again = skippable.can_be_iterated_again(node.iter, self._file) and node.orelse is None
            return again and skippable.is_skippable(node.iter, self._file) and self.is_left_out(node.body)
        if isinstance(node, cst.Else):
            return self.is_left_out(node.body)
        if isinstance(node, cst.With):
            return all(self._is_quiet_context(item.item) for item in node.items) and self.is_left_out(node.body)
        return False

    def _is_own(self, target: cst.BaseExpression) -> bool:
        if is_local_target(target, self._file, self._bound):
            return True
        is_name = isinstance(target, cst.Name)
        return is_name and self._code.is_global_of_one(dotted(target) or "", self._function, self._file)

    def _is_quiet(self, value: cst.BaseExpression) -> bool:
        """Return whether a value may go unmade: it is computed, a figure, or a file that is opened to be written."""
        if self._code.skippable.is_skippable(value, self._file):
            return True
        if not isinstance(value, cst.Call) or not self._code.skippable.arguments_are_skippable(value, self._file):
            return False
        return self._opens_to_write(value) or self._makes_output(value)

    def _opens_to_write(self, call: cst.Call) -> bool:
        is_write = opens_to_write(call)
        self.has_output |= is_write
        return is_write

    def _is_quiet_context(self, item: cst.BaseExpression) -> bool:
        return self._code.is_context_without_gradients(item, self._file) or (
            isinstance(item, cst.Call)
            and self._code.skippable.arguments_are_skippable(item, self._file)
            and self._opens_to_write(item)
        )

    def _is_left_out_expression(self, value: cst.BaseExpression) -> bool:
        if isinstance(value, (cst.SimpleString, cst.ConcatenatedString)):
            return True
        if not isinstance(value, cst.Call):
            return False
        if self._code.is_output_call(value, self._file) or self._code.calls_output(value, self._file):
            self.has_output = True
            return True
        quiet = self._code.skippable.arguments_are_skippable(value, self._file)
        return quiet and (self._code.is_plot(value, self._file) or self._is_log(value) or self._is_of_own_object(value))

    def _is_log(self, call: cst.Call) -> bool:
        owner = call.func.value if isinstance(call.func, cst.Attribute) else None
        is_logger = owner is not None and ("log" in (dotted(owner) or "").lower())
        return is_logger and isinstance(call.func, cst.Attribute) and call.func.attr.value in _LOGS

    def _is_of_own_object(self, call: cst.Call) -> bool:
        """Return whether a call is of a method of what the function has made for its output."""
        return isinstance(call.func, cst.Attribute) and self._is_own_object(call.func.value)

    def _is_own_object(self, owner: cst.BaseExpression) -> bool:
        """Return whether the function has made a list, a figure or a file that it writes."""
        while isinstance(owner, (cst.Attribute, cst.Subscript)):
            owner = owner.value
        if isinstance(owner, cst.Call):  # csv.writer(f).writerow(...)
            return dotted(owner.func) == "csv.writer" and self._writes_to_own(owner)
        name = dotted(owner)
        if name is None:
            return False
        if name in self._open:  # it is made of itself
            return True
        if is_made_in(owner, self._function, self._file):
            return True
        made = [
            item.item for block in self._file.nodes(cst.With, below=self._function) for item in block.items
            if item.asname is not None and dotted(item.asname.name) == name
        ]  # fmt: skip
        made += [
            line.value for line in self._file.nodes(cst.Assign, below=self._function)
            if any(isinstance(n, cst.Name) and n.value == name for target in targets(line) for n in walk(target))
        ]  # fmt: skip
        self._open.add(name)
        is_own = bool(made) and all(isinstance(one, cst.Call) and self._makes_output(one) for one in made)
        self._open.remove(name)
        return is_own

    def _writes_to_own(self, writer: cst.Call) -> bool:
        """Return whether a writer writes to a file that the function has opened."""
        return bool(writer.args) and self._is_of_own_object(
            cst.Call(cst.Attribute(writer.args[0].value, cst.Name("write")))
        )

    def _makes_output(self, call: cst.Call) -> bool:
        """Return whether a call makes something that is only there for output."""
        return (
            opens_to_write(call)
            or (dotted(call.func) in ("csv.writer", "csv.DictWriter") and self._writes_to_own(call))
            or self._code.is_plot(call, self._file)
            or self._is_of_own_object(call)
        )


def output_calls(statement: cst.CSTNode, file: SourceFile) -> list[cst.Call]:
    """Return the calls that stand by themselves in a statement."""
    return [node.value for node in file.nodes(cst.Expr, below=statement) if isinstance(node.value, cst.Call)]


def _is_bound_around(node: cst.Name, file: SourceFile) -> bool:
    """Return whether a name is set by a loop, a comprehension or an assignment around it, as it is used."""
    for outer in file.ancestors(node):
        if isinstance(outer, (cst.For, cst.CompFor)) and node.value in {
            n.value for n in walk(outer.target) if isinstance(n, cst.Name)
        }:
            return True
        if isinstance(outer, cst.BaseComp) and any(
            isinstance(n, cst.Name) and n.value == node.value for n in walk(outer.for_in.target)
        ):
            return True
        if isinstance(outer, (cst.AssignTarget, cst.Param)) or (isinstance(outer, cst.Arg) and outer.keyword is node):
            return True
        if isinstance(outer, cst.Attribute) and outer.attr is node:
            return True
    return False


def _is_own_name(node: cst.Name, file: SourceFile) -> bool:
    """Return whether a name of another file is no variable of this one: an import of it would share it."""
    return not any(isinstance(outer, (cst.ImportAlias, cst.Attribute)) for outer in file.ancestors(node))
