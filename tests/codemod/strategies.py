"""Whole trials made of the idioms of real ones: models, optimizers and who owns what, schedules, clipping, batches.

``build`` asks a function for every choice, so that Hypothesis can make them (``trials()``) and a seeded random number
generator too (``drawn(seed)``). Every trial trains on a CPU in a second.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

Choose = Callable[[Sequence[Any]], Any]

CONFIG = """\
name: generated
entrypoint: model_def:MyTrial
hyperparameters:
  global_batch_size: 4
  lr: 0.05
  clip: 0.3
searcher:
  name: single
  metric: validation_loss
  max_length:
    batches: 14
"""

# Import lines; how the file spells the names below determined.pytorch.
IMPORTS = [
    ("from determined.pytorch import DataLoader, LRScheduler, PyTorchTrial, PyTorchTrialContext, TorchData", ""),
    (
        "from determined.pytorch import (\n    DataLoader,  # note: loads\n    LRScheduler,\n    PyTorchTrial,\n"
        "    PyTorchTrialContext,\n    TorchData,\n)",
        "",
    ),
    ("from determined import pytorch", "pytorch."),
    ("import determined.pytorch as det_torch", "det_torch."),
    ("import determined as det\nimport determined.pytorch", "det.pytorch."),
]
OWNERSHIP = ["own", "joint", "groups", "parts", "teacher"]
OPTIMIZERS = [
    "torch.optim.SGD({}, lr=self.{context}.get_hparam('lr'), momentum=0.9)",
    "torch.optim.Adam({}, lr=0.01)",
    "torch.optim.AdamW({}, lr=0.01, weight_decay=0.1)",
]
MODES = ["STEP_EVERY_EPOCH", "STEP_EVERY_BATCH", "STEP_EVERY_OPTIMIZER_STEP", "MANUAL_STEP"]
SCHEDULES = [
    "torch.optim.lr_scheduler.StepLR({}, 2, gamma=0.5)",
    "torch.optim.lr_scheduler.ExponentialLR({}, gamma=0.9)",
]
CLIPS = [
    "",
    "clip_grads=lambda params: torch.nn.utils.clip_grad_norm_(params, 0.2)",
    "lambda params: torch.nn.utils.clip_grad_norm_(params, self.{context}.get_hparam('clip'))",
    "clip_grads=lambda params: torch.nn.utils.clip_grad_value_(params, 0.01)",
    "clip_grads=self.clip",
]
# In a call's place: what an engine cannot do, so that the trial must be left alone.
POISONS = [
    ("self.{context}.backward(loss_0)", "self.{context}.backward(loss_0, gradient=torch.ones(()))"),
    ("self.{context}.backward(loss_0)", "self.{context}.backward(loss_0, create_graph=True)"),
    ("self.{context}.step_optimizer(", "self.{context}.step_optimizer(*(), "),
    ("self.{context} = {context}", "self.{context} = {context}\n        self.size = self.{context}._slots_per_trial"),
]
LAYOUTS: dict[str, Callable[[str], bytes]] = {
    "LF": lambda text: text.encode(),
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "BOM": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "tabs": lambda text: text.replace("    ", "\t").encode(),
    "two spaces": lambda text: text.replace("    ", "  ").encode(),
    "no final newline": lambda text: text.rstrip("\n").encode(),
}

ROWS = '''\
class Rows( torch.utils.data.Dataset ):
    """Rows of a table;  spaced  as its author liked."""

    def __init__(self,count):
        generator=torch.Generator().manual_seed( count )
        self.x = torch.randn(count,4,generator=generator); self.y = self.x.sum(1, keepdim=True) .tanh()

    def __len__(self): return len( self.x )

    def __getitem__(self, index):
        return {}


class Net(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.inner, self.outer=nn.Linear( 4,5 ),nn.Linear( 5,outputs )

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)))
'''


@dataclass(frozen=True)
class Trial:
    """``source`` as bytes of the layout; ``notes``: lines that no rule has a reason to touch; ``poisoned``: it holds
    what an engine cannot do."""

    source: bytes
    notes: tuple[str, ...]
    poisoned: bool = False

    def __repr__(self) -> str:
        return self.source.decode("utf-8-sig").replace("\r\n", "\n")


@dataclass
class _Writer:
    """Lines of the trial, with comments, blank lines and statements of no concern between them."""

    choose: Choose
    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def put(self, depth: int, *texts: str) -> None:
        for text in texts:
            end = "" if text.endswith(("(", ",", "{")) else self.choose(["", "", "", "  # note: beside"])
            self.lines.append("    " * depth + text + (f"{end} {len(self.lines)}" if end else ""))

    def noise(self, depth: int) -> None:
        number = len(self.notes)
        kind = self.choose(["", "", "", "blank", "comment", "statement"])
        if kind == "blank":
            self.lines.append("")
        elif kind:
            text = f"# note {number}: 'quoted'  twice" if kind == "comment" else f"note_{number} = ( {number},'x' )"
            self.notes.append(text)
            self.lines.append("    " * depth + text)


def build(choose: Choose, ownership: str = "", poisoned: bool = False, layout: str = "LF") -> Trial:
    """One trial. ``ownership`` fixes that choice."""
    imports, prefix = choose(IMPORTS)
    context = choose(["context", "context", "trial_context", "ctx"])
    ownership = ownership or choose(OWNERSHIP)
    count = {"parts": 1, "teacher": 2}.get(ownership) or choose([1, 2, 3] if ownership == "own" else [2, 3])
    models = [choose([f"model_{i}", f"net{'ABC'[i]}"]) for i in range(count)]
    optimizers = _owned(ownership, models)
    named = choose([True, False])
    out = _Writer(choose)
    _head(out, imports, named)
    out.put(0, f"class MyTrial({prefix}PyTorchTrial):")
    if choose([True, False]):
        out.lines.append('    """A PyTorchTrial: wrap_model, wrap_optimizer, step_optimizer."""')
    modes = _init(out, prefix, context, models, optimizers)
    _train(out, prefix, context, models, optimizers, ownership, modes, named)
    _evaluate(out, context, models, ownership, named)
    for kind, rows in (("training", 24), ("validation", 8)):
        out.lines.append("")
        out.put(1, f"def build_{kind}_data_loader(self):")
        out.noise(2)
        size = f"batch_size=self.{context}.get_per_slot_batch_size()"
        out.put(2, f"return {prefix}DataLoader(Rows({rows}), {size})")
    text = "\n".join(out.lines) + "\n"
    if poisoned:
        old, new = (part.replace("{context}", context) for part in choose(POISONS))
        text = text.replace(old, new)
    return Trial(LAYOUTS[layout](text), tuple(out.notes), poisoned)


def _owned(ownership: str, models: list[str]) -> dict[str, str]:
    """The parameters of each optimizer, by its name."""
    first = f"self.{models[0]}"
    if ownership == "own":
        return {f"opt_{i}": f"self.{model}.parameters()" for i, model in enumerate(models)}
    if ownership == "joint":
        chained = ", ".join(f"self.{model}.parameters()" for model in models)
        return {"optimizer": f"itertools.chain({chained})"}
    if ownership == "groups":
        groups = ", ".join(f"{{'params': self.{m}.parameters(), 'weight_decay': 0.0{i}}}" for i, m in enumerate(models))
        return {"optimizer": f"[{groups}]"}
    if ownership == "parts":
        return {"opt_in": f"{first}.inner.parameters()", "opt_out": f"{first}.outer.parameters()"}
    return {"optimizer": f"{first}.parameters()"}


def _head(out: _Writer, imports: str, named: bool) -> None:
    if out.choose([True, False]):
        out.lines += ['"""Trains with PyTorchTrial."""', ""]
    out.lines += ["import itertools", *out.choose([[], ["from typing import Any, Dict, Tuple, cast"]]), ""]
    out.lines += ["import torch"]
    out.lines += [*out.choose([[], ["import torch.nn.functional as F"]]), *imports.split("\n"), "from torch import nn"]
    out.lines += ["", ""]
    out.noise(0)
    item = '{"x": self.x[index], "y": self.y[index]}' if named else "self.x[index], self.y[index]"
    rows = ROWS.format(item).rstrip("\n").split("\n")
    out.notes += [line.strip() for line in rows if line.strip()]
    out.lines += [*rows, "", ""]


def _init(out: _Writer, prefix: str, context: str, models: list[str], optimizers: dict[str, str]) -> list[str]:
    """Returns the modes of the schedules, one for each that there is."""
    choose = out.choose
    annotation = choose([f": {prefix}PyTorchTrialContext", f': "{prefix}PyTorchTrialContext"'])
    out.put(1, f"def __init__(self, {context}{annotation}) -> None:")
    out.put(2, f"self.{context} = {context}")
    receiver = choose([context, f"self.{context}"])
    for i, model in enumerate(models):
        out.noise(2)
        size = 1 if i == len(models) - 1 else 4
        net = f"Net({size})"
        shape = choose(["inline", "name", "rebinding", "lines"])
        if shape == "inline":
            out.put(2, f"self.{model} = {receiver}.wrap_model({net})")
        elif shape == "name":
            out.put(2, f"net_{i} = {net}", f"self.{model} = {receiver}.wrap_model(model=net_{i})")
        elif shape == "rebinding":
            out.put(2, f"self.{model} = {net}", f"self.{model} = {receiver}.wrap_model(self.{model})")
        else:
            out.put(2, f"self.{model} = {receiver}.wrap_model(", f"    {net},  # note: {i}", ")")
    for name, params in optimizers.items():
        out.noise(2)
        made = choose(OPTIMIZERS).replace("{context}", context).replace("{}", params)
        if choose([True, False]):
            out.put(2, f"self.{name} = {receiver}.wrap_optimizer({made})")
        else:
            out.put(2, f"raw_{name} = {made}", f"self.{name} = {receiver}.wrap_optimizer(raw_{name})")
    modes = []
    for name in optimizers:
        mode = choose(["", "", *MODES])
        if not mode:
            continue
        frequency = "" if mode == "MANUAL_STEP" else choose(["", ", frequency=2"])
        made = choose(SCHEDULES).format(f"self.{name}")
        wrap = f"{receiver}.wrap_lr_scheduler({made}, step_mode={prefix}LRScheduler.StepMode.{mode}{frequency})"
        out.put(2, f"self.scheduler_{name} = {wrap}")
        if mode == "MANUAL_STEP":
            modes.append(name)
    out.put(2, "self.clip = lambda params: torch.nn.utils.clip_grad_norm_(params, 0.4)")
    out.noise(2)
    return modes


def _train(
    out: _Writer, prefix: str, context: str, models: list[str], optimizers: dict[str, str], ownership: str,
    manual: list[str], named: bool,
) -> None:  # fmt: skip
    choose = out.choose
    annotation = choose(["", f": {prefix}TorchData"])
    out.lines.append("")
    out.put(1, f"def train_batch(self, batch{annotation}, epoch_idx: int, batch_idx: int):")
    if choose([True, False]):
        out.lines.append('        """One step."""')
    out.noise(2)
    _read(out, named)
    out.noise(2)
    clears = choose([False, False, True])
    for i, name in enumerate(optimizers):
        if clears:
            out.put(2, f"self.{name}.zero_grad()")
        out.put(2, f"loss_{i} = {_loss(models, ownership)}")
        out.noise(2)
        out.put(2, f"self.{context}.backward(loss_{i})")
        clip = choose(CLIPS).replace("{context}", context)
        step = f"self.{context}.step_optimizer(self.{name}{', ' if clip else ''}{clip})"
        if choose([False, False, True]):
            out.put(2, f"if batch_idx % {i + 2} == 0:")
            out.put(3, step)
        else:
            out.put(2, step)
    for name in manual:
        out.put(2, f"self.scheduler_{name}.step()")
    out.noise(2)
    out.put(2, 'return {"loss": loss_0}')


def _read(out: _Writer, named: bool) -> None:
    shapes = (
        [['x, y = batch["x"], batch["y"]'], ['x = batch["x"]', 'y = batch["y"]'],
         ["batch = {k: v for k, v in batch.items()}", 'x, y = batch["x"], batch["y"]']]
        if named
        else [["x, y = batch"], ["(x, y) = batch"], ["x, y = batch[0], batch[1]"], ["batch = tuple(t for t in batch)",
              "x, y = batch"], ["assert len(batch) == 2", "x, y = batch"]]
    )  # fmt: skip
    out.put(2, *out.choose(shapes))


def _loss(models: list[str], ownership: str) -> str:
    """Through all models in turn; a teacher looks on."""
    value = "x"
    for model in models[:1] if ownership == "teacher" else models:
        value = f"self.{model}({value})"
    if ownership != "teacher":
        return f"nn.functional.mse_loss({value}, y)"
    return f"nn.functional.mse_loss({value}.mean(1), self.{models[1]}(x).detach().squeeze(1))"


def _evaluate(out: _Writer, context: str, models: list[str], ownership: str, named: bool) -> None:
    loss = _loss(models, ownership)
    out.lines.append("")
    kind = out.choose(["batch", "batch, batch_idx: int", "whole"])
    if kind != "whole":
        out.put(1, f"def evaluate_batch(self, {kind}):")
        out.noise(2)
        _read(out, named)
        out.put(2, f'return {{"validation_loss": {loss}}}')
        return
    out.put(1, "def evaluate_full_dataset(self, data_loader):")
    out.put(2, "losses = []", "for batch in data_loader:")
    out.put(3, f"batch = self.{context}.to_device(batch)")
    out.put(3, 'x, y = batch["x"], batch["y"]' if named else "x, y = batch", f"losses.append({loss}.item())")
    out.put(2, 'return {"validation_loss": sum(losses) / len(losses)}')


@st.composite
def trials(draw: st.DrawFn, poisoned: bool = False) -> Trial:
    """Any trial in any layout."""
    return build(lambda options: draw(st.sampled_from(options)), "", poisoned, draw(st.sampled_from(sorted(LAYOUTS))))


def drawn(seed: int, ownership: str) -> Trial:
    """The trial of a seed."""
    return build(random.Random(seed).choice, ownership)
