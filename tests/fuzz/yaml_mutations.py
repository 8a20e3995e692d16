"""Mutations of experiment configs and DeepSpeed configs."""

from __future__ import annotations

import json
from random import Random

VALUES = [
    "!!python/object/apply:os.system ['true']", "&a [*a]", "*missing", "<<: *x", "{a: {b: {c: 1}}}", "[[[[1]]]]", "~",
    "1e999", "0x7fffffffffffffffffffff", "-0", ".nan", "2001-01-01", "yes", "'it''s'", '"\\u0000"', "|\n    text\n",
    ">-\n    folded\n", "? complex\n: key", "{type: const, val: 3}", "{type: int, minval: 1, maxval: 4}", "", "0", "-3",
    "2.5", "true", "model_def:MyTrial", "python3 -m determined.launch.torch_distributed -- python3 train.py", "1_000",
    "!!binary aGk=", "!unknown x", "0o14", "1:30:00", "\"multi\n  line\"", "é\u2028é",
]  # fmt: skip
KEYS = [
    "entrypoint", "hyperparameters", "global_batch_size", "optimizations", "aggregation_frequency", "searcher",
    "max_length", "batches", "records_per_epoch", "min_validation_period", "resources", "slots_per_trial",
    "deepspeed_config", "average_aggregated_gradients", "environment", "<<", "scheduling_unit", "data", "1", "null",
]  # fmt: skip


def mutated_yaml(text: str, random: Random) -> bytes:
    """Return the bytes of a config with one to four mutations."""
    for _ in range(random.choice([1, 1, 2, 3, 4])):
        text = _mutated_once(text, random)
    encoding = random.choice(["utf-8"] * 8 + ["utf-16", "utf-8-sig", "latin-1"])
    return text.encode(encoding, "replace")


def _mutated_once(text: str, random: Random) -> str:
    lines = text.split("\n")
    i = random.randrange(len(lines))
    depth = len(lines[i]) - len(lines[i].lstrip())
    kind = random.choice(["value", "value", "key", "gone", "twice", "indent", "line", "cut", "layout", "deep", "many"])
    if kind == "value" and ":" in lines[i]:
        lines[i] = f"{lines[i].partition(':')[0]}: {random.choice(VALUES)}"
    elif kind == "key":
        lines.insert(i, f"{' ' * depth}{random.choice(KEYS)}: {random.choice(VALUES)}")
    elif kind == "gone":
        del lines[i]
    elif kind == "twice":
        lines.insert(i, lines[i])
    elif kind == "indent":
        lines[i] = random.choice(["  ", "\t", "- "]) + lines[i]
    elif kind == "line":
        lines.insert(i, random.choice(["---", "...", "# ds-migrate: skip", "%YAML 1.1", "\x00", "\ufeff", "- a", "}"]))
    elif kind == "cut":
        return text[: random.randrange(len(text) + 1)]
    elif kind == "layout":
        return random.choice([text.replace("\n", "\r\n"), text.replace("\n", "\n\n"), "{" + text + "}", text * 2])
    elif kind == "deep":
        lines.insert(i, f"deep: {'[' * random.choice([5, 90, 2000])}")
    elif kind == "many":
        lines += [f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9) if n else 1}]" for n in range(random.choice([3, 12]))]
    return "\n".join(lines)


def mutated_json(random: Random) -> bytes:
    """Return the bytes of a DeepSpeed config of any quality."""
    document: dict[str, object] = {
        random.choice(["gradient_clipping", "zero_optimization", "train_batch_size", "scheduler", "fp16", "x"]): (
            random.choice([0.0, 1, None, [], {}, {"stage": 3}, {"stage": "auto"}, "auto", True, 1e999, "é\u2028"])
        )
        for _ in range(random.randrange(4))
    }
    text = json.dumps(document, indent=random.choice([None, 2, 4]))
    kind = random.choice(["whole", "whole", "cut", "deep", "list", "bytes", "comment", "twice"])
    if kind == "cut":
        text = text[: random.randrange(len(text) + 1)]
    elif kind == "deep":
        text = "[" * 100_000
    elif kind == "list":
        text = f"[{text}]"
    elif kind == "comment":
        text = f"// no\n{text}"
    elif kind == "twice":
        text = '{"gradient_clipping": 1, "gradient_clipping": 2}'
    data = text.encode(random.choice(["utf-8", "utf-8", "utf-16", "utf-8-sig"]))
    return data + b"\xff" if kind == "bytes" else data
