"""Searches on bytes that keep everything else, imports included, away from files without a trial."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator

# What every file with a trial holds, but those that are built on a class of another file of the project.
TRIAL_SIGNS = (
    *(b"PyTorchTrial", b"LightningAdapter", b"DeepSpeedTrial", b"BaseTransformerTrial", b"MMDetTrial"),
    *(b"TFKerasTrial", b"EstimatorTrial", b"TensorpackTrial"),
    *(b"build_training_data_loader", b".wrap_model(", b"context.backward("),
)

# A word first, and then where it begins: a search for \b, or for one of several words, takes ten times as long.
_DETERMINED = re.compile(rb"determined\b")
_NEAR = 400  # bytes
_IMPORT = re.compile(rb"\bimport\b")
_BACKWARD = re.compile(rb"backward(?<=\bbackward)\s*\(")
_OF_LOOP = (
    *(_BACKWARD, re.compile(rb"optim(?<=\boptim)"), re.compile(rb"DataLoader(?<=\bDataLoader)\s*\(")),
    *(re.compile(rb"\.parameters\(\)"), re.compile(rb"fit(?<=\bfit)\("), re.compile(rb"train(?<=\btrain)\w*\(")),
)
_FRAMEWORK_NAMES = (
    *(b"accelerate", b"fastai", b"ignite", b"lightning", b"lightning_fabric", b"pytorch_lightning"),
    *(b"sentence_transformers", b"transformers", b"trl"),
)
_FRAMEWORKS = rb"(?:%s)" % b"|".join(_FRAMEWORK_NAMES)
_FRAMEWORK = re.compile(rb"\b%s\b" % _FRAMEWORKS)
_RUNS = rb"(?:\w*Trainer|Accelerator|Fabric|LightningCLI|\w*[Ll]earner|Engine|create_supervised_trainer)"
_FRAMEWORK_RUN = re.compile(  # imported from a framework, or an attribute: a script may define a Trainer itself
    rb"from\s+%s[\w.]*\s+import\s*(?:\*|(?:\([^)]*?|[^\n(]*?)\b%s\b)|\b\w+\.%s\s*\(" % (_FRAMEWORKS, _RUNS, _RUNS)
)
_TRAINING = (b"rain", b"earner", b"accelerate", b"lightning")  # one at least is in a script that a framework trains
LIBRARY_SCALER = re.compile(rb"\bfrom\s+timm\.utils[\w.]*\s+import\s*(?:\([^)]*?|[^\n(]*?)\bNativeScaler\b")
_STEP = re.compile(rb"\.\s*step\s*\(")
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def may_hold_trial(data: bytes) -> bool:
    """Return whether a file can concern a migration at all; False for nearly every file of a tree."""
    if b"Trial" in data or b"train_batch" in data or b"-migrate" in data:
        return True
    return b"determined" in data and any(_is_imported(data, found.start()) for found in _DETERMINED.finditer(data))


def _is_imported(data: bytes, start: int) -> bool:
    """Return whether a name is in an import, or begins a string that may be given to importlib.

    The English word is in many files: a comma before it counts in an import only, and a quote where a string can
    end as one word of a path.
    """
    if data[start - 1 : start] in (b'"', b"'"):
        return data[start + 10 : start + 11] in (b'"', b"'", b".")
    before = data[max(start - _NEAR, 0) : start].rstrip(b" \t\r\n\f\\")
    if before.endswith(b","):
        _, newline, statement = before.replace(b"\\\r\n", b" ").replace(b"\\\n", b" ").rpartition(b"\n")
        return _IMPORT.search(statement) is not None or not (newline or start <= _NEAR)
    return before.endswith((b"import", b"from"))


# -- plain training loops ---------------------------------------------------------------------------------------------


def may_hold_loop(data: bytes) -> bool:
    """Return whether a file can hold a loop that steps an optimizer after a backward pass."""
    return names_torch(data) and may_pass_backward(data) and may_step(data)


def names_torch(data: bytes) -> bool:
    """Return whether a file may use torch, or an optimizer of it."""
    return b"torch" in data or b"optim" in data


def may_pass_backward(data: bytes) -> bool:
    """Return whether a file can hold the backward pass of a loop, whose optimizer another file may make and step."""
    return (b"backward" in data and _BACKWARD.search(data) is not None) or _has_library_scaler(data)


def may_step(data: bytes) -> bool:
    """Return whether a file can step an optimizer."""
    return _STEP.search(data) is not None or _has_library_scaler(data)


def _has_library_scaler(data: bytes) -> bool:
    """Return whether a file imports timm's NativeScaler, in which losses go back and optimizers step."""
    return b"NativeScaler" in data and LIBRARY_SCALER.search(data) is not None


