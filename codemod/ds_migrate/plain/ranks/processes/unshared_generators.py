"""Random generators and environments that each rank starts by itself: ranks would divide data, or act, differently.

Ranks begin with rank 0's state of the generators of torch, Python and NumPy. It is lost where a script seeds these by
the time, and a generator that it makes without a seed does not have it. Episodes of environments have other lengths on
each rank: a script that steps an optimizer in each of their steps does so more often on one, and ranks wait forever.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, dotted, parameters, walk
from ds_migrate.syntax.source import SourceFile

# With the names of their seeds.
_SEEDED = {
    "random.seed": "a", "random.Random": "x", "numpy.random.seed": "seed", "numpy.random.default_rng": "seed",
    "numpy.random.RandomState": "seed", "numpy.random.PCG64": "seed", "numpy.random.SeedSequence": "entropy",
    "torch.manual_seed": "seed", "torch.random.manual_seed": "seed", "torch.cuda.manual_seed": "seed",
    "torch.cuda.manual_seed_all": "seed", "torch.Generator.manual_seed": "seed",
}  # fmt: skip
_NEVER_SEEDED = (
    "random.SystemRandom",
    "secrets.SystemRandom",
    "torch.seed",
    "torch.random.seed",
    "torch.Generator.seed",
)
_STUDIES = ("optuna.create_study", "optuna.study.create_study")
_OWN = (
    "time.time", "time.time_ns", "time.perf_counter", "datetime.datetime.now", "os.getpid", "os.urandom", "uuid.uuid4",
    "secrets.randbits", "secrets.randbelow",
)  # fmt: skip
_DEPTH = 4


def unshared_generators(files: list[SourceFile], flow: Flow) -> Iterator[Note]:
    """Yield a note for each random generator that has another state on each rank."""
    for file in files:
        for call in file.nodes(cst.Call):
            if flow.is_call_of(call, file, _STUDIES):
                if not any(arg.keyword is not None and arg.keyword.value == "seed" for arg in _arguments(call)):
                    yield Note(
                        Code.PLAIN_AGREEMENT, file, call,
                        "each rank has a separate study, which suggests other values: ranks may train other models",
                        "give its sampler a seed, as TPESampler(seed=0), and report the same numbers on all ranks",
                    )  # fmt: skip
            elif _differs(call, file, flow) and not _draws_items(call, file):
                yield Note(
                    Code.PLAIN_AGREEMENT, file, call,
                    "this generator draws other numbers on each rank: data, weights and decisions made of them differ",
                    "give it a seed that is the same on all ranks",
                )  # fmt: skip


def _arguments(call: cst.Call) -> list[cst.Arg]:
    return [part for part in walk(call) if isinstance(part, cst.Arg)]


def _differs(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a call seeds, or makes, a generator by what each process has by itself."""
    called = {value.name for value in flow.values(call.func, file)} | _method_of_generator(call, file, flow)
    if not called.isdisjoint(_NEVER_SEEDED):
        return True
    names = called & _SEEDED.keys()
    if not names:
        return False
    given = argument(call, 0, _SEEDED[min(names)])
    return given is None or dotted(given.value) == "None" or _is_own(given.value, file, flow, _DEPTH)


def _method_of_generator(call: cst.Call, file: SourceFile, flow: Flow) -> set[str]:
    """Return the name of a method of a generator of torch that the call is of."""
    if not isinstance(call.func, cst.Attribute):
        return set()
    owner = call.func.value
    made = [owner, *flow.scopes(file).assigned(owner)] if isinstance(owner, (cst.Name, cst.Attribute)) else [owner]
    is_one = any(isinstance(one, cst.Call) and flow.is_call_of(one, file, ("torch.Generator",)) for one in made)
    return {f"torch.Generator.{call.func.attr.value}"} if is_one else set()


def _is_own(node: cst.BaseExpression, file: SourceFile, flow: Flow, depth: int) -> bool:
    """Return whether a number is made of the time, of the process or of the system's entropy."""
    if depth == 0:
        return False
    for part in walk(node):
        if isinstance(part, cst.Call) and flow.is_call_of(part, file, _OWN):
            return True
        if isinstance(part, (cst.Name, cst.Attribute)) and any(
            _is_own(value, file, flow, depth - 1) for value in flow.scopes(file).assigned(part)
        ):
            return True
    return False


def _draws_items(call: cst.Call, file: SourceFile) -> bool:
    """Return whether a generator is that of a dataset or of a loader's worker, which may draw others on each rank."""
    function = file.function(call)
    owner = file.class_around(call)
    if function is not None and any("worker" in param.name.value for param in parameters(function)):
        return True
    methods = {node.name.value for node in file.nodes(cst.FunctionDef, below=owner)} if owner is not None else set()
    return bool(methods & {"__getitem__", "__iter__"})


_MAKERS = tuple(f"{lib}.{name}" for lib in ("gym", "gymnasium") for name in ("make", "make_vec", "vector.make"))


def separate_environments(files: list[SourceFile], flow: Flow) -> Iterator[Note]:
    """Yield a note for each call that makes an environment; what seeds it and its actions is not followed."""
    for file in files:
        for call in file.nodes(cst.Call):
            if flow.is_call_of(call, file, _MAKERS):
                message = (
                    "each rank acts in a separate environment: its data and the lengths of its episodes differ where "
                    "it and its space of actions do not have one seed on all ranks"
                )
                advice = (
                    "give reset() and action_space a seed that is the same on all ranks, or let rank 0 decide where "
                    "episodes and training end"
                )
                yield Note(Code.PLAIN_AGREEMENT, file, call, message, advice)
