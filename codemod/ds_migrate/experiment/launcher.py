"""The edit of ``entrypoint``: the launch layers for DDP and Horovod go, what they started stays."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ds_migrate.experiment import yaml_splices
from ds_migrate.experiment.entrypoint import Command, is_trial, words
from ds_migrate.experiment.yaml_nodes import Node
from ds_migrate.experiment.yaml_splices import Splice

DEEPSPEED_LAYER = "determined.launch.deepspeed"
_PROPERTIES = re.compile(r"(?:[&!]\S*[ \t\r\n]+)*")


@dataclass
class EntrypointEdit:
    """``value``: what the entrypoint is to mean afterwards, None when it stays. ``left``: why a launch layer stays."""

    value: str | list[str] | None = None
    splices: list[Splice] = field(default_factory=list)
    dropped: tuple[str, ...] = ()  # overrides of the old launch layer
    layer: str = ""
    left: str | None = None
    advice: str | None = None


@dataclass(frozen=True)
class _Change:
    """``words[start:stop]`` become ``new``."""

    start: int
    stop: int
    new: tuple[str, ...]


def edit(
    text: str, key: Node, node: Node, commands: Sequence[Command], target: str, one_rank: bool = True
) -> EntrypointEdit:
    """Plan the edit of one entrypoint. ``commands`` are those of its commands that run a converted trial; ``one_rank``
    means that the config asks for one slot, where a launch layer makes no difference to the numbers."""
    whole: list[str] = (
        [item.value for item in node.items] if node.kind == "sequence" else [w.value for w in words(node.value)]
    )
    if node.kind == "scalar" and is_trial(node.value):
        if target != "determined":
            return EntrypointEdit()
        value = f"python3 -m {DEEPSPEED_LAYER} --trial {node.value}"
        return EntrypointEdit(value, [_whole_scalar(text, node, value)])
    result = EntrypointEdit()
    changes: list[_Change] = []
    for command in commands:
        if command.launcher:
            result.dropped += tuple(word for word in command.overrides if word != "--autohorovod")
            result.layer = result.layer or command.launcher
        if target == "determined":
            changes += _for_determined(command, whole)
        elif "horovod" in command.launcher and not one_rank:
            result.left = (
                "Horovod did not copy rank 0's buffers to the other ranks, and ds-train keeps it so under this name"
            )
            result.advice = (
                "take the launch layer out if all ranks shall have rank 0's buffers (BatchNorm), as under DDP"
            )
            return result
        elif command.launcher and command.trial is not None:
            if (command.start, command.stop) != (0, len(whole)):
                result.left = f"only a whole entrypoint can become {command.trial!r}"
                result.advice = "give the trial alone as entrypoint, and do what precedes it before ds-train"
                return result
            return _to_trial(text, key, node, command, result)
        elif command.launcher:
            changes.append(_Change(command.start, command.inner, ()))
    if changes:
        _apply(text, node, whole, changes, result)
    return result


def _for_determined(command: Command, whole: Sequence[str]) -> list[_Change]:
    if not command.launcher:
        return [_Change(command.start, command.start, ("python3", "-m", DEEPSPEED_LAYER))]
    if command.launcher == "harness":
        return [_Change(command.launcher_at, command.launcher_at + 1, (DEEPSPEED_LAYER, "--trial"))]
    after = command.launcher_at + 1
    if command.harness:
        return [_Change(after - 1, command.harness + 1, (DEEPSPEED_LAYER, "--trial"))]
    changes = [] if command.launcher == "deepspeed" else [_Change(after - 1, after, (DEEPSPEED_LAYER,))]
    if command.inner > after:
        changes.append(_Change(after, command.inner, ()))
    if command.trial is not None and whole[command.inner] == command.trial:
        changes.append(_Change(command.inner, command.inner, ("--trial",)))
    return changes


def _to_trial(text: str, key: Node, node: Node, command: Command, result: EntrypointEdit) -> EntrypointEdit:
    trial = command.trial or ""
    result.value = trial
    if node.kind == "scalar":
        result.splices = [_whole_scalar(text, node, trial)]
    elif node.flow:
        result.splices = [
            Splice(_content_start(text, node), node.end, yaml_splices.render(trial, quoted=key.style == '"'))
        ]
    else:
        colon = text.find(":", key.end) + 1
        result.splices = [
            Splice(colon, colon, " " + yaml_splices.render(trial)),
            *yaml_splices.remove(text, node, range(len(node.items))),
        ]
    return result


def _apply(text: str, node: Node, whole: Sequence[str], changes: Sequence[_Change], result: EntrypointEdit) -> None:
    new_words = list(whole)
    for change in reversed(changes):
        new_words[change.start : change.stop] = change.new
    if node.kind == "sequence":
        result.value = new_words
        for change in changes:
            result.splices += _change_items(text, node, change)
        return
    parsed = words(node.value)
    new_value = node.value
    for change in reversed(changes):
        start, end, new = _span([(w.start, w.end) for w in parsed], change)
        new_value = new_value[:start] + new + new_value[end:]
    result.value = new_value
    start, end = _content(text, node)
    raw = words(text[start:end])
    if [w.value for w in raw] == [w.value for w in parsed]:
        spans = [(start + w.start, start + w.end) for w in raw]
        result.splices = [Splice(*_span(spans, change)) for change in changes]
    else:  # escapes: the text spells the words otherwise than they are meant
        result.splices = [
            Splice(_content_start(text, node), yaml_splices.end_of(text, node), yaml_splices.render(new_value))
        ]


def _span(spans: Sequence[tuple[int, int]], change: _Change) -> tuple[int, int, str]:
    """A change as offsets and text."""
    new = " ".join(change.new)
    if change.start == change.stop:
        return spans[change.start][0], spans[change.start][0], new + " "
    if new:
        return spans[change.start][0], spans[change.stop - 1][1], new
    if change.stop < len(spans):
        return spans[change.start][0], spans[change.stop][0], ""
    return spans[change.start - 1][1], spans[-1][1], ""


def _change_items(text: str, node: Node, change: _Change) -> list[Splice]:
    quoted = node.flow and all(item.style == '"' for item in node.items)
    new = [yaml_splices.render(word, quoted) for word in change.new]
    if change.start < change.stop:
        gone = range(change.start + (1 if new else 0), change.stop)
        replaced = node.items[change.start]
        kept = [Splice(_content_start(text, replaced), yaml_splices.end_of(text, replaced), new[0])] if new else []
        rest = _insert_items(text, node, change.start + 1, new[1:]) if len(new) > 1 else []
        return [*kept, *rest, *(yaml_splices.remove(text, node, gone) if gone else [])]
    return _insert_items(text, node, change.start, new)


def _insert_items(text: str, node: Node, at: int, new: Sequence[str]) -> list[Splice]:
    """New items before item ``at``, which exists."""
    before = node.items[at].start
    if node.flow:
        return [Splice(before, before, "".join(f"{word}, " for word in new))]
    start = yaml_splices.line_start(text, before)
    prefix, end_line = text[start:before], yaml_splices.newline(text)
    return [Splice(start, start, "".join(prefix + word + end_line for word in new))]


def _content_start(text: str, node: Node) -> int:
    """Return where a node begins behind its anchor and tag."""
    match = _PROPERTIES.match(text, node.start, node.end)
    return node.start if match is None else match.end()


def _content(text: str, node: Node) -> tuple[int, int]:
    """Return where the words of a scalar stand: without quotes, without the header of a block scalar."""
    start, end = _content_start(text, node), yaml_splices.end_of(text, node)
    if node.style in ("|", ">"):
        return yaml_splices.next_line(text, start), end
    return (start + 1, end - 1) if node.style else (start, end)


def _whole_scalar(text: str, node: Node, value: str) -> Splice:
    start, end = _content(text, node)
    one_line = not re.search(r"[\r\n]", text[node.start : end])
    if one_line and node.style and not set(value) & set("'\"\\"):
        return Splice(start, end, value)
    return Splice(_content_start(text, node), yaml_splices.end_of(text, node), yaml_splices.render(value))
