"""``ds_config.json``: what of a trial's DeepSpeed config is known before it runs, and why each key is there.

Micro batch, accumulation and clipping from hyperparameters are known only at run time: converted code merges them in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from ds_migrate.deepspeed_facts import REMOVED_CONFIG_KEYS
from ds_migrate.ds_config.json_edits import add_pairs, keys_on_lines
from ds_migrate.experiment.model import TrialFacts
from ds_migrate.files import limits
from ds_migrate.findings import FileKind, FileResult, FileStatus, Finding, Severity, TrialStatus
from ds_migrate.rules.codes import Code

NAME = "ds_config.json"

# Key (dotted) -> why it is there. The order is that of a new file.
_REASONS: dict[str, str] = {
    "train_batch_size": "batch of one optimizer step over all ranks: fixes the number of ranks, better left out",
    "train_micro_batch_size_per_gpu": "batch of one forward pass on one rank; the trial sets it at run time",
    "gradient_accumulation_steps": "micro-batches per optimizer step, as aggregation_frequency was",
    "managed_gradient_accumulation": "the trial decides when to step; gradients are reduced then (DeepSpeed >= 0.19.4)",
    "gradient_clipping": "largest L2 norm of the gradients, 0.0 for no limit; DeepSpeed's default became 1.0 in 0.19.3",
    "zero_optimization": "which training state is spread over the ranks",
    "zero_optimization.stage": "sharded over ranks: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters",
    "zero_optimization.offload_optimizer": "optimizer state lives in host memory",
    "zero_optimization.offload_param": "parameters live in host memory (stage 3)",
    "zero_allow_untested_optimizer": "the optimizer works elementwise, as ZeRO needs, but is not on DeepSpeed's list",
    "zero_force_ds_cpu_optimizer": "false: the trial's own torch optimizer is kept with offloading",
    "optimizer": "the optimizer that DeepSpeed makes itself",
    "optimizer.type": "the class that the trial made; Adam alone would be DeepSpeed's own AdamW",
    "optimizer.params": "what the trial made it with; torch_adam: torch's own class, adam_w_mode false: no AdamW",
    "scheduler": "the learning-rate schedule that DeepSpeed steps itself, once per optimizer step",
    "bf16": "parameters, activations and gradients in bfloat16, with a float32 copy of parameters for the optimizer",
    "fp16": "parameters, activations and gradients in half precision, with dynamic loss scaling",
    "torch_autocast": "torch's autocast around the engine's forward pass",
    "communication_data_type": "precision in which gradients are reduced",
    "prescale_gradients": "gradients are divided before they are reduced",
}

# Keys of an existing file that take over what the trial does itself.
_TAKEN_OVER = {
    "train_batch_size": "it fixes the number of ranks, and the trial sets the micro batch itself",
    "scheduler": "DeepSpeed steps it once per optimizer step, besides the trial's own schedulers",
}


def explain(config: Mapping[str, object]) -> list[tuple[str, str]]:
    """(dotted key, why it is there) for the keys that a reason is known for, in the order of a new file."""
    reasons: list[tuple[str, str]] = []
    for key, value in _ordered(config).items():
        if key in _REASONS and not (
            isinstance(value, Mapping) and any(f"{key}.{inner}" in _REASONS for inner in value)
        ):
            reasons.append((key, _REASONS[key]))
        if isinstance(value, Mapping):
            reasons += [
                (f"{key}.{inner}", _REASONS[f"{key}.{inner}"]) for inner in value if f"{key}.{inner}" in _REASONS
            ]
    return reasons


def render(config: Mapping[str, object]) -> bytes:
    """A new file: two blanks of indentation, keys in a fixed order, a final newline."""
    return (json.dumps(_ordered(config), indent=2, ensure_ascii=False) + "\n").encode("utf-8")


def choose_paths(trials: Iterable[tuple[Path, str, Mapping[str, object]]]) -> dict[tuple[Path, str], Path]:
    """Return where each trial's config goes: (source, class name) -> path. ``trials``: source, class name, config.

    ``ds_config.json`` beside the source; trials of one folder share it when they need the same, else those that differ
    from the first get ``ds_config_<class>.json``.
    """
    paths: dict[tuple[Path, str], Path] = {}
    folders: dict[Path, list[tuple[Mapping[str, object], Path]]] = {}
    for source, name, config in sorted(trials, key=lambda trial: (trial[0], trial[1])):
        known = folders.setdefault(source.parent, [])
        path = next((path for other, path in known if other == config), None)
        if path is None:
            path = source.with_name(f"ds_config_{name}.json" if known else NAME)
            known.append((config, path))
        paths[source, name] = path
    return paths


def plan(trials: Sequence[TrialFacts], restored: Mapping[Path, bytes] = MappingProxyType({})) -> list[FileResult]:
    """Return the DeepSpeed configs of all converted trials: created, completed, or left as they are.

    ``restored``: the content of those that are made again for trials that were converted earlier.
    """
    wanted: dict[Path, list[TrialFacts]] = {}
    for trial in trials:
        if trial.status is TrialStatus.CONVERTED and trial.ds_config:
            wanted.setdefault(trial.ds_config_path, []).append(trial)
    return [_plan_one(path, users, restored.get(path)) for path, users in sorted(wanted.items())]


def _plan_one(path: Path, users: Sequence[TrialFacts], restored: bytes | None) -> FileResult:
    result = FileResult(path, FileKind.DS_CONFIG)
    first = users[0]
    for other in users[1:]:
        if dict(other.ds_config) != dict(first.ds_config):
            keys = sorted(
                k for k in {*first.ds_config, *other.ds_config} if first.ds_config.get(k) != other.ds_config.get(k)
            )
            message = f"{first.name} and {other.name} need different values of {', '.join(keys)} in one file"
            help_text = "move one of the trials to a separate folder"
            result.status = FileStatus.BLOCKED
            result.findings = [
                Finding(Code.DS_CONFIG_SHARED, Severity.BLOCKED, 1, message, trial=other.name, help=help_text)
            ]
            return result
    try:
        result.before = path.read_bytes()
    except FileNotFoundError:
        if restored is not None:
            result = _complete(result, restored, first.ds_config, users)
            result.after, result.status = result.after or restored, FileStatus.CREATED
            return result
        result.after, result.status = render(first.ds_config), FileStatus.CREATED
        lines = keys_on_lines(result.after.decode("utf-8"))
        result.findings = [
            Finding(
                Code.DS_CONFIG_KEY,
                Severity.CONVERTED,
                lines.get(key, 1),
                f"{key}: {reason}",
                trial=_name(users),
            )
            for key, reason in explain(first.ds_config)
        ]
        return result
    except OSError as error:
        return _unreadable(result, f"cannot be read: {error.strerror or error}", users)
    return _complete(result, result.before, first.ds_config, users)


def _complete(
    result: FileResult, before: bytes, wanted: Mapping[str, object], users: Sequence[TrialFacts]
) -> FileResult:
    """An existing file keeps every key and byte; what the trial's numbers depend on is added where it is missing."""
    if len(before) > limits.LARGEST_JSON:
        largest = limits.shown(limits.LARGEST_JSON)
        return _unreadable(result, f"has {limits.shown(len(before))}, and files of up to {largest} are read", users)
    try:
        text = before.decode("utf-8")
        existing = json.loads(text.removeprefix("\ufeff"))
    except ValueError as error:
        return _unreadable(result, f"is not JSON: {error}", users)
    except RecursionError:
        return _unreadable(result, "is nested too deeply", users)
    if not isinstance(existing, dict):
        return _unreadable(result, "is not a JSON object", users)
    lines = keys_on_lines(text)
    stage = _stage(existing)
    missing: dict[str, object] = {}
    for key, value in _ordered(wanted).items():
        if key == "zero_optimization":
            if stage > _stage(wanted):
                message = f"zero_optimization.stage is {stage}; the conversion chose {_stage(wanted)} for this trial"
                _note(result, Code.DS_CONFIG_CONFLICT, lines.get("zero_optimization.stage", 1), message, users)
            for name in _lacking(existing, value):
                message = f"zero_optimization has no {name}, which --offload asks for: add it there"
                _note(result, Code.DS_CONFIG_CONFLICT, lines.get("zero_optimization", 1), message, users)
        elif key in existing:
            if not _holds(existing[key], value):
                message = (
                    f"{key} is {json.dumps(existing[key])} and stays; the trial as it was needs {json.dumps(value)}"
                )
                _note(result, Code.DS_CONFIG_CONFLICT, lines.get(key, 1), message, users)
        elif key != "zero_allow_untested_optimizer" or stage > 0:
            missing[key] = value
    for key in existing:
        if key in REMOVED_CONFIG_KEYS:
            _note(
                result,
                Code.DS_CONFIG_REMOVED_KEY,
                lines.get(key, 1),
                f"DeepSpeed 0.19.8 stops at the key {key}, whatever its value",
                users,
            )
        elif key in _TAKEN_OVER and key not in wanted:
            _note(result, Code.DS_CONFIG_CONFLICT, lines.get(key, 1), f"{key} stays: {_TAKEN_OVER[key]}", users)
    if missing:
        after = add_pairs(text, missing)
        result.after, result.status = after.encode("utf-8"), FileStatus.CHANGED
        new_lines = keys_on_lines(after)
        for key in missing:
            message = f"{key} was missing: {_REASONS.get(key, 'the trial needs it')}"
            _note(result, Code.DS_CONFIG_COMPLETED, new_lines.get(key, 1), message, users, Severity.CONVERTED)
    return result


