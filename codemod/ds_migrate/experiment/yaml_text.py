"""A YAML file as text and tree, and an edited text as bytes again."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from functools import lru_cache

from ds_migrate.experiment.yaml_nodes import Node, UnreadableError, data, parse


@dataclass(frozen=True, eq=False)
class Source:
    """A file's text without its byte order mark, and the root of each document in it."""

    text: str
    bom: bytes
    roots: tuple[Node, ...]

    def encode(self, text: str) -> bytes:
        return self.bom + text.encode("utf-8")


@lru_cache(maxsize=128)  # a config is asked for facts first, and planned later
def read(content: bytes) -> Source:
    """Raises UnreadableError for anything but YAML in UTF-8."""
    bom = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
    try:
        text = content[len(bom) :].decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UnreadableError(f"not UTF-8: {error.reason} at byte {error.start}", line) from None
    roots = tuple(parse(text))
    for root in roots:
        data(root)  # refuses aliases that explode
    return Source(text, bom, roots)