def may_run_framework(data: bytes) -> bool:
    """Return whether a file can hand its training to a framework."""
    for names in (_TRAINING, _FRAMEWORK_NAMES):  # the expressions alone take far longer
        if not any(name in data for name in names):
            return False
    return _FRAMEWORK_RUN.search(data) is not None and _FRAMEWORK.search(data) is not None


def may_belong_to_loop(data: bytes) -> bool:
    """Return whether a file can make, hold or step an optimizer: a loop may be spread over several."""
    return any(pattern.search(data) is not None for pattern in _OF_LOOP)


# -- experiment configs -----------------------------------------------------------------------------------------------


def search_terms(names: Iterable[str]) -> frozenset[str]:
    """Return what a YAML file that concerns one of the names (a class, a module, a script) must contain."""
    return frozenset(map(_longest_word, names))


def may_name(data: bytes, terms: Iterable[str]) -> bool:
    """Return whether a YAML file may be an experiment config that concerns one of the search terms.

    True may be wrong, False never is (save for exotic spellings such as an escaped ``entrypoint``).
    """
    if data.startswith(_UTF16):
        text = _text(data)
        return "entrypoint" in text and any(term in text for term in terms)
    return b"entrypoint" in data and any(term.encode("utf-8", "surrogateescape") in data for term in terms)


def words_of(configs: Iterable[bytes]) -> frozenset[str]:
    """Return every word of the YAML files."""
    return frozenset(word for data in configs for word in re.findall(r"\w+", _text(data)))


def may_be_started(script: str, words: frozenset[str]) -> bool:
    """Return whether YAML files with these words may name the script (``__main__`` goes by the name of its package)."""
    stem = script.rpartition("/")[2].rpartition(".")[0]
    return bool(words) and (stem.startswith("__") or _longest_word(stem) in words)


def line_of_entrypoint(data: bytes, terms: Iterable[str]) -> int | None:
    """Return the line (from 1) on which a file that cannot be parsed seems to give a search term as its entrypoint."""
    wanted = "|".join(sorted(map(re.escape, terms)))
    word = re.compile(rf"(?<!\w)(?:{wanted})(?!\w)")
    return next((line for line, text in entrypoint_texts(data) if wanted and word.search(text)), None)


def entrypoint_texts(data: bytes) -> Iterator[tuple[int, str]]:
    """Yield what a file that cannot be parsed seems to have as entrypoints: the line (from 1) and the text from the key
    on, with the lines that are indented below it."""
    text = data.decode("utf-16" if data.startswith(_UTF16) else "utf-8-sig", errors="replace")
    start, held = 0, list[str]()
    for number, line in enumerate(text.split("\n"), 1):
        begins = line.lstrip(" \t'\"").startswith("entrypoint")
        if start and not line.startswith((" ", "\t", "-")):
            yield start, "\n".join(held)
            start, held = 0, []
        if begins and not start:
            start, line = number, line[line.index("entrypoint") :]
        if start:
            held.append(line)
    if start:
        yield start, "\n".join(held)


def _longest_word(name: str) -> str:
    """Return "run" of "run it": a blank in a file name may be written in several ways."""
    words: list[str] = re.findall(r"\w+", name)
    return max(words, key=len, default=name)


def _text(data: bytes) -> str:
    return data.decode("utf-16" if data.startswith(_UTF16) else "utf-8", errors="replace")
