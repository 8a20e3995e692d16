"""The choices of one run, as the command line, ``pyproject.toml`` or a caller makes them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ds_migrate.files.ignored_codes import IgnoredCodes


@dataclass(frozen=True)
class Options:
    """The choices of a conversion.

    ``target``: ``"runtime"`` (the bundled trial_runtime) or ``"determined"`` (the official package).
    ``zero``: ZeRO stage 0 to 3, or None for the highest stage that is exact for the trial.
    ``precision``: number format of the engines, ``"fp32"``, ``"bf16"``, ``"fp16"``, ``"autocast"``, or None for the
    trial's own.
    ``offload``: what lives in host memory: ``"none"``, ``"optimizer"`` (its state) or ``"parameters"`` (that too).
    ``optimizer_in_config``: let DeepSpeed make the optimizer, where it makes the same one.
    ``plain``: convert plain training loops, and leave trials.
    ``config_style``: where the DeepSpeed config of a plain loop is written, ``"inline"`` or ``"json"``.
    ``runtime``: let plain loops use helpers of ``trial_runtime``; without them what is not exact so is refused.
    ``follow``: packages whose base classes are copied beside the trials that are built on them.
    ``ignored``: the codes whose *review* findings are accepted.
    """

    target: str = "runtime"
    zero: int | None = None
    precision: str | None = None
    offload: str = "none"
    optimizer_in_config: bool = False
    follow: tuple[str, ...] = ()
    ignored: IgnoredCodes = field(default_factory=IgnoredCodes)
    plain: bool = False
    config_style: str = "inline"
    runtime: bool = True
