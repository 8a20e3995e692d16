"""Programs that spread a model over several devices, which ranks cannot do."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from ds_migrate.plain.recognition.facts import Refusal
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.source import SourceFile

NUMBERED_DEVICE = re.compile(r"cuda:(\d+)")


def several_devices(files: Sequence[SourceFile]) -> Refusal | None:
    """Return that a program spreads its model over devices by their numbers, which ranks do not have."""
    found: dict[str, tuple[SourceFile, cst.SimpleString]] = {}
    for file in files:
        for node in file.nodes(cst.SimpleString) if b"cuda:" in file.data else ():
            number = NUMBERED_DEVICE.fullmatch(device_text(node))
            if number is not None and not is_saved_device(node, file):
                found.setdefault(number.group(1), (file, node))
    if len(found) < 2:
        return None
    file, node = list(found.values())[1]
    return Refusal(
        Code.PLAIN_DEVICE, file, node,
        f"the program uses several devices by number: {', '.join(f'cuda:{n}' for n in sorted(found))}",
        "train on one device in each process, the current one: cuda",
    )  # fmt: skip


def is_saved_device(node: cst.BaseExpression, file: SourceFile) -> bool:
    """Return whether a device is a key of a map, as of ``map_location=``: it names where a file was saved."""
    outer = file.parent(node)
    return isinstance(outer, cst.DictElement) and outer.key is node


def device_text(node: cst.SimpleString) -> str:
    """Return what a string literal holds; "" for bytes."""
    value = node.evaluated_value
    return value if isinstance(value, str) else ""
