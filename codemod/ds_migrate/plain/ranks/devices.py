"""The devices of ranks: a number that a program for one process gives would put all ranks on one device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.edits.expressions import remove_call
from ds_migrate.plain.edits.runtime_names import Converted
from ds_migrate.plain.ranks.device_numbers import chosen_number, numbers_of_move
from ds_migrate.plain.ranks.idle_code import is_idle
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.plain.recognition.several_devices import NUMBERED_DEVICE, device_text, is_saved_device
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, code
from ds_migrate.syntax.source import SourceFile

_CURRENT = "current device"  # marks a number in whose place that of the rank's device stands
_TEMPLATE = re.compile(r"cuda:(%[ds]|\{\w*\})?")
_NUMBER = re.compile(r"gpu|cuda|\bids?\b|_ids?\b|idx|index", re.IGNORECASE)  # in the name of a device's number


class RankDevices:
    """Lets the current device, which is that of the rank, take the place of numbered ones.

    Args:
        is_distributed: whether the program starts ranks itself; it then computes their devices, and constants alone go.
    """

    def __init__(self, facts: LoopFacts, is_distributed: bool, converted: Converted) -> None:
        self._facts = facts
        self._flow = facts.flow
        self._is_distributed = is_distributed
        self._converted = converted
        self._numbered: set[int] = set()

    def free(self, files: Sequence[SourceFile]) -> list[Note]:
        """Free the devices of files; return what leaves one device to all ranks."""
        notes: list[Note] = []
        chosen: list[Note] = []
        self._numbered = self._with_read_numbers(files)
        for file in files:
            for node in file.nodes(cst.SimpleString, cst.FormattedString, cst.BinaryOperation):
                name = self._unnumbered(node)
                if name is None or is_saved_device(node, file):
                    continue
                chosen += _chosen_device(node, file, self._flow)
                if any(id(outer) in self._numbered for outer in file.ancestors(node)):
                    file.replace(node, f'f"cuda:{{{self._current(file)}}}"')
                    message = "the device is that of the rank, by the number that is read of it"
                else:
                    file.replace(node, name)
                    message = "cuda is the device of the rank, whatever its number"
                self._converted(Code.PLAIN_DEVICE, file, node, message)
            for call in file.nodes(cst.Call):
                if is_idle(call, file, self._facts):
                    continue
                if self._free_call(call, file):
                    chosen += _chosen_device(call, file, self._flow)
                    self._converted(Code.PLAIN_DEVICE, file, call, "the current device is that of the rank")
                for home, number in numbers_of_move(call, file, self._facts.flow.callers):
                    if home.edits.once(number, _CURRENT):
                        home.replace(number, self._current(home))
                        self._converted(Code.PLAIN_DEVICE, home, number, "the number is that of the rank's device")
            for line in file.nodes(cst.Assign):
                environ = _environment(line)
                if environ is None or is_idle(line, file, self._facts):
                    continue
                if self._is_distributed:
                    message = "this leaves the same devices to all ranks, and ranks beyond them fail"
                    advice = "set it where the script is started"
                    notes.append(Note(Code.PLAIN_DEVICE, file, line, message, advice))
                elif not any(isinstance(o, cst.If) and "LOCAL_RANK" in code(o.test) for o in file.ancestors(line)):
                    file.expand(line, partial(_without_launcher, environ))
                    self._converted(Code.PLAIN_DEVICE, file, line, "a launcher's ranks need one device each")
                    chosen += [] if _are_first(line.value) else [_chosen(code(line.value), line, file)]
        return notes + chosen[:1]

    def _with_read_numbers(self, files: Sequence[SourceFile]) -> set[int]:
        """Return the calls of ``torch.device()`` that make a device whose number is read, by their identity."""
        return {
            value.key
            for file in files
            for node in file.attributes_by_name.get("index", ())
            if not (isinstance(around := file.parent(node), cst.Call) and around.func is node)
            for value in self._flow.values(node.value, file)
            if value.kind is Kind.OBJECT and value.name == "torch.device"
        }

    def _current(self, file: SourceFile) -> str:
        """Return the call that gives the number of the rank's device."""
        return f"{file.imports.module('torch')}.cuda.current_device()"

    def _unnumbered(self, node: cst.BaseExpression) -> str | None:
        """Return ``"cuda"`` in the place of a numbered device's name."""
        if isinstance(node, cst.SimpleString):
            return _plain(node) if NUMBERED_DEVICE.fullmatch(device_text(node)) else None
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, (cst.Add, cst.Modulo)):
            return '"cuda"' if _is_template(node.left) and self._goes(node.right) else None
        if isinstance(node, cst.FormattedString) and len(node.parts) == 2:
            first, second = node.parts
            is_name = isinstance(first, cst.FormattedStringText) and first.value == "cuda:"
            if is_name and isinstance(second, cst.FormattedStringExpression) and self._goes(second.expression):
                return '"cuda"'
        return None

    def _goes(self, number: cst.BaseExpression) -> bool:
        """Return whether a device's number is the same on all ranks."""
        text = code(number)
        is_of_rank = self._is_distributed or "rank" in text or "current_device" in text
        return isinstance(number, cst.Integer) or not is_of_rank

    def _is_number(self, node: cst.BaseExpression) -> bool:
        return isinstance(node, cst.Integer) or (_NUMBER.search(code(node)) is not None and self._goes(node))

    def _free_call(self, call: cst.Call, file: SourceFile) -> bool:
        first = argument(call, 0, "device")
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        if self._flow.is_call_of(call, file, ("torch.device",)):
            if first is not None and isinstance(first.value, cst.SimpleString) and device_text(first.value) != "cuda":
                return False  # DeepSpeed sets no current device of other kinds
            index = argument(call, 1, "index")
            if index is not None and self._goes(index.value) and id(call) in self._numbered:
                file.replace(index.value, self._current(file))
                return True
            if index is not None and self._goes(index.value):
                file.change(call, _with_first)
                return True
            if first is not None and isinstance(first.value, cst.Integer):
                file.replace(first.value, '"cuda"')
                return True
        elif self._flow.is_call_of(call, file, ("torch.cuda.set_device",)):
            if first is not None and self._goes(first.value) and isinstance(file.parent(call), cst.Expr):
                remove_call(file, call)
                return True
        elif self._flow.is_call_of(call, file, ("torch.cuda.device",)):
            if first is None or not isinstance(file.parent(call), cst.WithItem):
                return False
            is_name = isinstance(first.value, (cst.Name, cst.Attribute))
            if self._goes(first.value) if is_name else self._is_number(first.value):
                file.replace(first.value, "-1")  # which leaves the current device
                return True
        elif method == "cuda" and first is not None and first is call.args[0] and self._is_number(first.value):
            file.change(call, _without_first)
            return True
        elif method == "to" and first is not None and isinstance(first.value, cst.Integer):
            file.replace(first.value, '"cuda"')
            return True
        elif self._is_formatted(call):
            file.replace(call, '"cuda"')
            return True
        return False

    def _is_formatted(self, call: cst.Call) -> bool:
        """Return whether a call is ``"cuda:{}".format(number)``."""
        func = call.func
        is_format = isinstance(func, cst.Attribute) and func.attr.value == "format" and _is_template(func.value)
        return is_format and bool(call.args) and self._goes(call.args[0].value)


