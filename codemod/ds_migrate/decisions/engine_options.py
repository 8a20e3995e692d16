"""What the command line asks of a trial's engines besides a ZeRO stage, as the rules and the config read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import libcst as cst

_PRECISION: Mapping[str, Mapping[str, object]] = {
    "bf16": {"bf16": {"enabled": True}},
    "fp16": {"fp16": {"enabled": True}},
    "autocast": {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
}
# DeepSpeed takes both names for AdamW, and compiles an optimizer of its own for them, unless told otherwise.
_TORCH_ADAM: Mapping[str, Mapping[str, object]] = {
    "Adam": {"torch_adam": True, "adam_w_mode": False},
    "AdamW": {"torch_adam": True},
}


@dataclass(frozen=True, eq=False)
class ConfigOptimizer:
    """An optimizer of torch that DeepSpeed makes from its config.

    ``kind`` is the class's name below ``torch.optim``. ``known``: arguments as JSON holds them; ``computed``: those
    that are known only when the trial runs, as expressions. ``assignments``: what made it in the trial's source.
    """

    kind: str
    known: Mapping[str, object]
    computed: Mapping[str, str]
    assignments: tuple[cst.BaseSmallStatement, ...]

    def config(self) -> dict[str, object]:
        """The ``optimizer`` block, as far as it is known."""
        return {"type": self.kind, "params": {**self.known, **_TORCH_ADAM.get(self.kind, {})}}


@dataclass
class EngineOptions:
    """``precision`` is None where the trial's own stays. What is refused has a sentence that says why."""

    precision: str | None = None
    precision_refused: str = ""
    offload: str = "none"
    offload_refused: str = ""
    optimizer: ConfigOptimizer | None = None
    optimizer_stays: str = ""

    @property
    def casts(self) -> bool:
        """Whether the model computes in another type than the code around it."""
        return self.precision in _PRECISION

    def zero(self) -> dict[str, object]:
        """Keys of the block ``zero_optimization``."""
        device = {"device": "cpu"}
        found: dict[str, object] = {}
        if self.offload != "none":
            found["offload_optimizer"] = dict(device)
        if self.offload == "parameters":
            found["offload_param"] = dict(device)
        return found

    def config(self) -> dict[str, object]:
        """Top-level keys of the DeepSpeed config."""
        found: dict[str, object] = dict(_PRECISION.get(self.precision or "", {}))
        if self.optimizer is not None:
            found["optimizer"] = self.optimizer.config()
        elif self.offload != "none":
            found["zero_force_ds_cpu_optimizer"] = False
        return found
