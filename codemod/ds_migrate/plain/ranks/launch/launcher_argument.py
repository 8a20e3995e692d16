"""The argument with which the deepspeed launcher starts a converted script."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.calls.idle_functions import is_called
from ds_migrate.plain.dataflow.torch_names import INIT
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.ranks.idle_code import is_idle
from ds_migrate.plain.ranks.launch.command_line import (
    default_number,
    is_number_of_rank,
    names_added,
    reads_by_position,
)
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, called_name, code, dotted, is_literal, targets
from ds_migrate.syntax.source import SourceFile

_ARGUMENT, _DASHED = "--local_rank", "--local-rank"
_PARSERS = frozenset({
    "argparse.ArgumentParser", "configargparse.ArgumentParser", "configargparse.ArgParser",
    "jsonargparse.ArgumentParser", "simple_parsing.ArgumentParser",
})  # fmt: skip
# What reads the command line by itself, and refuses what it does not know.
_OTHERS = frozenset({
    "absl.app.run", "click.command", "click.group", "docopt.docopt", "fire.Fire", "hydra.main", "jsonargparse.CLI",
    "pyrallis.wrap", "sacred.Experiment", "transformers.HfArgumentParser", "typer.Typer", "typer.run", "tyro.cli",
})  # fmt: skip
_GROUPS = frozenset({"add_argument_group", "add_mutually_exclusive_group"})
_START = "start the script with torchrun, or with deepspeed --no_local_rank"
_Parser = tuple[SourceFile, cst.Call]


class LauncherArgument:
    """``--local_rank``, which the deepspeed launcher gives the script, and torchrun only as a variable.

    Args:
        changeable: the files that may take it.
    """

    def __init__(
        self, facts: LoopFacts, changeable: Collection[SourceFile], runtime: RuntimeNames, converted: Converted
    ) -> None:
        self._facts = facts
        self._flow = facts.flow
        self._changeable = changeable
        self._runtime = runtime
        self._converted = converted

    def add(self, files: Sequence[SourceFile], helpers: Sequence[SourceFile]) -> Iterator[Note]:
        """Let parsers take the argument; yield a note for what reads the command line and cannot.

        Args:
            files: those with the loop, or with edits for it.
            helpers: others that the program uses: what never runs with the loop stays there as it is.
        """
        calls = [
            (file, call)
            for file in dict.fromkeys((*files, *helpers))
            for call in file.nodes(cst.Call)
            if not is_idle(call, file, self._facts)
        ]
        if self._facts.options.runtime and is_called(INIT, self._flow):
            self._take_variable([place for place in calls if place[0] in self._changeable])
        parsers = [
            (file, call)
            for file, call in calls
            if self._flow.is_call_of(call, file, _PARSERS) or self._own_classes(call, file)
        ]
        left = {id(parent) for file, call in parsers for parent in self._parents(call, file)}
        if any(argument(call, None, "parents") is not None for _, call in parsers):
            left |= {id(call) for _, call in parsers if _has_no_help(call)}
        taking = self._taking(calls)
        for file, call in parsers:
            parents = {id(parent) for parent in self._parents(call, file)}
            makers = {id(call), *parents, *self._own_classes(call, file)}
            if id(call) not in left and taking is not None and not taking & makers:
                yield from self._let_take(file, call)
        for file, call in calls:
            if self._flow.is_call_of(call, file, _OTHERS):
                message = f"{dotted(call.func)} takes no {_ARGUMENT}, which the deepspeed launcher gives"
                yield Note(Code.PLAIN_ARGUMENTS, file, call, message, _START)
        for file in dict.fromkeys((*files, *helpers)):
            reads = (node for node in reads_by_position(file, self._flow) if not is_idle(node, file, self._facts))
            if (first := next(reads, None)) is not None:
                message = f"sys.argv is read by position, and the deepspeed launcher puts {_ARGUMENT} first"
                yield Note(Code.PLAIN_ARGUMENTS, file, first, message, _START)

    def _let_take(self, file: SourceFile, call: cst.Call) -> Iterator[Note]:
        assign = file.parent(call)
        if isinstance(assign, cst.Attribute) and assign.attr.value == "parse_known_args":
            return  # it takes what it does not know
        target = next(filter(None, map(dotted, targets(assign) if assign else ())), None)
        if target is None or file not in self._changeable or _spreads(file):
            message = f"the parser takes no {_ARGUMENT}, which the deepspeed launcher gives"
            yield Note(Code.PLAIN_ARGUMENTS, file, call, message, _START)
            return
        text = f'{target}.add_argument("{_ARGUMENT}", type=int, default=-1, help="given by the deepspeed launcher")'
        file.after(file.statement(call), text)
        message = f"the parser takes {_ARGUMENT}, which the deepspeed launcher gives"
        self._converted(Code.PLAIN_ARGUMENTS, file, call, message)

    def _take_variable(self, calls: Sequence[_Parser]) -> None:
        """Let the default of ``--local_rank``, and of the number of the rank, be the number that torchrun gives."""
        for file, call in calls:
            default = default_number(call) if names_added(call) else None
            if default is None:
                continue
            if names_added(call) & {_ARGUMENT, _DASHED}:
                function, variable = "local_rank", "LOCAL_RANK"
            elif is_number_of_rank(call, self._flow):
                function, variable = "global_rank", "RANK"
            else:
                continue
            file.replace(default, f"{self._runtime.name(file, function)}({code(default)})")
            message = f"torchrun gives the rank by {variable}, no argument"
            self._converted(Code.PLAIN_ARGUMENTS, file, call, message)

    def _taking(self, calls: Sequence[_Parser]) -> set[int] | None:
        """Return the calls that make parsers which take the argument, by identity; None where it is not known which."""
        found: set[int] = set()
        for file, call in calls:
            names = names_added(call)
            if not names & {_ARGUMENT, _DASHED}:
                continue
            assert isinstance(call.func, cst.Attribute)
            makers = self._makers(call.func.value, file)
            if not makers:
                return None
            found |= makers
        return found

    def _makers(self, parser: cst.BaseExpression, file: SourceFile) -> set[int]:
        """Return the calls that make a parser, or the parser of a group of arguments, by identity."""
        found: set[int] = set()
        for value in self._flow.values(parser, file):
            maker = self._flow.node(value)
            if isinstance(maker, cst.Call) and called_name(maker) in _GROUPS and isinstance(maker.func, cst.Attribute):
                found |= self._makers(maker.func.value, self._flow.file(value))
            else:
                found.add(id(maker))
        return found

    def _own_classes(self, call: cst.Call, file: SourceFile) -> set[int]:
        """Return the classes of the program, by identity, of which a call makes a parser."""
        classes = of_kind(self._flow.values(call.func, file), Kind.CLASS)
        return {v.key for v in classes if not _PARSERS.isdisjoint(self._flow.classes.external_bases(v.key))}

    def _parents(self, call: cst.Call, file: SourceFile) -> Iterator[cst.CSTNode]:
        """Yield the calls that make the parsers whose arguments a parser has."""
        given = argument(call, None, "parents")
        if given is not None and isinstance(given.value, (cst.List, cst.Tuple)):
            for element in given.value.elements:
                for value in self._flow.values(element.value, file):
                    yield self._flow.node(value)


def _has_no_help(parser: cst.Call) -> bool:
    """Return whether a parser has no ``--help``, as one among the ``parents`` of another must not have."""
    given = argument(parser, None, "add_help")
    return given is not None and is_literal(given.value, "False")


def _spreads(file: SourceFile) -> bool:
    """Return whether a file hands all arguments on by their names: ``main(**vars(args))``."""
    texts = [line for line in file.nodes(cst.Assign) if _is_dict_of(line.value)]
    named = {dotted(target) for line in texts for target in targets(line)}
    stars = [arg.value for arg in file.nodes(cst.Arg) if arg.star == "**"]
    return any(_is_dict_of(value) or (dotted(value) in named - {None}) for value in stars)


def _is_dict_of(value: cst.BaseExpression) -> bool:
    """Return whether an expression is the dict of what may be parsed arguments, and not of an object of a class."""
    if isinstance(value, cst.Attribute):
        return value.attr.value == "__dict__" and dotted(value.value) != "self"
    if not isinstance(value, cst.Call) or dotted(value.func) != "vars":
        return False
    return [dotted(arg.value) for arg in value.args] != ["self"]
