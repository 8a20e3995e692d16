"""Imports of an engine's first steps, for a fork server to import once. They change nothing that torch had."""

from __future__ import annotations

import contextlib

import torch.utils.serialization  # noqa: F401

with contextlib.suppress(ImportError):  # where DeepSpeed has it, deepspeed.initialize() imports it
    import deepspeed.module_inject.auto_ep_layer  # noqa: F401
