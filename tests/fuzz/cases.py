"""Cases of the fuzzers: the files of a project, made from a seed."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import examples
import strategies
from ds_migrate.options import Options
from ds_migrate.rules.codes import Code
from ds_migrate.rules.pages import page_of
from fixture_folders import FIXTURES, PLAIN, TRIALS

from fuzz.mutations import mutated
from fuzz.yaml_mutations import mutated_json, mutated_yaml

ROOT = Path(__file__).parents[2]
_TRIALS = [FIXTURES / name / "before" for name in TRIALS]
_LOOPS = [FIXTURES / name / "before" for name in PLAIN]
_LARGEST = 60_000  # bytes of foreign code
_LOOP = b"""\
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in [(torch.zeros(2, 4), torch.zeros(2, 1))]:
    optimizer.zero_grad()
    loss = (model(x) - y).pow(2).mean()
    loss.backward()
    optimizer.step()
"""


@dataclass(frozen=True)
class Case:
    """A project: the content of its files by name (bytes), and how it is converted. ``foreign`` is source that
    concerns no rule: all its lines stay."""

    kind: str
    seed: int
    files: dict[bytes, bytes]
    options: Options
    foreign: bytes = b""

    def __str__(self) -> str:
        return f"{self.kind} {self.seed}"


def make_case(kind: str, seed: int) -> Case:
    """Return the case of a seed."""
    random = Random(f"{kind} {seed}")
    options = Options(target=random.choice(["runtime", "runtime", "determined"]))
    if kind == "foreign":
        foreign = _foreign(random)
        return Case(kind, seed, {b"model_def.py": foreign + examples.module().encode()}, options, foreign)
    if kind == "plain":
        options = Options(plain=True, zero=random.choice([None, None, 0, 1]))
        if random.random() < 0.3:
            foreign = _foreign(random)
            return Case(kind, seed, {b"train.py": foreign + _LOOP}, options, foreign)
    return Case(kind, seed, MAKERS[kind](random), options)


def _mutated_trial(random: Random) -> dict[bytes, bytes]:
    """Return a mutated trial: of a rule's page, of generated idioms, or of a fixture."""
    source = random.choice([_page, _generated])(random)
    if random.random() < 0.3:
        return _mutated_fixture(random)
    return {b"model_def.py": _encoded(mutated(source, random)), b"const.yaml": strategies.CONFIG.encode()}


def _page(random: Random) -> str:
    return random.choice(_examples())


@cache
def _examples() -> list[str]:
    pages = (examples.example_of(page_of(code)) for code in Code)
    return [examples.source(example.before) for example in pages if example is not None]


def _generated(random: Random) -> str:
    return strategies.build(random.choice).source.decode()


def _mutated_fixture(random: Random) -> dict[bytes, bytes]:
    return _mutated_folder(random.choice(_TRIALS), random)


def _mutated_loop(random: Random) -> dict[bytes, bytes]:
    return _mutated_folder(random.choice(_LOOPS), random)


def _mutated_folder(folder: Path, random: Random) -> dict[bytes, bytes]:
    files = {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.suffix in (".py", ".yaml", ".json")}
    python = [path for path in files if path.suffix == ".py"]
    chosen = random.choice(python)
    files[chosen] = _encoded(mutated(files[chosen].decode(), random))
    return {str(path.relative_to(folder)).encode(): data for path, data in files.items()}


def _configs(random: Random) -> dict[bytes, bytes]:
    """Return a fixture whose configs are mutated."""
    folder = random.choice(_TRIALS)
    files = {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.suffix in (".py", ".yaml")}
    for path in [path for path in files if path.suffix == ".yaml"]:
        files[path] = mutated_yaml(files[path].decode(), random)
    named = {str(path.relative_to(folder)).encode(): data for path, data in files.items()}
    if random.random() < 0.4:
        named[b"ds_config.json"] = mutated_json(random)
    return named


def _names(random: Random) -> dict[bytes, bytes]:
    """Return a trial in files and folders with hostile names."""
    files = {}
    for _ in range(random.choice([1, 2, 3])):
        folder = b"".join(_name(random) + b"/" for _ in range(random.choice([0, 0, 1, 2])))
        files[folder + _name(random) + b".py"] = examples.module().encode()
        files[folder + _name(random) + random.choice([b".yaml", b".yml"])] = strategies.CONFIG.encode()
    return files


def _name(random: Random) -> bytes:
    kind = random.choice(["bytes", "control", "long", "words", "unicode"])
    if kind == "bytes":
        name = bytes(random.choice([b for b in range(1, 256) if b != 47]) for _ in range(random.randrange(1, 12)))
    elif kind == "control":
        name = random.choice([b"a\nb", b"\x1b[31mred", b"::error::x", b"a\rb", b"\x07", b"a\tb", b'"', b"'", b"\\"])
    elif kind == "long":
        name = random.choice([b"x" * 240, "é".encode() * 120, "\U0001f600".encode() * 60])
    elif kind == "unicode":
        name = random.choice(["\u202egnp", "\u2028", "ﬁ", "模型", "a\u0301", "\ufeffx"]).encode()
    else:
        name = random.choice(
            [b"model_def", b"__init__", b"-rf", b"--write", b"a b", b"%d", b"$HOME", b"*", b"{0}", b"@"]
        )
    return b"_" + name if name.strip(b".") == b"" else name


def _foreign(random: Random) -> bytes:
    """Return a module of the standard library or of an installed package, without what must come first in a file."""
    while True:
        data = random.choice(_foreign_files()).read_bytes()
        try:
            text = data.decode("utf-8")
            compile(text, "foreign", "exec", dont_inherit=True)
        except (ValueError, SyntaxError):
            continue
        if "from __future__" in text or "determined" in text or "\f" in text or b"\r" in data:
            continue
        return data.rstrip() + b"\n\n\n"


def foreign_source(size: int) -> str:
    """Return modules of the standard library, one after the other, of about so many bytes."""
    parts: list[str] = []
    seed = 0
    while sum(map(len, parts)) < size:
        parts.append(_foreign(Random(seed)).decode())
        seed += 1
    return "".join(parts)


@cache
def _foreign_files() -> list[Path]:
    library = Path(sysconfig.get_paths()["stdlib"])
    packages = Path(sysconfig.get_paths()["purelib"])
    own = [p for p in library.rglob("*.py") if "site-packages" not in p.parts and "bad" not in p.name]
    found = [*own, *packages.glob("torch/**/*.py"), *packages.glob("deepspeed/**/*.py"), *packages.glob("*/*.py")]
    return sorted(path for path in found if 200 < path.stat().st_size < _LARGEST)


def _encoded(source: str) -> bytes:
    return source.encode("utf-8", "surrogatepass")


MAKERS: dict[str, Callable[[Random], dict[bytes, bytes]]] = {
    "trial": _mutated_trial,
    "config": _configs,
    "names": _names,
    "plain": _mutated_loop,
}
KINDS = ("trial", "foreign", "config", "names", "plain")
