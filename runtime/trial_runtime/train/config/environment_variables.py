"""``environment.environment_variables`` of an experiment config."""

from __future__ import annotations

from collections.abc import Mapping

from trial_runtime.train.config.errors import Section, did_you_mean

_DEVICES = ("cpu", "cuda", "rocm", "gpu")


def read_environment(section: Section, accelerator: str) -> dict[str, str]:
    """Return the variables that the config sets on ``accelerator``, ``"cpu"`` or ``"cuda"``."""
    value = section.get("environment_variables")
    if isinstance(value, Mapping):
        for device in value.keys() - set(_DEVICES):
            known = (
                "write a list of NAME=value strings, or such lists under "
                f"{', '.join(_DEVICES[:-1])}{did_you_mean(str(device), _DEVICES)}"
            )
            section.problems.add(f"{section.at('environment_variables')}.{device}", value[device], known)
        value = value.get("cpu") if accelerator == "cpu" else value.get("cuda") or value.get("gpu")
    allowed = "write a list of NAME=value strings, or one such list under each of cpu and cuda"
    settings: dict[str, str] = {}
    if value is not None and not isinstance(value, list):
        section.reject("environment_variables", allowed)
        return settings
    for item in value or []:
        if not isinstance(item, str) or "=" not in item or item.startswith("="):
            section.problems.add(section.at("environment_variables"), item, allowed)
            continue
        name, _, setting = item.partition("=")
        settings[name] = setting
    return settings
