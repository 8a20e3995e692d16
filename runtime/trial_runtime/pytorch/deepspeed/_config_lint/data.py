"""Settings for data that only reach the loader that DeepSpeed makes."""

from __future__ import annotations

from typing import Any

from trial_runtime.pytorch.deepspeed._config_lint.problems import Problem, Problems, Setup, enabled


def check_data(config: dict[str, Any], setup: Setup) -> Problems:
    """Check for sampling by difficulty without the data that it is for."""
    if setup.data is None and enabled(config, "data_efficiency") and enabled(config, "data_efficiency.data_sampling"):
        yield Problem(
            "data_efficiency.data_sampling",
            "changes the loader that deepspeed.initialize(training_data=...) returns, and there is no training_data: "
            "the trial's own loaders stay as they are",
            fatal=False,
        )