def _note(
    result: FileResult,
    code: Code,
    line: int,
    message: str,
    users: Sequence[TrialFacts],
    severity: Severity = Severity.REVIEW,
) -> None:
    result.findings.append(Finding(code, severity, line, message, trial=_name(users)))


def _unreadable(result: FileResult, reason: str, users: Sequence[TrialFacts]) -> FileResult:
    result.status = FileStatus.ERROR
    advice = "repair or remove it, then run again: the converted trial reads this file"
    finding = Finding(
        Code.DS_CONFIG_UNREADABLE,
        Severity.ERROR,
        1,
        f"{result.path.name} {reason}",
        trial=_name(users),
        help=advice,
    )
    result.findings = [finding]
    return result


def _name(users: Sequence[TrialFacts]) -> str | None:
    return users[0].name if len(users) == 1 else None


def _stage(config: Mapping[str, object]) -> int:
    zero = config.get("zero_optimization")
    stage = zero.get("stage", 0) if isinstance(zero, Mapping) else 0
    return stage if isinstance(stage, int) else 0


def _lacking(existing: Mapping[str, object], wanted: object) -> list[str]:
    """Return the wanted keys of ``zero_optimization``, except the stage, that the existing file does not have."""
    there = existing.get("zero_optimization")
    if not isinstance(wanted, Mapping):
        return []
    return [name for name in wanted if name != "stage" and not (isinstance(there, Mapping) and name in there)]


def _holds(existing: object, wanted: object) -> bool:
    if isinstance(wanted, Mapping):
        return isinstance(existing, Mapping) and all(
            k in existing and _holds(existing[k], v) for k, v in wanted.items()
        )
    return existing == wanted


def _ordered(config: Mapping[str, object]) -> dict[str, object]:
    """Known keys in the order of the reasons, then the others as they come."""
    known = [key for key in _REASONS if key in config]
    return {key: config[key] for key in [*known, *(key for key in config if key not in _REASONS)]}
