"""The beginning of a program's work: behind its imports and constants, or in the block of ``__main__``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.branches.dead_branches import is_test, is_test_file
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.ranks.launch.early_draws import EarlyDraws
from ds_migrate.plain.recognition.facts import LoopFacts, Site
from ds_migrate.syntax.module_start import asks_for_main, first_to_work
from ds_migrate.syntax.nodes import docstring, dotted, last_name, targets, walk
from ds_migrate.syntax.source import SourceFile

Reference = tuple[SourceFile, cst.BaseExpression]
Beginning = tuple[SourceFile, cst.BaseStatement, SourceFile | None]  # and the file behind which ranks start


def beginnings(facts: LoopFacts, site: Site, fixed: Collection[SourceFile], draws: EarlyDraws) -> list[Beginning]:
    """Return the first statements of the modules from which a site is reached, where they begin to work.

    Where such a module stays as it is, ranks start in the functions that it calls. Tests stay as they are: the function
    that they call starts the one rank that they have. A command that the project installs begins in its function, as do
    a function that its package offers and a test, where a script calls them too. In a library, which nothing begins at
    the level of a module, code outside of it may call each function on the way that is not private.

    Args:
        draws: one of a module before its block of ``__main__`` has ranks start before that.
    """
    seen: list[tuple[SourceFile, cst.FunctionDef | None, cst.CSTNode]] = [(site.file, site.function, site.statement)]
    found: list[Beginning] = []
    behind: list[Beginning] = []
    for file, function, reached in seen:
        if function is None:
            first = _first_of_module(file, reached, reached is not site.statement and not draws.of(file))
            if first is not None:
                found.append((file, first, None))
            continue
        every: Sequence[Reference] = facts.flow.callers.of(function)
        if every and all(facts.flow.callers.reaches(id(function), at.function(call)) for at, call in every):
            every = [*every, *_handed_over(function, facts.flow)]  # they call each other: something else begins
        callers = [one for one in every if one[0] is site.file or not _has_tests_alone(one[0])]
        is_command = facts.flow.is_command(function) or _is_offered(function, callers, file, facts.flow)
        if is_command:
            callers = [one for one in callers if not _begins_with(*one, draws)]
        for caller, at in callers:
            entry = (caller, caller.function(at), at)
            if entry[1] is None or not any(f is caller and fn is entry[1] for f, fn, _ in seen):
                seen.append(entry)
        first = _first_of_body(function)
        if first is None or _decorates(function, facts.flow):
            continue
        is_entry = is_command or is_test(function, file) or _is_inherited(callers, facts)
        if callers and (is_entry or len(callers) < len(every)):
            found.append((file, first, None))  # where a script has started the ranks before, it does nothing
        maker = None if callers else file.function(function) or _maker(function, file, facts, draws)
        if maker is not None:
            seen.append((file, maker, maker))
        elif not callers:
            found += [(file, first, None), *(_of_bases(seen, facts) if function.name.value == "__init__" else ())]
        staying = [caller for caller, _ in callers if caller in fixed]
        if staying and file not in fixed:
            behind.append((file, first, staying[0]))
    is_library = not any(function is None or facts.flow.is_command(function) for _, function, _ in seen)
    found += [
        (file, first, None)
        for file, function, _ in seen
        if function is not None and not is_test_file(file) and not _decorates(function, facts.flow)
        if _is_public(outer := _named(function, file), file) and (is_library or facts.flow.is_offered(outer))
        if not _starts_in_init(function, file, found)
        if (first := _first_of_body(function)) is not None and all(first is not later for _, later, _ in behind)
    ]
    alone = _first_of_body(site.function) if site.function is not None and not found else None
    if alone is not None:
        found.append((site.file, alone, None))
    own = [beginning for beginning in found if beginning[0] not in fixed]
    return own if own == found else [*own, *behind]


def _first_of_body(function: cst.FunctionDef) -> cst.BaseStatement | None:
    first = next((statement for statement in function.body.body if statement is not docstring(function)), None)
    return first if isinstance(first, cst.BaseStatement) else None


def _decorates(function: cst.FunctionDef, flow: Flow) -> bool:
    """Return whether a function is a decorator: it runs as modules are imported, and what it makes has callers."""
    return any(
        value.key == id(function)
        for file, decorator in flow.nodes(cst.Decorator)
        for value in flow.values(decorator.decorator, file)
    )


def _is_offered(function: cst.FunctionDef, callers: Sequence[Reference], file: SourceFile, flow: Flow) -> bool:
    """Return whether a package offers a function that only scripts or its own module's trials call."""
    around = [(caller, caller.function(call)) for caller, call in callers]
    if flow.is_offered(function) and all(outer is None for _, outer in around):
        return True
    is_own = all(at is file and (outer is None or outer.name.value.startswith("_")) for at, outer in around)
    return is_own and (file.path.parent / "__init__.py").is_file() and _is_public(function, file)


