"""Leave out the warning that no accelerator was found where there is none to find."""

from __future__ import annotations

from trial_runtime import _log_filters
from trial_runtime.pytorch.deepspeed._patches.patch import Patch

PATCH = Patch(
    "accelerator_notice",
    "DeepSpeed warns of a missing accelerator on machines that have none, or on which the user has hidden it.",
    in_process=_log_filters.cpu_expected,  # the package calls expect_cpu() before it imports DeepSpeed
)
