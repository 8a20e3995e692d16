"""Gradients that a loop does not clear in each step, or clears without a step."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from ds_migrate.options import Options
from ds_migrate.rules.codes import Code
from plain_loops import HEADER, LOOP, blocked, body, convert, run

MADE = """
loader = DataLoader(data, batch_size=4, shuffle=True)
MAKE_MODEL
"""
ADDING_UP = {
    "nothing clears": LOOP.replace("    optimizer.zero_grad()\n", ""),
    "once an epoch": MADE
    + """
for epoch in range(2):
    optimizer.zero_grad()
    for x, y in loader:
        F.mse_loss(model(x), y).backward()
        optimizer.step()
""",
    "every second batch, and a step in each": MADE
    + """
def main(args):
    if args.train:
        for i, (x, y) in enumerate(loader):
            if i % 2 == 0:
                optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
""",
    "in the branch of another condition than that of the step": MADE
    + """
for i, (x, y) in enumerate(loader):
    if i % 2 == 0:
        optimizer.zero_grad()
    else:
        print(i)
    F.mse_loss(model(x), y).backward()
    if i % 4 > 1:
        optimizer.step()
""",
    "by the caller, before several steps": MADE
    + """
def epoch():
    for x, y in loader:
        F.mse_loss(model(x), y).backward()
        optimizer.step()

for _ in range(2):
    model.zero_grad()
    epoch()
""",
}
SKIPPING = {
    "continue": MADE
    + """
for x, y in loader:
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    if loss > 3:
        continue
    optimizer.step()
""",
    "return": MADE
    + """
def train_step(x, y):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    if loss > 3:
        return
    optimizer.step()

for x, y in loader:
    train_step(x, y)
""",
    "a loss that is not finite": MADE
    + """
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    loss.backward()
    if torch.isnan(loss):
        optimizer.zero_grad()
        continue
    optimizer.step()
    optimizer.zero_grad()
""",
    "an error that is caught": MADE
    + """
def train_step(x, y):
    LOSS_STEP

for x, y in loader:
    try:
        train_step(x, y)
    except RuntimeError:
        print("out of memory, batch skipped")
""",
}
PAIRED = {
    "cleared by the caller": MADE
    + """
def train_step(x, y):
    F.mse_loss(model(x), y).backward()
    optimizer.step()

for x, y in loader:
    optimizer.zero_grad()
    train_step(x, y)
""",
    "cleared behind the step, by a method": MADE
    + """
class Trainer:
    def clear(self):
        optimizer.zero_grad()

    def fit(self):
        for x, y in loader:
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            self.clear()

Trainer().fit()
""",
    "in the phase that steps": MADE
    + """
def epoch(phase):
    for x, y in loader:
        if phase == "train":
            model.train()
            optimizer.zero_grad()
        else:
            model.eval()
        loss = F.mse_loss(model(x), y)
        if phase == "train":
            loss.backward()
            optimizer.step()

epoch("train")
epoch("test")
""",
    "the process ends": MADE
    + """
import sys

for x, y in loader:
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    try:
        loss.backward()
    except RuntimeError:
        sys.exit(1)
    if not loss < 1e9:
        raise ValueError("diverged")
    optimizer.step()
""",
}

CLEARED_LATER = {
    "where the loop continues with the next batch by the condition of the step": MADE
    + """
for batch, (x, y) in enumerate(loader):
    updates = batch % 2 == 1
    F.mse_loss(model(x), y).backward()
    if updates:
        optimizer.step()
    if not updates:
        continue
    optimizer.zero_grad()
""",
    "where the other of two optimizers is there": """
generator, critic, head = Net(), Net(), Net()
of_generator = torch.optim.SGD(generator.parameters(), lr=0.1)
of_critic = torch.optim.SGD(critic.parameters(), lr=0.1)
of_head = torch.optim.SGD(head.parameters(), lr=0.1) if len(data) else None
for x, y in DataLoader(data, batch_size=4):
    of_critic.zero_grad()
    critic(x).mean().backward()
    of_critic.step()
    of_generator.zero_grad()
    if of_head is not None:
        of_head.zero_grad()
    (generator(x) + head(x)).mean().backward()
    of_generator.step()
    if of_head is not None:
        of_head.step()
""",
    "behind a backward pass that no step uses": MADE
    + """
for x, y in loader:
    STEP
for x, y in loader:
    model(x).mean().backward()
for x, y in loader:
    STEP
