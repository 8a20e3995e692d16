"""The text of a YAML file, and its bytes again."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from ds_migrate.experiment.tree import UnreadableError


@dataclass(frozen=True)
class Text:
    """A file's text without its byte order mark, and the bytes of an edited text."""

    text: str
    bom: bytes

    def encode(self, text: str) -> bytes:
        return self.bom + text.encode("utf-8")


def decode(content: bytes) -> Text:
    """Raises UnreadableError for anything but UTF-8."""
    bom = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
    try:
        return Text(content[len(bom) :].decode("utf-8"), bom)
    except UnicodeDecodeError as error:
        raise UnreadableError(
            f"not UTF-8: {error.reason} at byte {error.start}", content.count(b"\n", 0, error.start) + 1
        ) from None