def _named(function: cst.FunctionDef, file: SourceFile) -> cst.FunctionDef | cst.ClassDef:
    """Return what code outside of a module names to run a function: the class of a method that is not private."""
    name, around = function.name.value, file.class_around(function)
    is_method = around is not None and any(function is each for each in around.body.body)
    is_public = is_method and (name == "__init__" or not name.startswith("_"))
    return around if around is not None and is_public else function


def _starts_in_init(function: cst.FunctionDef, file: SourceFile, found: Collection[Beginning]) -> bool:
    """Return whether ranks have started where the object of a method is made."""
    around = file.class_around(function)
    return around is not None and any(
        isinstance(method, cst.FunctionDef) and method.name.value == "__init__" and _first_of_body(method) is first
        for _, first, _ in found
        for method in around.body.body
    )


def _is_public(definition: cst.FunctionDef | cst.ClassDef, file: SourceFile) -> bool:
    return not definition.name.value.startswith("_") and any(definition is each for each in file.module.body)


def _begins_with(file: SourceFile, call: cst.BaseExpression, draws: EarlyDraws) -> bool:
    """Return whether a call is the first work of its module, so that its function may start the ranks instead."""
    return file.function(call) is None and _first_of_module(file, call, not draws.of(file)) is file.statement(call)


def _handed_over(function: cst.FunctionDef, flow: Flow) -> Iterator[Reference]:
    """Yield the names by which a call is given a function, as ``app(target=main)``."""
    for file, name in flow.nodes(cst.Name):
        is_given = name.value == function.name.value and isinstance(file.parent(name), cst.Arg)
        if is_given and any(value.key == id(function) for value in flow.values(name, file)):
            yield file, name


def _has_tests_alone(file: SourceFile) -> bool:
    return is_test_file(file) and not any(asks_for_main(statement) for statement in file.module.body)


def _of_bases(seen: list[tuple[SourceFile, cst.FunctionDef | None, cst.CSTNode]], facts: LoopFacts) -> list[Beginning]:
    """Return the ``__init__()`` that only those of subclasses call: a name that is made up may lead to each class."""
    return [
        (file, statement, None)
        for file, function, _ in seen
        if function is not None and function.name.value == "__init__" and (calls := facts.flow.callers.of(function))
        if all(_is_of_subclass(call, caller) for caller, call in calls)
        for statement in [s for s in function.body.body if s is not docstring(function)][:1]
        if isinstance(statement, cst.BaseStatement)
    ]


def _is_inherited(callers: Sequence[Reference], facts: LoopFacts) -> bool:
    """Return whether methods of subclasses alone call a method, of which nothing that is known calls one."""
    above = [caller.function(call) for caller, call in callers if _is_super(call)]
    return len(above) == len(callers) and any(one is not None and not facts.flow.callers.of(one) for one in above)


def _is_super(call: cst.BaseExpression) -> bool:
    receiver = call.func.value if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute) else None
    return isinstance(receiver, cst.Call) and dotted(receiver.func) == "super"


def _is_of_subclass(call: cst.Call, file: SourceFile) -> bool:
    """Return whether a call is ``super().__init__(...)`` or ``Base.__init__(self, ...)``."""
    function = file.function(call)
    is_init = isinstance(call.func, cst.Attribute) and call.func.attr.value == "__init__"
    return is_init and function is not None and function.name.value == "__init__"


def _maker(function: cst.FunctionDef, file: SourceFile, facts: LoopFacts, draws: EarlyDraws) -> cst.FunctionDef | None:
    """Return the ``__init__()`` of a method's class, which has run before any call of the method.

    None where it makes no loaders, draws nothing, and makes no module whose weights would be each rank's own, as no
    engine has it: objects of the class may never train.
    """
    block = file.parent(function)
    methods = (
        block.body if isinstance(block, cst.IndentedBlock) and isinstance(file.parent(block), cst.ClassDef) else ()
    )
    if function.name.value == "__init__":
        return None
    inits = [m for m in methods if isinstance(m, cst.FunctionDef) and m.name.value == "__init__"]
    init = inits[-1] if inits else None  # the others are for @overload
    calls = file.nodes(cst.Call, below=init) if init is not None else ()
    has_loader = any(of_kind(facts.flow.values(call, file), Kind.LOADER) for call in calls)
    has_module = any(_makes_weights(call, file, facts) for call in calls)
    return init if has_loader or has_module or (init is not None and draws.are_in(init)) else None