""",
}


@pytest.mark.parametrize("loop", CLEARED_LATER.values(), ids=CLEARED_LATER.keys())
def test_gradients_that_are_cleared_before_a_step_are_not_for_review(loop: str, tmp_path: Path) -> None:
    report = run(tmp_path, train=HEADER + loop)
    (result,) = report.files
    assert b"engine.step()" in (result.after or b"") and not list(report.findings(Severity.REVIEW))


@pytest.mark.parametrize("loop", ADDING_UP.values(), ids=ADDING_UP.keys())
def test_gradients_that_add_up_over_steps_still_do(loop: str, tmp_path: Path) -> None:
    report = run(tmp_path, train=HEADER + loop)
    (result,) = report.files
    assert result.after is not None
    text = result.after.decode()
    assert "match_torch(engine, keep_gradients=True)" in text
    assert '"zero_optimization": {"stage": 0}' in text
    assert text.count("zero_grad()") == loop.count("zero_grad()")
    assert [f.code for _, f in report.findings(Severity.REVIEW)] == ["DSM604"]


@pytest.mark.parametrize(
    "zero",
    [
        "p.grad = torch.zeros_like(p.grad)",
        "p.grad = torch.autograd.Variable(p.grad.data.new().resize_as_(p.grad.data).zero_())",
        "p.grad.data.zero_()",
    ],
)
def test_gradients_that_a_loop_sets_to_zero_are_cleared(zero: str, tmp_path: Path) -> None:
    loop = f"    for p in model.parameters():\n        if p.grad is not None:\n            {zero}\n"
    text = HEADER + LOOP.replace("    optimizer.zero_grad()\n", "") + loop
    report = run(tmp_path, train=text)
    after = (report.files[0].after or b"").decode()
    assert f"    engine.step()\n{loop}" in after and "keep_gradients=True" in after
    assert not list(report.findings(Severity.REVIEW))


def test_gradients_that_a_second_step_uses_alone_are_kept(tmp_path: Path) -> None:
    after = body(convert(tmp_path, HEADER + LOOP + "optimizer.step()\n"))
    assert "match_torch(engine, keep_gradients=True)" in after and "    optimizer.zero_grad()\n" in after


@pytest.mark.parametrize(
    ("clear", "stays"),
    [
        ("optimizer.zero_grad(set_to_none=False)", True),
        ("model.zero_grad(False)", True),
        ("optimizer.zero_grad(set_to_none=len(data) > 9)", True),
        ("optimizer.zero_grad(set_to_none=True)", False),
    ],
)
def test_gradients_that_are_set_to_zero_stay(clear: str, stays: bool, tmp_path: Path) -> None:
    """A step by a gradient of zero moves a parameter that no backward reached, by its momentum or decay."""
    after = body(convert(tmp_path, HEADER + LOOP.replace("optimizer.zero_grad()", clear)))
    assert (clear in after) is ("match_torch(engine, keep_gradients=True)" in after) is stays


@pytest.mark.parametrize("loop", SKIPPING.values(), ids=SKIPPING.keys())
def test_a_backward_that_no_step_uses_is_cleared_as_before(loop: str, tmp_path: Path) -> None:
    text = convert(tmp_path, HEADER + loop)
    assert '"managed_gradient_accumulation": False' in text
    assert "    optimizer.zero_grad()\n" in text
    assert "engine.backward(loss, scale_wrt_gas=False)" in text


@pytest.mark.parametrize("loop", PAIRED.values(), ids=PAIRED.keys())
def test_each_step_with_its_backward_and_zero_grad_is_the_engines(loop: str, tmp_path: Path) -> None:
    text = convert(tmp_path, HEADER + loop)
    assert '"zero_optimization": {"stage": 1}' in text
    assert "zero_grad" not in text


def test_an_accumulation_that_clears_before_its_first_micro_batch_is_none(tmp_path: Path) -> None:
    text = convert(
        tmp_path,
        HEADER
        + MADE
        + """
for i, (x, y) in enumerate(loader):
    if i % 2 == 0:
        optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    if i % 2 == 1:
        optimizer.step()
""",
    )
    assert "keep_gradients" not in text
    assert '"managed_gradient_accumulation": False' in text


def test_adding_up_is_refused_without_the_runtime(tmp_path: Path) -> None:
    loop = ADDING_UP["nothing clears"]
    message = "engine.step() clears the gradients that are used again here, and only match_torch() lets it keep them"
    assert ("DSM604", message) in blocked(tmp_path, HEADER + loop, Options(plain=True, runtime=False))


CLIP = """
def clip_gradient(optimizer, limit):
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                p.grad.data.clamp_(-limit, limit)