def _chosen_device(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> list[Note]:
    number = chosen_number(node, file, flow)
    return [] if number is None else [_chosen(number, node, file)]


def _chosen(number: str, node: cst.CSTNode, file: SourceFile) -> Note:
    message = f"this chooses a GPU by its number ({number}), which ranks do not: the first takes GPU 0, and so on"
    advice = "start the script with CUDA_VISIBLE_DEVICES=1 for GPU 1, and CUDA_VISIBLE_DEVICES=1,3 for two ranks"
    return Note(Code.PLAIN_DEVICE, file, node, message, advice)


def _environment(line: cst.Assign) -> str | None:
    """Return the mapping in which a line sets the devices that a process sees: ``os.environ``."""
    target = line.targets[0].target
    is_set = isinstance(target, cst.Subscript) and "CUDA_VISIBLE_DEVICES" in code(target)
    return code(cst.ensure_type(target, cst.Subscript).value) if is_set and len(line.targets) == 1 else None


def _without_launcher(environ: str, line: cst.CSTNode) -> str:
    return f'if "LOCAL_RANK" not in {environ}:\n    {code(line)}'


def _are_first(devices: cst.BaseExpression) -> bool:
    """Return whether devices are those that ranks take: ``"0"``, ``"0,1"``."""
    if not isinstance(devices, cst.SimpleString):
        return False
    numbers = device_text(devices).replace(" ", "").split(",")
    return numbers == [str(number) for number in range(len(numbers))]


def _plain(node: cst.SimpleString) -> str:
    return NUMBERED_DEVICE.sub("cuda", node.value)


def _is_template(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.SimpleString) and _TEMPLATE.fullmatch(device_text(node)) is not None


def _with_first(updated: cst.CSTNode) -> cst.CSTNode:
    assert isinstance(updated, cst.Call)
    return updated.with_changes(args=[updated.args[0].with_changes(comma=cst.MaybeSentinel.DEFAULT)])


def _without_first(updated: cst.CSTNode) -> cst.CSTNode:
    assert isinstance(updated, cst.Call)
    return updated.with_changes(args=updated.args[1:])
