"""How a converted script starts: its ranks, its arguments and its devices."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.decisions import Decider
from ds_migrate.plain.plan import Note
from ds_migrate.plain.runtime_names import Converted, RuntimeNames
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import docstring, dotted, walk
from ds_migrate.syntax.source import SourceFile

_INIT = ("torch.distributed.init_process_group", "torch.distributed.distributed_c10d.init_process_group")
_PARSERS = ("argparse.ArgumentParser", "configargparse.ArgumentParser", "configargparse.ArgParser")


def start_ranks(decider: Decider, files: list[SourceFile], runtime: RuntimeNames, converted: Converted) -> list[Note]:
    """Start the ranks where the program starts them itself, else where it begins. Return what could not be done."""
    groups = [(f, call) for f in files for call in f.nodes(cst.Call) if decider.flow.is_call_of(call, f, _INIT)]
    for file, call in groups:
        file.replace(call, f"{runtime.name(file, 'init_distributed')}(share_random_state=False)")
        converted(Code.PLAIN_DISTRIBUTED, file, call, "init_distributed() starts the ranks, under any launcher or none")
    if groups and not any(isinstance(a, cst.If) for f, call in groups for a in f.ancestors(call)):
        return []
    done: set[int] = set()
    for site in decider.sites:
        for file, statement in _beginnings(decider, site.file, site.function):
            if id(statement) in done or file not in files:
                continue
            done.add(id(statement))
            file.before(statement, f"{runtime.name(file, 'init_distributed')}()")
            converted(Code.PLAIN_DISTRIBUTED, file, statement, "init_distributed() starts the ranks")
    return []


def _beginnings(
    decider: Decider, file: SourceFile, function: cst.FunctionDef | None
) -> list[tuple[SourceFile, cst.BaseStatement]]:
    """Return the first statements of the modules from which a function is reached, where they begin to work."""
    seen: list[tuple[SourceFile, cst.FunctionDef | None, cst.CSTNode | None]] = [(file, function, None)]
    found: list[tuple[SourceFile, cst.BaseStatement]] = []
    for known_file, known, call in seen:
        if known is None:
            first = _first_of_module(known_file, call)
            if first is not None:
                found.append((known_file, first))
            continue
        callers = decider.callers.of(known)
        for caller, at in callers:
            entry = (caller, caller.function(at), at)
            if entry[1] is None or not any(f is caller and fn is entry[1] for f, fn, _ in seen):
                seen.append(entry)
        if not callers:
            body = [s for s in known.body.body if s is not docstring(known)]
            if body and isinstance(body[0], cst.BaseStatement):
                found.append((known_file, body[0]))
    return found


def _first_of_module(file: SourceFile, call: cst.CSTNode | None) -> cst.BaseStatement | None:
    """Return the first statement that works: in the block of ``__main__`` where the call is in it, "
    "else of the module."""
    for outer in file.ancestors(call) if call is not None else ():
        if (
            isinstance(outer, cst.If)
            and file.parent(outer) is file.module
            and "__name__" in {n.value for n in walk(outer.test) if isinstance(n, cst.Name)}
        ):
            first = outer.body.body[0]
            return first if isinstance(first, cst.BaseStatement) else outer
    for statement in file.module.body:
        if isinstance(statement, (cst.FunctionDef, cst.ClassDef)) or _is_preparation(statement):
            continue
        if isinstance(statement, cst.If) and "TYPE_CHECKING" in {
            n.value for n in walk(statement.test) if isinstance(n, cst.Name)
        }:
            continue
        if isinstance(statement, cst.Try) and all(_is_preparation(s) for s in statement.body.body):
            continue
        return statement if isinstance(statement, cst.BaseStatement) else None
    return None


def _is_preparation(statement: cst.CSTNode) -> bool:
    """Return whether a statement imports, is a docstring, or sets a constant or a variable of the environment."""
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    for small in statement.body:
        if isinstance(small, (cst.Import, cst.ImportFrom)):
            continue
        if isinstance(small, cst.Expr) and isinstance(small.value, (cst.SimpleString, cst.ConcatenatedString)):
            continue
        if isinstance(small, cst.Assign) and not any(isinstance(n, cst.Call) for n in walk(small)):
            continue
        return False
    return True


def add_arguments(decider: Decider, files: list[SourceFile], converted: Converted) -> None:
    """Let parsers take ``--local_rank``, which the deepspeed launcher gives."""
    for file in files:
        for call in file.nodes(cst.Call):
            if not decider.flow.is_call_of(call, file, _PARSERS):
                continue
            assign = file.parent(call)
            target = dotted(assign.targets[0].target) if isinstance(assign, cst.Assign) else None
            if target is None or b"local_rank" in file.data or b"local-rank" in file.data:
                continue
            text = (
                f'{target}.add_argument("--local_rank", type=int, default=-1, help="given by the deepspeed launcher")'
            )
            file.after(file.statement(call), text)
            converted(
                Code.PLAIN_ARGUMENTS, file, call, "the parser takes --local_rank, which the deepspeed launcher gives"
            )


def free_devices(files: list[SourceFile], converted: Converted) -> None:
    """Let ``cuda:0`` be the device of the rank: all ranks would share the first one."""
    for file in files:
        for node in file.nodes(cst.SimpleString):
            if node.value in ('"cuda:0"', "'cuda:0'"):
                file.replace(node, node.value.replace("cuda:0", "cuda"))
                converted(Code.PLAIN_DEVICE, file, node, "cuda is the device of the rank, cuda:0 that of rank 0")