def clip_each(module, limit):
    for name, p in module.named_parameters():
        if p.grad is not None:
            norm = p.grad.data.norm(2)
            scale = limit / (norm + 1e-6)
            if scale < 1:
                p.grad.data.mul_(scale)


def clip_all(module, limit):
    found = [p for p in module.parameters() if p.grad is not None]
    total = 0.0
    for p in found:
        total += p.grad.norm(2).item() ** 2
    total = total ** 0.5
    for p in found:
        p.grad.mul_(limit / max(total, limit))


"""
NORM = """
def clip_by_norm(model, limit):
    total = 0
    for p in model.parameters():
        if p.requires_grad:
            total += p.grad.norm() ** 2
    total = torch.sqrt(total).item()
    for p in model.parameters():
        if p.requires_grad:
            p.grad.mul_(limit / max(total, limit))


"""
ALIKE = {
    "by their norm": "clip_by_norm(model, 0.1)",
    "clamp": "for p in model.parameters():\n        p.grad.data.clamp_(-1, 1)",
    "scale": "for p in model.parameters():\n        p.grad *= 0.5",
    "ranks": "for p in model.parameters():\n        p.grad.data /= float(dist.get_world_size())",
    "helper": "clip_gradient(optimizer, 0.1)",
    "an element": "model.fc.weight.grad[0] *= 0.5",
    "what is not finite": (
        "for p in model.parameters():\n        p.grad[torch.logical_not(torch.isfinite(p.grad))] = 0.0"
    ),
    "set to zero": "model.fc.weight.grad.data[:, 2:] = 0",
    "weights": "for p in model.parameters():\n        p.grad.data.add_(p.data, alpha=0.01)",
    "signs of weights": "for m in model.modules():\n        m.weight.grad.data.add_(0.1 * torch.sign(m.weight.data))",
    "other weights": (
        "for p, q in zip(model.parameters(), first.parameters()):\n        p.grad = p.grad + 0.1 * (p - q)"
    ),
    "products of weights": (
        "for p in model.parameters():\n        if len(p.shape) < 2:\n            continue\n"
        "        w = p.view(p.shape[0], -1)\n        off = 1.0 - torch.eye(w.shape[0], device=w.device)\n"
        "        p.grad.data += 0.1 * (torch.mm(w, w.t()) * off).mm(w).view(p.shape)"
    ),
    "masks": (
        "for name, p in model.named_parameters():\n        mask = p.data.abs().gt(0.1).float()\n"
        "        masks[name] = mask\n        p.grad.data = p.grad.data * masks[name]"
    ),
    "masks of NumPy": (
        "for p in model.parameters():\n        grad = p.grad.data.cpu().numpy()\n"
        "        grad = np.where(abs(p.data.cpu().numpy()) < 0.1, 0, grad)\n"
        "        p.grad.data = torch.from_numpy(grad).to(p.device)"
    ),
    "each norm": "clip_each(model, 0.3)",
    "the norm": "clip_all(model, 0.3)",
    "stacked norms": (
        "norm = torch.norm(torch.stack([p.grad.norm() for p in model.parameters()]))\n"
        "    for p in model.parameters():\n        p.grad /= norm.clamp(min=1.0)"
    ),
}
APART = {
    "noise": "for p in model.parameters():\n        p.grad.add_(torch.randn_like(p.grad))",
    "by the loss": "for p in model.parameters():\n        p.grad.mul_(loss.item())",
    "by an input's gradient": "for p in model.parameters():\n        p.grad.mul_(x.grad.norm())",
    "by a list": "for p in model.parameters():\n        p.grad.mul_(torch.stack([l for l in y]).mean())",
    "by a method": "for p in model.parameters():\n        p.grad.mul_(loss.detach().item())",
    "an element of the batch": "model.fc.weight.grad[:, x.argmax():] *= 0.5",
    "by an item of the batch": "limits = {}\n    limits[0] = loss\n    model.fc.weight.grad.mul_(limits[0])",
    "by what is added": "found = []\n    found.append(loss)\n    model.fc.weight.grad.mul_(torch.stack(found).mean())",
    "by a tensor that is changed": (
        "scale = model.fc.weight.clone()\n    scale.mul_(loss)\n    model.fc.weight.grad.mul_(scale)"
    ),
    "by a buffer": "for m in model.modules():\n        m.weight.grad.add_(m.running_mean)",
    "set": "model.fc.weight.grad = torch.ones(1, 4)",
}


def changing(line: str) -> str:
    return (
        HEADER
        + "import numpy as np\n\nfirst, masks = Net(), {}\n"
        + CLIP
        + NORM
        + LOOP.replace("    optimizer.step()", f"    {line}\n    optimizer.step()")
    )


@pytest.mark.parametrize("line", ALIKE.values(), ids=ALIKE.keys())
def test_a_change_that_is_the_same_on_all_ranks_acts_on_averaged_gradients(line: str, tmp_path: Path) -> None:
    text = convert(tmp_path, changing(line))
    changed = line.replace("optimizer,", "engine.optimizer,") if "engine.optimizer" in text else line
    assert f"    engine.backward(loss)\n    {changed}\n    engine.step()\n" in text
    assert '"zero_optimization": {"stage": 0}' in text


def test_gradients_that_a_function_uses_between_backward_and_step_are_cleared(tmp_path: Path) -> None:
    call = "    clip_by_norm(model, 0.1)\n"
    text = convert(tmp_path, HEADER + NORM + LOOP.replace("    optimizer.step()", f"{call}    optimizer.step()"))
    assert "zero_grad" not in text and "\nmatch_torch(engine)\n" in text
    late = HEADER + NORM + LOOP.replace("    optimizer.step()", f"    optimizer.step()\n{call}")
    assert "match_torch(engine, keep_gradients=True)" in convert(tmp_path, late)


def test_a_change_in_a_function_that_nothing_names_does_no_harm(tmp_path: Path) -> None:
    assert "engine.step()" in convert(tmp_path, HEADER + CLIP + LOOP)


@pytest.mark.parametrize("line", APART.values(), ids=APART.keys())
def test_a_change_that_may_differ_by_rank_is_refused(line: str, tmp_path: Path) -> None:
    assert ("DSM653", "gradients are changed between backward() and step()") in blocked(tmp_path, changing(line))


@pytest.mark.parametrize("line", ALIKE.values(), ids=ALIKE.keys())
def test_a_change_of_gradients_that_add_up_acts_on_averages(line: str, tmp_path: Path) -> None:
    text = changing(line).replace("for x, y in loader:", "for i, (x, y) in enumerate(loader):")
    text = text.replace("    optimizer.zero_grad()\n", "").replace(
        f"    {line}\n    optimizer.step()\n",
        f"    {line}\n    if i % 2:\n        optimizer.step()\n        optimizer.zero_grad()\n",
    )
    after = convert(tmp_path, text)
    assert "    engine.backward(loss, scale_wrt_gas=False)\n    engine.allreduce_gradients()\n" in after
    assert after.count("allreduce_gradients") == 1 and '"zero_optimization": {"stage": 0}' in after
    options = Options(plain=True, runtime=False)
    assert ("DSM653", "gradients are changed between backward() and step()") in blocked(tmp_path, text, options)


IMPORTANCE = """
    def importance(model):
        found = {}
        for x, y in DataLoader(data, batch_size=4):
            F.mse_loss(model(x), y).backward()
            for name, p in model.named_parameters():
                found[name] = p.grad.norm()
        return found


    def attack(model, x, y):
        x.requires_grad_()
        F.mse_loss(model(x), y).backward()
        return x + x.grad.sign()


    def compute(model, x, y):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return sum(p.grad.norm() for p in model.parameters())


    MAKE_MODEL
    BEFORE
    for x, y in DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        norm = compute(model, x, y)
        optimizer.step()
    """


def test_gradients_that_are_read_behind_the_backward_pass_of_a_helper_are_averaged_there(tmp_path: Path) -> None:
    after = convert(tmp_path, body(IMPORTANCE.replace("BEFORE", "x = attack(model, *data[:4])")))
    assert "    engine.allreduce_gradients()\n    return sum(p.grad.norm() for p in model.parameters())\n" in after


def test_clipping_behind_the_backward_pass_of_a_helper_acts_on_averaged_gradients(tmp_path: Path) -> None:
    clip = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    text = IMPORTANCE.replace("return sum(p.grad.norm() for p in model.parameters())", clip).replace("BEFORE", "")
    after = convert(tmp_path, body(text))
    assert f"    engine.backward(loss, scale_wrt_gas=False)\n    engine.allreduce_gradients()\n    {clip}\n" in after


STAGES = """
    class Stages(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 1)

        def first(self):
            return self.one.parameters()


    def train_one(stages):
        optimizer = torch.optim.SGD(PARAMETERS, lr=0.1)
        for x, y in DataLoader(data, batch_size=4, shuffle=True):
            optimizer.zero_grad()
            F.mse_loss(stages.one(x), x).backward()
            nn.utils.clip_grad_norm_(stages.one.parameters(), 1.0)
            optimizer.step()


    def train_two(stages):
        optimizer = torch.optim.SGD(stages.two.parameters(), lr=0.1)
        for x, y in DataLoader(data, batch_size=4, shuffle=True):
            optimizer.zero_grad()
            F.mse_loss(stages.two(stages.one(x)), y).backward()
            nn.utils.clip_grad_norm_(stages.two.parameters(), 1.0)
            optimizer.step()


    stages = Stages()
    train_one(stages)
    train_two(stages)
    """


@pytest.mark.parametrize("parameters", ["stages.one.parameters()", "stages.first()"])
def test_a_part_that_an_optimizer_holds_is_clipped_by_averaged_gradients(parameters: str, tmp_path: Path) -> None:
    after = convert(tmp_path, body(STAGES.replace("PARAMETERS", parameters)))
    for part in ("one", "two"):
        assert (
            f"engine.allreduce_gradients()\n        nn.utils.clip_grad_norm_(stages.{part}.parameters(), 1.0)" in after
        )


def test_gradients_that_no_step_uses_are_of_each_rank_s_share(tmp_path: Path) -> None:
    text = IMPORTANCE.replace("norm = compute(model, x, y)", "F.mse_loss(model(attack(model, x, y)), y).backward()")
    text = body(text.replace("BEFORE", "importance(model)"))
    (result,) = run(tmp_path, train=text).files
    reviews = [f for f in result.findings if f.severity is Severity.REVIEW and "share of the data" in f.message]
    lines = [text.splitlines()[f.line - 1].strip() for f in reviews if f.code == Code.PLAIN_BACKWARD]
    assert lines == ["found[name] = p.grad.norm()", "return sum(p.grad.norm() for p in model.parameters())"]


LIMITED = """
    def limit(parameters, value):
        for p in parameters:
            p.grad.data.clamp_(min=-value, max=value)


    a, b = Net(), Net()
    opt_a, opt_b = torch.optim.SGD(a.parameters(), lr=0.1), torch.optim.SGD(b.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=4, shuffle=True):
        opt_a.zero_grad()
        F.mse_loss(a(x), y).backward()
        limit(a.parameters(), 0.5)
        opt_a.step()
        opt_b.zero_grad()
        F.mse_loss(b(x), y).backward()
        limit(PARAMETERS, 0.5)
        opt_b.step()
    """


def test_a_helper_limits_the_averaged_gradients_of_the_engine_whose_parameters_it_is_given(tmp_path: Path) -> None:
    after = convert(tmp_path, body(LIMITED.replace("PARAMETERS", "b.parameters()")))
    assert "    a_engine.allreduce_gradients()\n    limit(a.parameters(), 0.5)\n" in after
    assert "    b_engine.allreduce_gradients()\n    limit(b.parameters(), 0.5)\n" in after


def test_a_limit_of_gradients_whose_engine_has_stepped_is_refused(tmp_path: Path) -> None:
    found = blocked(tmp_path, body(LIMITED.replace("PARAMETERS", "a.parameters()")))
    assert ("DSM653", "gradients are changed between backward() and step()") in found


CLIPPED = """
    import functools


    class Trainer:
        def __init__(self, model, config):
            self.model, self.config = model, config
            self.clip = {clip}
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def train(self, loader):
            for x, y in loader:
                {before}
                self.loss(x, y)
                self.clip(self.model.parameters(), max_norm=1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()

        def loss(self, x, y):
            F.mse_loss(self.model(x), y).backward()


    Trainer(Net(), {{"clip": "norm"}}).train(DataLoader(data, batch_size=4, shuffle=True))
    """


@pytest.mark.parametrize(
    "clip",
    [
        "functools.partial(nn.utils.clip_grad_norm_, norm_type=1)",
        "getattr(nn.utils, 'clip_grad_' + config['clip'] + '_')",
        "torch.load('clips.pt')[config['clip']]",
    ],
)
def test_gradients_are_averaged_before_a_function_that_may_clip_them(tmp_path: Path, clip: str) -> None:
    text = convert(tmp_path, body(CLIPPED.format(clip=clip, before="pass")))
    assert "            self.engine.allreduce_gradients()\n            self.clip(self.model" in text


REGULARIZED = """
    import argparse

    def regularize(model, strength):
        for p in model.parameters():
            w = p.view(p.shape[0], -1)
            p.grad.data += strength * torch.mm(torch.mm(w, w.t()), w).view(p.shape)

    def scale(model, strength):
        for p in model.parameters():
            p.grad *= strength / p.grad.norm()

    def pair(first, second, options):
        def train(x, y):
            first.optimizer.zero_grad()
            F.mse_loss(first(x), y).backward()
            CHANGE(first, options["strength"])
            first.optimizer.step()
            second.optimizer.zero_grad()
            F.mse_loss(second(x), y).backward()
            CHANGE(second, options["strength"])
            second.optimizer.step()
        return train

    class Fitted(Net):
        def __init__(self):
            super().__init__()
            self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1)

    def main(options):
        train = pair(Fitted(), Fitted(), options)
        for x, y in DataLoader(data, batch_size=4, shuffle=True):
            train(x, y)

    parser = argparse.ArgumentParser()
    parser.add_argument("--strength", type=float, default=0.01)
    main(vars(parser.parse_args()))
    """


def test_what_all_ranks_add_to_gradients_needs_no_averages(tmp_path: Path) -> None:
    after = convert(tmp_path, body(REGULARIZED.replace("CHANGE", "regularize")))
    assert "engine_of(first.optimizer).step()" in after and "allreduce_gradients" not in after


def test_what_gradients_are_multiplied_by_is_made_of_averaged_ones(tmp_path: Path) -> None:
    after = convert(tmp_path, body(REGULARIZED.replace("CHANGE", "scale")))
    for name in ("first", "second"):
        line = f"engine_of({name}.optimizer).allreduce_gradients()\n        scale({name}, options"
        assert line in after


def test_an_option_that_each_rank_may_get_its_own_of_changes_no_gradients(tmp_path: Path) -> None:
    text = body(REGULARIZED.replace("CHANGE", "regularize").replace("strength", "rank"))
    assert ("DSM653", "gradients are changed between backward() and step()") in blocked(tmp_path, text)


def test_an_unknown_function_that_takes_parameters_before_the_backward_pass_is_no_clipping(tmp_path: Path) -> None:
    before = "self.config['count'](self.model.parameters())"
    text = convert(tmp_path, body(CLIPPED.format(clip="nn.utils.clip_grad_norm_", before=before)))
    assert text.count("allreduce_gradients()") <= 1


def test_what_is_inserted_takes_the_comment_below_an_if_that_has_one_too(tmp_path: Path) -> None:
    text = """
        MAKE_MODEL
        for i, (x, y) in enumerate(DataLoader(data, batch_size=4, shuffle=True)):
            F.mse_loss(model(x), y).backward()
            # each second batch
            if i % 2:
                # clip by value
                nn.utils.clip_grad_value_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        """
    lines = "    # each second batch\n    if i % 2:\n        # clip by value\n        engine.allreduce_gradients()\n"
    assert lines in convert(tmp_path, body(text))


PRIVATE = """
    import types


    class Private:
        def __init__(self, model):
            self.model = model

        def attach(self, optimizer):
            def step(self, closure=None):
                self.private.clip()
                self.first_step(closure)

            optimizer.private = self
            optimizer.first_step = optimizer.step
            optimizer.step = types.MethodType(step, optimizer)

        def clip(self):
            for p in self.model.parameters():
                p.grad = p.samples.mean(0)


    loader = DataLoader(data, batch_size=4)
    MAKE_MODEL
    Private(model).attach(optimizer)
    for x, y in loader:
        STEP
    """


def test_an_optimizer_whose_step_is_replaced_is_refused(tmp_path: Path) -> None:
    message = "step() of an optimizer is replaced here, and may change gradients that ranks have averaged"
    assert ("DSM653", message) in blocked(tmp_path, body(PRIVATE))


BY_HAND = """
    other, model = Net(), Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=4):
        STEP
        MOVED.zero_grad()
        F.mse_loss(MOVED(x), y).backward()
        MOVES
    """
LOOPED = "for p in MOVED.parameters():\n            if p.grad is not None:\n                p.data -= 0.1 * p.grad"
AT_ONCE = (
    "moves = torch.cat([p.grad.view(-1) for p in MOVED.parameters()])\n"
    "        torch.nn.utils.vector_to_parameters(moves, MOVED.parameters())"
)


@pytest.mark.parametrize(
    ("moves", "mean"),
    [(LOOPED, "p.data -= mean_over_ranks(0.1 * p.grad)"), (AT_ONCE, "vector_to_parameters(mean_over_ranks(moves), ")],
)
def test_weights_of_no_engine_move_by_the_mean_of_their_gradients(moves: str, mean: str, tmp_path: Path) -> None:
    after = convert(tmp_path, body(BY_HAND.replace("MOVES", moves).replace("MOVED", "other")))
    assert mean in after and "rank_0_decides" not in after and "allreduce_gradients" not in after


def test_gradients_behind_the_last_step_of_a_round_are_averaged_before_they_move_weights(tmp_path: Path) -> None:
    after = convert(tmp_path, body(BY_HAND.replace("MOVES", LOOPED).replace("MOVED", "model")))
    assert "    engine.allreduce_gradients()\n    for p in model.parameters():" in after
    assert "mean_over_ranks" not in after


KEPT_TOGETHER = """
    class Trainer:
        def __init__(self, model, optimizer, clip=1.0):
            self.model = model.to("cuda")
            self.optimizer = optimizer
            self.clip = clip

        def fit(self, loader):
            for x, y in loader:
                self.optimizer.zero_grad()
                F.mse_loss(self.model(x), y).backward()
                if self.clip:
                    nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
                self.optimizer.step()


    def train():
        model = Net()
        optimizer = torch.optim.Adam(model.parameters())
        Trainer(model, optimizer).fit(DataLoader(data, batch_size=4))


    def fine_tune():
        MAKE_MODEL
        Trainer(model, optimizer).fit(DataLoader(data, batch_size=2))
    """


def test_a_trainer_clips_just_what_each_of_its_optimizers_holds(tmp_path: Path) -> None:
    after = convert(tmp_path, body(KEPT_TOGETHER))
    averaged = "            self.engine.allreduce_gradients()\n            if self.clip:\n"
    assert averaged in after and after.count("match_torch(") == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("optimizer = torch.optim.Adam(model.", "other = Net()\n    optimizer = torch.optim.Adam(other."),
        ("def fit(self, loader):\n", "def fit(self, loader):\n        self.model = self.model.module\n"),
    ],
)
def test_a_trainer_that_may_clip_something_else_is_refused(old: str, new: str, tmp_path: Path) -> None:
    assert [code for code, _ in blocked(tmp_path, body(KEPT_TOGETHER).replace(old, new))] == [Code.PLAIN_CLIPPING]


LOGGERS = """
    loggers = {}


    class Logger:
        def log_grads(self, model):
            print([p.grad.norm().item() for p in model.parameters()])


    def init(names):
        for name in names:
            loggers[name] = Logger()


    def log_grads(model, name="train"):
        loggers[name].log_grads(model)


    init(["train", "val"])
    MAKE_MODEL
    for i, (x, y) in enumerate(DataLoader(data, batch_size=4)):
        F.mse_loss(model(x), y).backward()
        if i % 2:
            log_grads(model)
            optimizer.step()
            optimizer.zero_grad()
    """


def test_an_object_in_a_dict_by_a_variable_key_reads_averaged_gradients(tmp_path: Path) -> None:
    after = convert(tmp_path, body(LOGGERS))
    assert "        engine.allreduce_gradients()\n        log_grads(model)\n" in after


def test_gradients_that_a_method_sets_by_hand_are_named_as_the_reason(tmp_path: Path) -> None:
    reptile = """
    class Slow(Net):
        def point_to(self, fast):
            for p, other in zip(self.parameters(), fast.parameters()):
                p.grad = torch.zeros_like(p)
                p.grad.data.add_(p.data - other.data)


    def learn(net, optimizer):
        for x, y in DataLoader(data, batch_size=4):
            optimizer.zero_grad()
            F.mse_loss(net(x), y).backward()
            optimizer.step()


    slow, fast = Slow(), Net()
    slow_optimizer = torch.optim.SGD(slow.parameters(), lr=1.0)
    optimizer = torch.optim.Adam(fast.parameters())
    for _ in range(4):
        learn(fast, optimizer)
        slow.point_to(fast)
        slow_optimizer.step()
    """
    messages = [message for _, message in blocked(tmp_path, body(reptile))]
    assert messages == ["step() uses gradients that are set by hand, without backward()"]


def test_backward_before_the_engine_is_made_is_torchs(tmp_path: Path) -> None:
    before = """\
