"""Batch sizes: samples of a step = samples of a micro-batch x micro-batches of a step x ranks."""

from __future__ import annotations

from typing import Any

from trial_runtime.pytorch.deepspeed._config_lint.problems import Problem, Problems, Setup, shown, value_at

TRAIN, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


def check_batch_sizes(config: dict[str, Any], setup: Setup) -> Problems:
    """Check for sizes that are not valid, are missing, or do not multiply."""
    given = {key: config[key] for key in (TRAIN, MICRO, STEPS) if config.get(key) is not None}
    for key, value in given.items():
        if value != "auto" and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            yield Problem(key, f"invalid value {shown(value)}: write a whole number, 1 or more")
    if any(isinstance(value, bool) or not isinstance(value, int) or value < 1 for value in given.values()):
        return
    if not setup.complete:
        return  # code adds to them
    if TRAIN not in given and MICRO not in given:
        yield Problem(
            MICRO,
            "there is no batch size: write the samples that a rank trains at a time, in a trial "
            "context.get_per_slot_batch_size()",
        )
    elif not _whole_shards(config, setup):
        size = value_at(config, "sequence_parallel_size")
        yield Problem("sequence_parallel_size", f"{shown(size)} does not divide the {setup.ranks} ranks")
    elif TRAIN in given:
        yield from _products(given, _data_parallel(config, setup))


def _products(given: dict[str, int], ranks: int | None) -> Problems:
    train, micro, steps = given[TRAIN], given.get(MICRO), given.get(STEPS)
    known = (micro or 1) * (steps or 1) * (ranks or 1)
    product = " x ".join(
        f"{name} {value}"
        for name, value in (("micro-batch", micro), ("accumulation", steps), ("ranks", ranks))
        if value
    )
    if micro and steps and ranks:
        if train != known:
            yield Problem(TRAIN, f"{train} is not {product} = {known}: {_instead(train, micro, steps, ranks)}")
    elif train % known:
        below = train // known * known
        fitting = f"{below} or {below + known}" if below else str(known)
        yield Problem(
            TRAIN,
            f"{train} is no multiple of {product} = {known}: write {fitting}{', or leave it out' if micro else ''}",
        )


def _instead(train: int, micro: int, steps: int, ranks: int) -> str:
    """Return what fits: another total, or one of the parts changed."""
    ways = [f'"{TRAIN}": {micro * steps * ranks} (or leave it out)']
    if train % (micro * ranks) == 0:
        ways.append(f'"{STEPS}": {train // (micro * ranks)}')
    if train % (steps * ranks) == 0:
        ways.append(f'"{MICRO}": {train // (steps * ranks)}')
    return "write " + ", or ".join(ways)


def _sequence_parallel(config: dict[str, Any]) -> int:
    size = value_at(config, "sequence_parallel_size", 1)
    return size if isinstance(size, int) and size > 0 else 1


def _whole_shards(config: dict[str, Any], setup: Setup) -> bool:
    return setup.ranks is None or setup.ranks % _sequence_parallel(config) == 0


def _data_parallel(config: dict[str, Any], setup: Setup) -> int | None:
    """Return the ranks among which a batch is split; None when they are not known."""
    if setup.ranks is None or (value_at(config, "tensor_parallel.autotp_size", 0) or 0) != 0:
        return None
    return setup.ranks // _sequence_parallel(config)