def _makes_weights(call: cst.Call, file: SourceFile, facts: LoopFacts) -> bool:
    """Return whether an attribute of an object that is no module gets a module which no engine has."""
    line, owner = file.parent(call), file.class_around(call)
    if not isinstance(line, cst.Assign) or owner is None or facts.flow.classes.is_module(owner, file):
        return False
    trained = {value.key for site in facts.all_sites for value in site.of}
    return any(
        (value.kind is Kind.MODULE or (value.name.startswith("torch.nn.") and not value.name.endswith("Loss")))
        and value.key not in trained
        for value in of_kind(facts.flow.values(call, file), Kind.MODULE, Kind.OBJECT)
    )


def _first_of_module(file: SourceFile, reached: cst.CSTNode, is_call: bool) -> cst.BaseStatement | None:
    """Return the first statement that works, behind the imports with which the module begins.

    Where that is a call in the block of ``__main__``, or the block itself, the first statement of the block.

    Args:
        is_call: whether nothing before that block needs the ranks.
    """
    above = [reached, *file.ancestors(reached)]
    for outer in above if is_call else ():
        if isinstance(outer, cst.If) and file.parent(outer) is file.module and asks_for_main(outer):
            return first_of_block(outer)
    body = file.module.body
    begin = body[: first_to_work(body, file.imports.bindings)]
    imports = [i for i, statement in enumerate(begin) if _is_import(statement)]
    for statement in body[imports[-1] + 1 if imports else 0 :]:
        if isinstance(statement, (cst.FunctionDef, cst.ClassDef)) or _is_preparation(statement):
            continue
        if isinstance(statement, cst.If) and "TYPE_CHECKING" in {
            n.value for n in walk(statement.test) if isinstance(n, cst.Name)
        }:
            continue
        if isinstance(statement, cst.Try) and all(_is_preparation(s) for s in statement.body.body):
            continue
        if isinstance(statement, cst.If) and _defines(statement):
            continue
        if isinstance(statement, cst.If) and asks_for_main(statement) and any(a is statement for a in above):
            return first_of_block(statement)
        return statement if isinstance(statement, cst.BaseStatement) else None
    return None


def _defines(node: cst.If | cst.Else) -> bool:
    """Return whether a condition holds definitions alone, as of classes for which a library is needed."""
    is_whole = all(isinstance(statement, (cst.FunctionDef, cst.ClassDef)) for statement in node.body.body)
    orelse = node.orelse if isinstance(node, cst.If) else None
    return is_whole and (orelse is None or _defines(orelse))


def first_of_block(block: cst.If | cst.Else) -> cst.BaseStatement:
    """Return the first statement of a block, behind variables of the environment that it sets, as for the devices.

    The ``if`` where that has it behind its colon.
    """
    statements = block.body.body
    last = len(statements) - 1
    first = next(s for i, s in enumerate(statements) if i == last or not _sets_environment(s))
    if isinstance(first, cst.BaseStatement):
        return first
    assert isinstance(block, cst.If)
    return block


def _sets_environment(statement: cst.CSTNode) -> bool:
    """Return whether a statement does no more than ``os.environ["NAME"] = value``."""
    line = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    return (
        isinstance(line, cst.Assign)
        and _is_preparation(statement)
        and any(isinstance(target, cst.Subscript) and last_name(target.value) == "environ" for target in targets(line))
    )


def _is_import(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(
        statement.body[0], (cst.Import, cst.ImportFrom)
    )


def _is_preparation(statement: cst.CSTNode) -> bool:
    """Return whether a statement imports, is a docstring, or sets a constant, a lambda or an environment variable."""
    line = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    is_text = isinstance(line, cst.Expr) and isinstance(line.value, (cst.SimpleString, cst.ConcatenatedString))
    is_constant = isinstance(line, cst.Assign) and (
        isinstance(line.value, cst.Lambda) or not any(isinstance(n, cst.Call) for n in walk(line))
    )
    return isinstance(line, (cst.Import, cst.ImportFrom)) or is_text or is_constant