other = Net()
F.mse_loss(other(data[:4][0]), data[:4][1]).backward()
norms = [p.grad.norm() for p in other.parameters()]
"""
    read = LOOP.replace("    optimizer.step()", "    norm = model.fc.weight.grad.norm()\n    optimizer.step()")
    after = convert(tmp_path, HEADER + before + read)
    assert before in after
    assert "engine.allreduce_gradients()\n    norm = " in after


OPTIMIZER_WITH_NOISE = """
    class Noisy(torch.optim.Optimizer):
        def changed(self, group):
            for p in group:
                p.grad.add_(torch.randn_like(p.grad))
                yield p

        def step(self, closure=None):
            for group in self.param_groups:
                for p in self.changed(group["params"]):
                    p.data.add_(p.grad, alpha=-0.1)


    model = Net()
    optimizer = Noisy(model.parameters(), {})
    for x, y in DataLoader(data, batch_size=4):
        STEP
    """


def test_gradients_that_the_step_of_an_optimizer_makes_are_no_change_before_it(tmp_path: Path) -> None:
    text = body(OPTIMIZER_WITH_NOISE)
    assert "    engine.step()\n" in convert(tmp_path, text)
    called = text.replace(
        "    optimizer.step()\n", "    list(optimizer.changed(model.parameters()))\n    optimizer.step()\n"
    )
    ((code, message),) = blocked(tmp_path, called)
    assert code == Code.PLAIN_GRADIENTS and message == "gradients are changed between backward() and step()"


@pytest.mark.parametrize(("second", "is_cleared"), [("not first", True), ("first", False), ("other", False)])
def test_gradients_are_cleared_by_a_condition_and_its_opposite(second: str, is_cleared: bool, tmp_path: Path) -> None:
    text = f"""
        def train(loader, model, optimizer, first=False, other=True):
            for x, y in loader:
                if first:
                    optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                if {second}:
                    optimizer.zero_grad()
                loss.backward()
                optimizer.step()


        model = Net()
        train(DataLoader(data, batch_size=4), model, torch.optim.SGD(model.parameters(), lr=0.1))
        """
    report = run(tmp_path, train=body(text))
    messages = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    assert (not any("no zero_grad() stands" in message for message in messages)) is is_cleared


@pytest.mark.parametrize("norm", ["norm(model)", "sum(p.grad.norm() ** 2 for p in model.parameters()) ** 0.5"])
def test_gradients_that_are_read_behind_their_clipping_are_clipped_there(norm: str, tmp_path: Path) -> None:
    text = f"""
        def norm(model):
            return sum(p.grad.norm() ** 2 for p in model.parameters()) ** 0.5


        limit = 0.1
        MAKE_MODEL
        for x, y in DataLoader(data, batch_size=4):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            before = norm(model)
            if limit != 0.0:
                nn.utils.clip_grad_norm_(model.parameters(), limit)
                after = {norm}
                print(after / before)
            optimizer.step()
        """
    after = convert(tmp_path, body(text))
    assert '"gradient_clipping": 0.0,' in after
    assert "        nn.utils.clip_grad_norm_(model.parameters(), limit)\n        after = " in after


def test_clipping_that_raises_an_error_where_gradients_are_nan_stays(tmp_path: Path) -> None:
    """The engine clipped without it, and trained on with NaN."""
    text = """
        MAKE_MODEL
        for x, y in DataLoader(data, batch_size=4):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=STRICT)
            optimizer.step()
        """
    after = {strict: convert(tmp_path, body(text.replace("STRICT", strict))) for strict in ("True", "False")}
    assert "clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)\n" in after["True"]
    assert '"gradient_clipping": 0.0,' in after["True"]
    assert "clip_grad_norm_" not in after["False"] and '"gradient_clipping": 1.0,' in after["False"]


AGENT_FILES = {
    "actor": """
        class Actor:
            def __init__(self):
                self.network = nn.Linear(4, 2)
                self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1)

            def train(self, states, critic):
                self.optimizer.zero_grad()
                loss = self.loss(states, critic)
                loss.backward()
                self.optimizer.step()

            RATED
            def loss(self, states, critic):
                return -critic.value(self.network(states)).mean()
        """,
    "critic": """
        class Critic:
            def __init__(self):
                self.value = nn.Linear(2, 1)
                self.optimizer = torch.optim.SGD(self.value.parameters(), lr=0.1)

            def train(self, actions, rewards):
                self.optimizer.zero_grad()
                F.mse_loss(self.value(actions), rewards).backward()
                self.optimizer.step()
        """,
    "agent": """
        from actor import Actor
        from critic import Critic

        actor, critic = Actor(), Critic()
        for step in range(5):
            critic.train(torch.randn(8, 2), torch.randn(8, 1))
            actor.train(torch.randn(8, 4), critic)
        """,
}


@pytest.mark.parametrize(("decorator", "is_kept"), [("", True), ("@torch.no_grad()", False)])
def test_gradients_that_the_loss_of_another_file_leaves_in_a_model_are_cleared(
    decorator: str, is_kept: bool, tmp_path: Path
) -> None:
    """A method that computes the actor's loss ran the critic: its gradients were in the critic's next step."""
    report = run(tmp_path, **{name: body(text.replace("RATED", decorator)) for name, text in AGENT_FILES.items()})
    after = {file.path.name: (file.after or b"").decode() for file in report.files}
    assert "engine.step()" in after["critic.py"]
    assert ("self.optimizer.zero_grad()" in after["critic.py"]) == is_kept
