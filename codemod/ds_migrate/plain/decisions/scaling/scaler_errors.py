"""The error of a GradScaler that an engine cannot use as the program does."""

from __future__ import annotations

import libcst as cst

from ds_migrate.syntax.source import SourceFile


class InexactScalingError(Exception):
    def __init__(self, message: str, file: SourceFile, node: cst.CSTNode, way_out: str) -> None:
        super().__init__(message)
        self.file, self.node, self.way_out = file, node, way_out
