"""backward, step_optimizer, clipping, zero_grad and mixed precision in every shape."""

from __future__ import annotations

import json
from pathlib import Path

import examples
import pytest
from idiom_case import Idiom, assert_lines, idioms

HEAD = "def train_batch(self, batch, epoch_idx, batch_idx):\n    inputs, targets = batch\n"
LOSS = "loss = self.criterion(self.model(inputs), targets)"
BACKWARD = "self.context.backward(loss)"
STEP = "self.context.step_optimizer(self.optimizer)"
RETURN = 'return {"loss": loss}'
GATE = "if self.context.is_gradient_accumulation_boundary():"
PARAMS = '[p for group in self.optimizer.param_groups for p in group["params"]]'
OTHER_PARAMS = '[param for group in self.optimizer.param_groups for param in group["params"]]'  # where p is taken


def train(*lines: str) -> str:
    """``train_batch`` with these lines between the unpack and the return."""
    return HEAD + "".join(f"    {line}\n" for line in (*lines, RETURN))


def with_init(*lines: str) -> str:
    return examples.METHODS["__init__"] + "".join(f"    {line}\n" for line in lines) + "\n"


BACKWARDS = {
    "a name": Idiom(train(LOSS, BACKWARD, STEP), ("self.model.backward(loss)", "self.model.step()")),
    "keyword": Idiom(train(LOSS, "self.context.backward(loss=loss)", STEP), ("self.model.backward(loss=loss)",)),
    "a subscript": Idiom(
        train(f"out = {{'loss': {LOSS[7:]}}}", "self.context.backward(out['loss'])", STEP, "loss = out['loss']"),
        ("self.model.backward(out['loss'])",),
    ),
    "arithmetic": Idiom(
        train(LOSS, "self.context.backward(0.5 * loss + loss)", STEP), ("self.model.backward(0.5 * loss + loss)",)
    ),
    "a call": Idiom(
        train(LOSS, "self.context.backward(torch.sum(loss))", STEP), ("self.model.backward(torch.sum(loss))",)
    ),
    "an attribute": Idiom(
        train("self.loss = " + LOSS[7:], "self.context.backward(self.loss)", STEP, "loss = self.loss"),
        ("self.model.backward(self.loss)",),
    ),
    "over several lines": Idiom(
        train(LOSS, "self.context.backward(", "    loss  # the loss", ")", STEP),
        ("self.model.backward(", "loss  # the loss", ")", "self.model.step()"),
    ),
    "retain_graph": Idiom(
        train(LOSS, "self.context.backward(loss, retain_graph=True)", STEP),
        ("self.model.backward(loss, retain_graph=True)",),
    ),
    "all arguments by position": Idiom(
        train(LOSS, "self.context.backward(loss, None, True, False)", STEP),
        ("self.model.backward(loss, retain_graph=True)",),
    ),
    "arguments that say the default": Idiom(
        train(LOSS, "self.context.backward(loss, gradient=None, create_graph=False)", STEP),
        ("self.model.backward(loss)",),
    ),
    "gradient": Idiom(
        train(LOSS, "self.context.backward(loss, gradient=targets)", STEP), blocked=("DSM301", "gradient=targets")
    ),
    "create_graph": Idiom(
        train(LOSS, "self.context.backward(loss, create_graph=True)", STEP), blocked=("DSM301", "create_graph")
    ),
    "hidden arguments": Idiom(
        train(LOSS, "self.context.backward(loss, **self.options)", STEP), blocked=("DSM301", "hidden")
    ),
    "its value is used": Idiom(
        train(LOSS, "nothing = self.context.backward(loss)", STEP), ("nothing = self.model.backward(loss)",)
    ),
    "twice in a step": Idiom(
        train(LOSS, "self.context.backward(loss, retain_graph=True)", "self.context.backward(loss * 0.1)", STEP),
        ("self.model.backward(loss, retain_graph=True)", "self.model.backward(loss * 0.1)", GATE, "self.model.step()"),
        review=("DSM301",),
    ),
    "under an if": Idiom(
        train(LOSS, "if torch.isfinite(loss):", f"    {BACKWARD}", f"    {STEP}"),
        ("if torch.isfinite(loss):", "self.model.backward(loss)", GATE, "self.model.step()"),
    ),
    "in a loop": Idiom(
        train("for _ in range(3):", f"    {LOSS}", f"    {BACKWARD}", f"    {STEP}"),
        ("for _ in range(3):", "self.model.backward(loss)", GATE, "self.model.step()"),
    ),
    "in a with": Idiom(
        train(LOSS, "with torch.autograd.set_detect_anomaly(True):", f"    {BACKWARD}", STEP),
        ("self.model.backward(loss)", "self.model.step()"),
    ),
    "in a try": Idiom(
        train(LOSS, "try:", f"    {BACKWARD}", f"    {STEP}", "except RuntimeError:", "    raise"),
        ("self.model.backward(loss)", GATE, "self.model.step()"),
    ),
    "in a helper method": Idiom(
        train(LOSS, "self.optimize(loss)") + f"\ndef optimize(self, loss):\n    {BACKWARD}\n    {STEP}\n",
        ("self.optimize(loss)", "def optimize(self, loss):", "self.model.backward(loss)", GATE, "self.model.step()"),
    ),
    "in helper methods, stepped by their caller": Idiom(
        examples.GAN_INIT + f"""
def train_batch(self, batch: TorchData, epoch_idx: int, batch_idx: int) -> Dict[str, Any]:
    self.backward_d(batch)
    self.context.step_optimizer(self.opt_d)
    self.backward_g(batch)
    self.context.step_optimizer(self.opt_g)
    return {{}}

def backward_g(self, batch):
    {BACKWARD.replace("loss", "self.generator(batch)")}

def backward_d(self, batch):
    {BACKWARD.replace("loss", "self.discriminator(batch)")}
""",
        ("self.backward_d(batch)", "self.engine_d.step()", "self.backward_g(batch)", "self.engine_g.step()",
         "self.engine_g.backward(self.generator(batch))", "self.engine_d.backward(self.discriminator(batch))"),
    ),
    "on one line": Idiom(
        train(f"{LOSS}; {BACKWARD}; {STEP}"), (f"{LOSS}; self.model.backward(loss); self.model.step()",)
    ),
    "on one line, gated": Idiom(
        train(LOSS, "if batch_idx % 2:", f"    {BACKWARD}; {STEP}; print(loss)"),
        ("self.model.backward(loss)", GATE, "self.model.step()", "print(loss)"),
    ),
    "comments everywhere": Idiom(
        train("# forward", f"{LOSS}  # the loss", "", "# backward", f"{BACKWARD}  # gradients",
              "# self.context.backward(old_loss)", f"{STEP}  # move", "# done"),
        ("# forward", f"{LOSS}  # the loss", "# backward", "self.model.backward(loss)  # gradients",
         "# self.context.backward(old_loss)", "self.model.step()  # move", "# done"),
    ),
}  # fmt: skip

STEPS = {
    "keyword": Idiom(
        train(LOSS, BACKWARD, "self.context.step_optimizer(optimizer=self.optimizer)"), ("self.model.step()",)
    ),
    "a local name": Idiom(
        train(LOSS, BACKWARD, "opt = self.optimizer", "self.context.step_optimizer(opt)"),
        ("opt = self.optimizer", "self.model.step()"),
    ),
    "auto_zero_grads=True": Idiom(
        train(LOSS, BACKWARD, "self.context.step_optimizer(self.optimizer, auto_zero_grads=True)"),
        ("self.model.step()",),
    ),
    "auto_zero_grads=False": Idiom(
        train(LOSS, BACKWARD, "self.context.step_optimizer(self.optimizer, auto_zero_grads=False)"),
        blocked=("DSM302", "auto_zero_grads=False"),
    ),
    "hidden arguments": Idiom(
        train(LOSS, BACKWARD, "self.context.step_optimizer(self.optimizer, **self.options)"),
        blocked=("DSM302", "hidden"),
    ),
    "its value is used": Idiom(
        train(LOSS, BACKWARD, "norm = self.context.step_optimizer(self.optimizer)"), blocked=("DSM302", "value")
    ),
    "every second batch": Idiom(
        train(LOSS, BACKWARD, "if (batch_idx + 1) % 2 == 0:", f"    {STEP}"),
        ("self.model.backward(loss)", "if (batch_idx + 1) % 2 == 0:", GATE, "self.model.step()"),
    ),
    "after an early return": Idiom(
        train(LOSS, "if loss.isnan():", "    return {}", BACKWARD, STEP),
        ("return {}", "self.model.backward(loss)", GATE, "self.model.step()"),
    ),
    "behind a colon": Idiom(
        train(LOSS, BACKWARD, f"if batch_idx % 2: {STEP}"), ("if batch_idx % 2:", GATE, "self.model.step()")
    ),
    "by hand": Idiom(
        train("self.optimizer.zero_grad()", LOSS, "loss.backward()", "self.optimizer.step()"),
        ("self.model.backward(loss, scale_wrt_gas=False)", "self.model.step()"),
    ),
    "by hand, with arguments": Idiom(
        train("self.optimizer.zero_grad()", LOSS, "loss.backward(retain_graph=True)", "self.optimizer.step()"),
        ("self.model.step()",), ("loss.backward", "self.optimizer.step"),
    ),
    "by hand, never cleared": Idiom(
        train(LOSS, "loss.backward()", "self.optimizer.step()"), blocked=("DSM302", "never cleared")
    ),
    "by hand with a closure": Idiom(
        train(LOSS, BACKWARD, "self.optimizer.zero_grad()", "self.optimizer.step(lambda: loss)"),
        blocked=("DSM302", "closure"),
    ),
    "context.backward and optimizer.step": Idiom(
        train("self.model.zero_grad()", LOSS, BACKWARD, "self.optimizer.step()"),
        ("self.model.backward(loss, scale_wrt_gas=False)", "self.model.step()"),
    ),
    "a plain trainer in the same file": Idiom(
        examples.module(train(LOSS, BACKWARD, STEP))
        + "\n\nclass Trainer:\n    def fit(self, model, optimizer, loss):\n"
        "        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n",
        ("optimizer.zero_grad()", "loss.backward()", "optimizer.step()"),
    ),
    "zero_grad at the start": Idiom(
        train("self.optimizer.zero_grad()", LOSS, BACKWARD, STEP), (LOSS, "self.model.backward(loss)"), ("zero_grad",)
    ),
    "model.zero_grad after the step": Idiom(
        train(LOSS, BACKWARD, STEP, "self.model.zero_grad()"), ("self.model.step()",), ("zero_grad",)
    ),
    "zero_grad as the only statement of a branch": Idiom(
        train("if batch_idx == 0:", "    self.optimizer.zero_grad(set_to_none=True)  # why not", LOSS, BACKWARD, STEP),
        ("# why not", LOSS), ("zero_grad", "if batch_idx"),
    ),
    "zero_grad between backward and step": Idiom(
        train(LOSS, BACKWARD, "self.optimizer.zero_grad()", STEP), blocked=("DSM303", "between backward and step")
    ),
    "a schedule stepped by hand": Idiom(
        with_init("self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3)")
        + train(LOSS, BACKWARD, STEP, "self.scheduler.step()", "lr = self.scheduler.get_last_lr()"),
        ("self.model.step()", "self.scheduler.step()", "lr = self.scheduler.get_last_lr()"),
    ),
    "the learning rate is read": Idiom(
        train(LOSS, BACKWARD, STEP, 'lr = self.optimizer.param_groups[0]["lr"]'),
        ('lr = self.optimizer.param_groups[0]["lr"]',),
    ),
}  # fmt: skip

NORM = "torch.nn.utils.clip_grad_norm_"
CLIP = "self.context.step_optimizer(self.optimizer, {})"


def clip(argument: str) -> str:
    return train(LOSS, BACKWARD, CLIP.format(argument))


# name: (methods, gradient_clipping in ds_config.json, line of the config merged in code)
CONFIGURED = {
    "lambda": (clip(f"clip_grads=lambda params: {NORM}(params, 0.5)"), 0.5, None),
    "by position": (clip(f"lambda p: {NORM}(p, 2)"), 2.0, None),
    "max_norm by keyword": (clip(f"clip_grads=lambda p: {NORM}(parameters=p, max_norm=1.5, norm_type=2)"), 1.5, None),
    "imported under another name": (
        clip("clip_grads=lambda p: clip_(p, 0.5)").replace(
            "    inputs", "    from torch.nn.utils import clip_grad_norm_ as clip_\n    inputs"), 0.5, None),
    "a hyperparameter": (
        clip(f'clip_grads=lambda p: {NORM}(p, self.context.get_hparam("clip"))'), 0.0,
        '"gradient_clipping": self.context.get_hparam("clip"),'),
    "an attribute of __init__": (
        with_init("self.max_norm = 3.0") + clip(f"clip_grads=lambda p: {NORM}(p, self.max_norm)"), 0.0,
        '"gradient_clipping": self.max_norm,'),
    "a lambda under an attribute": (
        with_init(f"self.clip = lambda params: {NORM}(params, 4.0)") + clip("clip_grads=self.clip"), 4.0, None),
    "partial": (
        with_init("from functools import partial", f"self.clip = partial({NORM}, max_norm=0.25)")
        + clip("clip_grads=self.clip"), 0.25, None),
    "a local lambda": (
        train(LOSS, BACKWARD, f"clip = lambda p: {NORM}(p, 0.5)", "self.context.step_optimizer(self.optimizer, clip)"),
        0.5, None),
    "a method": (
        with_init("self.max_norm = 3.0") + clip("clip_grads=self.clip")
        + f"\ndef clip(self, params):\n    return {NORM}(params, self.max_norm)\n", 0.0,
        '"gradient_clipping": self.max_norm,'),
    "a nested function": (
        train(LOSS, BACKWARD, "def clip(params):", f"    {NORM}(params, 0.5)",
              "self.context.step_optimizer(self.optimizer, clip_grads=clip)"), 0.5, None),
    "None": (clip("clip_grads=None"), 0.0, None),
}  # fmt: skip

KEPT = {
    "by value": Idiom(
        clip("clip_grads=lambda p: torch.nn.utils.clip_grad_value_(p, 0.5)"),
        (GATE, f"p = {OTHER_PARAMS}", "torch.nn.utils.clip_grad_value_(p, 0.5)", "self.model.step()"),
    ),
    "another norm": Idiom(
        clip(f"clip_grads=lambda p: {NORM}(p, 0.5, norm_type=1)"),
        (GATE, f"p = {OTHER_PARAMS}", f"{NORM}(p, 0.5, norm_type=1)", "self.model.step()"),
    ),
    "a lambda whose parameter is a name of the method": Idiom(
        clip(f"clip_grads=lambda loss: {NORM}(loss, 0.5, norm_type=1)"),
        (GATE, f"(lambda loss: {NORM}(loss, 0.5, norm_type=1))(", PARAMS, "self.model.step()"),
    ),
    "a lambda around a function of the module": Idiom(
        examples.module(clip("clip_grads=lambda params: clip_all(params, self.limit)"))
        + "\n\ndef clip_all(params, limit):\n    torch.nn.utils.clip_grad_value_(params, limit)\n",
        ("self.model.backward(loss)", GATE, f"params = {PARAMS}", "clip_all(params, self.limit)", "self.model.step()"),
        lacks=("allreduce_gradients",),
    ),
    "a function of the module": Idiom(
        clip("clip_grads=clip_all"),
        (GATE, "if clip_all is not None:", f"clip_all({PARAMS})", "self.model.step()"),
    ),
    "a nested function": Idiom(
        train(LOSS, BACKWARD, "def clip(params):", f"    norm = {NORM}(params, 0.5)", "    print(norm)",
              "self.context.step_optimizer(self.optimizer, clip_grads=clip)"),
        ("def clip(params):", GATE, f"clip({PARAMS})", "self.model.step()"), lacks=("is not None",),
    ),
    "a static method": Idiom(
        clip("clip_grads=MyTrial.clip") + f"\n@staticmethod\ndef clip(params):\n    print({NORM}(params, 0.5))\n",
        (GATE, f"MyTrial.clip({PARAMS})", "self.model.step()"),
    ),
    "a method that also reads gradients": Idiom(
        clip("clip_grads=self.clip") + "\ndef clip(self, params):\n    print(params[0].grad)\n",
        ("self.model.backward(loss)", GATE, f"self.clip({PARAMS})", "self.model.step()"),
        lacks=("allreduce_gradients", "is not None"),
    ),
    "a lambda that takes no notice of its parameters": Idiom(
        clip("clip_grads=lambda _: self.clip()") + "\ndef clip(self):\n    self.model.fc.weight.grad[0] = 0\n",
        (GATE, "self.clip()", "self.model.step()"), lacks=("_ = [",),
    ),
    "from a dict": Idiom(
        with_init("self.clips = {'norm': lambda p: None}") + clip("clip_grads=self.clips['norm']"),
        (GATE, "if self.clips['norm'] is not None:", f"self.clips['norm']({OTHER_PARAMS})", "self.model.step()"),
    ),
    "a lambda on a condition": Idiom(
        clip(f"clip_grads=(lambda p: {NORM}(p, self.clip)) if self.clip > 0 else None"),
        (GATE, "if self.clip > 0:", f"p = {OTHER_PARAMS}", f"{NORM}(p, self.clip)", "self.model.step()"),
    ),
    "one of two": Idiom(
        clip("clip_grads=clip_first if epoch_idx == 0 else clip_later"),
        (GATE, "clip = clip_first if epoch_idx == 0 else clip_later", "if clip is not None:",
         f"clip({PARAMS})", "self.model.step()"),
    ),
    "what a call returns": Idiom(
        clip("clip_grads=self.clipper()"),
        (GATE, "clip = self.clipper()", "if clip is not None:", f"clip({PARAMS})"),
    ),
    "maybe none": Idiom(
        with_init(f"self.clip = (lambda p: {NORM}(p, 1.0)) if torch.rand(1) > 0.5 else None")
        + clip("clip_grads=self.clip"),
        (GATE, "if self.clip is not None:", f"self.clip({OTHER_PARAMS})", "self.model.step()"),
    ),
    "set in branches": Idiom(
        with_init("if torch.rand(1) > 0.5:", f"    self.clip = lambda p: {NORM}(p, 1.0)", "else:",
                  "    self.clip = None") + clip("clip_grads=self.clip"),
        (GATE, "if self.clip is not None:", f"self.clip({OTHER_PARAMS})"),
    ),
    "a norm that changes": Idiom(
        with_init("self.max_norm = 1.0")
        + train(LOSS, BACKWARD, "self.max_norm *= 0.9", f"self.context.step_optimizer(self.optimizer, lambda p: {NORM}("
                "p, self.max_norm))"),
        (GATE, f"p = {OTHER_PARAMS}", f"{NORM}(p, self.max_norm)"),
    ),
    "a norm of the batch": Idiom(
        train(LOSS, BACKWARD, f"self.context.step_optimizer(self.optimizer, lambda p: {NORM}(p, batch_idx + 1))"),
        (GATE, f"p = {OTHER_PARAMS}", f"{NORM}(p, batch_idx + 1)"),
    ),
    "the names it would use are taken": Idiom(
        train("p, group = 1, 2", LOSS, BACKWARD, "self.context.step_optimizer(self.optimizer, clip_grads=clip_all)"),
        (GATE, 'clip_all([param for param_group in self.optimizer.param_groups for param in param_group["params"]])'),
    ),
    "by hand between backward and step": Idiom(
        train(LOSS, BACKWARD, f"norm = {NORM}(self.model.parameters(), 1.0)", STEP),
        (f"norm = {NORM}(self.model.parameters(), 1.0)", "self.model.step()"),
    ),
    "gradients are read": Idiom(
        train(LOSS, BACKWARD, "norm = sum(p.grad.norm() for p in self.model.parameters())", STEP),
        ("norm = sum(p.grad.norm() for p in self.model.parameters())", "self.model.step()"),
    ),
}  # fmt: skip

AUTOCAST = "with torch.cuda.amp.autocast():"
ENABLED = '"torch_autocast": {"enabled": self.context.device.type == "cuda", "dtype": "float16"},'

PRECISION = {
    "use_amp": Idiom(
        with_init("self.context.experimental.use_amp()") + train(LOSS, BACKWARD, STEP),
        (ENABLED, "self.model = self.context.wrap_model_engine(float32_outside(engine))"), ("use_amp",),
        review=("DSM340",),
    ),
    "use_amp under an if": Idiom(
        with_init("if self.context.get_hparam('amp'):", "    self.context.experimental.use_amp()")
        + train(LOSS, BACKWARD, STEP),
        ('"torch_autocast": {',
         '"enabled": self.context.device.type == "cuda" and self.context.get_hparam(\'amp\'),',
         '"dtype": "float16",'), ("use_amp()", "pass"), review=("DSM340",),
    ),
    "apex": Idiom(
        with_init("self.model, self.optimizer = self.context.configure_apex_amp(", "    models=self.model,  # both",
                  "    optimizers=self.optimizer,", ")") + train(LOSS, BACKWARD, STEP),
        ("# both", ENABLED), ("configure_apex_amp",), review=("DSM340",),
    ),
    "apex, its value used otherwise": Idiom(
        with_init("self.both = self.context.configure_apex_amp(self.model, self.optimizer)")
        + train(LOSS, BACKWARD, STEP),
        blocked=("DSM340", "cannot follow"),
    ),
    "scaler": Idiom(
        with_init("self.scaler = self.context.wrap_scaler(torch.cuda.amp.GradScaler(", "    init_scale=2.0,  # small",
                  "))")
        + train(AUTOCAST, f"    {LOSS}", "self.context.backward(self.scaler.scale(loss))",
                "self.context.step_optimizer(self.optimizer, scaler=self.scaler)", "self.scaler.update()"),
        (ENABLED, "# small", "self.scaler = torch.cuda.amp.GradScaler(enabled=False)", AUTOCAST,
         "self.model.backward(self.scaler.scale(loss))", "self.model.step()", "self.scaler.update()"),
        review=("DSM340",),
    ),
    "scaler, discarded": Idiom(
        with_init("self.scaler = torch.cuda.amp.GradScaler(init_scale=1.0)", "self.context.wrap_scaler(self.scaler)")
        + train(LOSS, "self.context.backward(self.scaler.scale(loss))",
                "self.context.step_optimizer(self.optimizer, scaler=self.scaler)", "self.scaler.update()"),
        ("self.scaler = torch.cuda.amp.GradScaler(enabled=False)", "self.model.step()"), review=("DSM340",),
    ),
    "scaler from elsewhere": Idiom(
        with_init("self.scaler = self.context.wrap_scaler(make_scaler())") + train(LOSS, BACKWARD, STEP),
        blocked=("DSM340", "cannot determine where this scaler is made"),
    ),
    "autocast alone": Idiom(
        train('with torch.autocast("cuda", dtype=torch.bfloat16):', f"    {LOSS}", BACKWARD, STEP),
        ('"torch_autocast": {"enabled": self.context.device.type == "cuda", "dtype": "bfloat16"},',),
        review=("DSM340",),
    ),
    "autocast, switched by a hyperparameter": Idiom(
        train("with torch.cuda.amp.autocast(self.context.get_hparam('amp')):", f"    {LOSS}", BACKWARD, STEP),
        ('"torch_autocast": {',
         '"enabled": self.context.device.type == "cuda" and self.context.get_hparam(\'amp\'),',
         '"dtype": "float16",'), review=("DSM340",),
    ),
    "autocast, switched by what is set after the optimizer": Idiom(
        with_init("self.amp = torch.cuda.is_available()")
        + train('with torch.autocast("cuda", enabled=self.amp):', f"    {LOSS}", BACKWARD, STEP),
        ("self.amp = torch.cuda.is_available()",
         '"torch_autocast": {"enabled": self.context.device.type == "cuda" and self.amp, "dtype": "float16"},'),
        review=("DSM340",),
    ),
    "scaler and autocast, switched": Idiom(
        with_init("self.amp = self.context.get_hparam('amp')",
                  "self.scaler = self.context.wrap_scaler(torch.cuda.amp.GradScaler(enabled=self.amp))")
        + train("with torch.cuda.amp.autocast(enabled=self.amp):", f"    {LOSS}",
                "self.context.backward(self.scaler.scale(loss))",
                "self.context.step_optimizer(self.optimizer, scaler=self.scaler)", "self.scaler.update()"),
        ('"torch_autocast": {"enabled": self.context.device.type == "cuda" and self.amp, "dtype": "float16"},',),
        review=("DSM340",),
    ),
    "scaler alone, switched": Idiom(
        with_init("amp = self.context.get_hparam('amp')", "scaler = torch.cuda.amp.GradScaler(enabled=amp)",
                  "self.scaler = self.context.wrap_scaler(scaler)")
        + train(LOSS, "self.context.backward(self.scaler.scale(loss))",
                "self.context.step_optimizer(self.optimizer, scaler=self.scaler)", "self.scaler.update()"),
        ('"torch_autocast": {"enabled": self.context.device.type == "cuda" and amp, "dtype": "float16"},',),
        review=("DSM340",),
    ),
    "autocast in a branch": Idiom(
        with_init("self.amp = self.context.get_hparam('amp')")
        + train("if self.amp:", f"    {AUTOCAST}", f"        {LOSS}", "else:", f"    {LOSS}", BACKWARD, STEP),
        ('"torch_autocast": {"enabled": self.context.device.type == "cuda" and self.amp, "dtype": "float16"},',),
        review=("DSM340",),
    ),
    "autocast in a branch of some batches": Idiom(
        train("if batch_idx > 1:", f"    {AUTOCAST}", f"        {LOSS}", "else:", f"    {LOSS}", BACKWARD, STEP),
        (ENABLED,), review=("DSM340",),
    ),
    "autocast, switched off": Idiom(
        train("with torch.cuda.amp.autocast(enabled=False):", f"    {LOSS}", BACKWARD, STEP),
        ("with torch.cuda.amp.autocast(enabled=False):",), ("torch_autocast",),
    ),
    "autocast_forward_pass": Idiom(
        with_init("self.context.autocast_forward_pass(self.model)") + train(LOSS, BACKWARD, STEP),
        ('autocast_forward(self.model, enabled=self.context.device.type == "cuda")',),
        review=("DSM340",),
    ),
}  # fmt: skip


@idioms(BACKWARDS)
def test_backward(idiom: Idiom, tmp_path: Path) -> None:
    idiom.check(tmp_path)


@idioms(STEPS)
def test_steps_and_zero_grad(idiom: Idiom, tmp_path: Path) -> None:
    idiom.check(tmp_path)


@pytest.mark.parametrize(("block", "static", "merged"), [pytest.param(*c, id=n) for n, c in CONFIGURED.items()])
def test_an_l2_norm_is_the_engines_gradient_clipping(
    block: str, static: float, merged: str | None, tmp_path: Path
) -> None:
    source = examples.module(block)
    (tmp_path / "model_def.py").write_text(source)
    created = next(f for f in examples.run(tmp_path).files if f.path.name == "ds_config.json")
    assert created.after is not None
    assert json.loads(created.after).get("gradient_clipping") == (None if merged else static)  # the code has it
    Idiom(source, ((merged,) if merged else ()) + ("self.model.backward(loss)", "self.model.step()")).check(tmp_path)


@idioms(KEPT)
def test_clipping_that_no_config_can_express_is_kept(idiom: Idiom, tmp_path: Path) -> None:
    idiom.check(tmp_path)


@idioms(PRECISION)
def test_mixed_precision(idiom: Idiom, tmp_path: Path) -> None:
    idiom.check(tmp_path)


def test_evaluation_without_autocast_is_reported_to_have_it_now(tmp_path: Path) -> None:
    block = train(AUTOCAST, f"    {LOSS}", BACKWARD, STEP)
    result = examples.convert(tmp_path, examples.module(block))
    assert [f.code for f in result.findings if "evaluation used float32 before" in f.message] == ["DSM340"]


HELPED = {
    "backward and step": ("loss.backward()\n    optimizer.step()", "a helper calls loss.backward() past the context"),
    "only the step": ("optimizer.step()", "a helper calls optimizer.step() past the context"),
}


@pytest.mark.parametrize(("body", "message"), [pytest.param(*case, id=name) for name, case in HELPED.items()])
def test_a_helper_that_trains_by_hand_blocks_where_it_does(body: str, message: str, tmp_path: Path) -> None:
    source = examples.module(train(LOSS, "take(loss, self.optimizer)"))
    helper = f"def take(loss, optimizer):\n    {body}\n\n\nclass MyTrial"
    Idiom(source.replace("class MyTrial", helper), blocked=("DSM301", message)).check(tmp_path)


SUMS = {
    "reads a gradient": train(LOSS, BACKWARD, "print(self.model.fc.weight.grad)", STEP),
    "clips by hand": train(LOSS, BACKWARD, "nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)", STEP),
    "hooks gradients": with_init("for p in self.model.parameters():", "    p.register_hook(print)")
    + train(LOSS, BACKWARD, STEP),
}


@pytest.mark.parametrize("source", [pytest.param(case, id=name) for name, case in SUMS.items()])
def test_gradients_that_the_trial_looks_at_stay_sums_where_an_experiment_accumulates(
    source: str, tmp_path: Path
) -> None:
    (tmp_path / "const.yaml").write_text(
        "entrypoint: model_def:MyTrial\nhyperparameters:\n  global_batch_size: 8\n"
        "optimizations:\n  aggregation_frequency: 2\n"
    )
    result = examples.convert(tmp_path, examples.module(source))
    assert result.after is not None
    assert_lines(
        result.after.decode(),
        ("self.model.backward(loss, scale_wrt_gas=False)", GATE, "self.context.average_gradients(self.model)",
         "self.model.step()"),
    )  # fmt: skip


def test_a_kept_clipping_function_sees_the_module_where_it_needs_that(tmp_path: Path) -> None:
    clip = "clip_grads=lambda params: nn.utils.clip_grad_norm_(self.model[0].parameters(), 1.0)"
    Idiom(
        train(LOSS, BACKWARD, f"self.context.step_optimizer(self.optimizer, {clip})"),
        (GATE, "nn.utils.clip_grad_norm_(self.model.module[0].parameters(), 1.0)", "self.model.step()"),
    ).check(tmp_path)


def test_a_backward_for_an_optimizer_that_is_not_wrapped_is_not_scaled(tmp_path: Path) -> None:
    other = ("memory.backward()", "self.memory_optimizer.step()")
    Idiom(
        train(LOSS, "memory = self.memory.mean()", *other, BACKWARD, STEP),
        ("self.model.backward(memory, scale_wrt_gas=False)", "self.memory_optimizer.step()",
         "self.model.backward(loss)", GATE, "self.model.step()"),
    ).check(tmp_path)  # fmt: skip


def test_a_trial_that_asks_autograd_itself_forwards_through_its_own_model(tmp_path: Path) -> None:
    """DeepSpeed refuses ``torch.autograd.grad`` on what an engine's forward returned."""
    Idiom(
        train(LOSS, "penalty = torch.autograd.grad(loss, inputs, create_graph=True)[0].norm()", BACKWARD, STEP),
        ("model=EngineModule(self.optimizer, model=self.model), optimizer=self.optimizer, config=ds_config",
         "self.engine.backward(loss)", GATE, "self.engine.step()"),
    ).check(tmp_path)  # fmt: skip


EMPTIED = {
    "one": Idiom(
        train("# first", "if epoch_idx:  # why", "    # so", "    self.optimizer.zero_grad()", LOSS, BACKWARD, STEP),
        ("# first", "# why", "# so", LOSS), ("if epoch_idx", "pass"),
    ),
    "all of them": Idiom(
        train("if epoch_idx:", "    self.optimizer.zero_grad()", "elif batch_idx:", "    self.optimizer.zero_grad()",
              "else:", "    self.optimizer.zero_grad()", LOSS, BACKWARD, STEP),
        (LOSS,), ("if ", "pass"),
    ),
    "one beside another": Idiom(
        train("if epoch_idx:", "    self.optimizer.zero_grad()", "else:", "    print()", LOSS, BACKWARD, STEP),
        ("if epoch_idx:", "pass", "else:", "print()"),
    ),
    "one whose condition does something": Idiom(
        train("if self.take_turn():", "    self.optimizer.zero_grad()", LOSS, BACKWARD, STEP),
        ("if self.take_turn():", "pass"),
    ),
}  # fmt: skip


@idioms(EMPTIED)
def test_branches_that_held_only_what_goes(idiom: Idiom, tmp_path: Path) -> None:
    idiom.check(tmp_path)


PAST_THE_WRAPPER = {
    "a method that makes the loss": Idiom(
        train("loss = self.model.loss(inputs, targets)", BACKWARD, STEP),
        ("self.model.backward(loss)",), review=("DSM301",),
    ),
    "a part of the model": Idiom(
        train("loss = self.criterion(self.model.body.first(inputs), targets)", BACKWARD, STEP), review=("DSM301",),
    ),
    "the model itself as well": Idiom(
        train("x = self.model.encode(inputs)", "loss = self.criterion(self.model(x), targets)", BACKWARD, STEP),
    ),
    "a helper that may call the model": Idiom(
        train("hidden = self.model.encode(inputs)", "loss = compute(self.model, hidden, targets)", BACKWARD, STEP),
    ),
    "methods that run no forward": Idiom(
        train("self.model.train()", LOSS, BACKWARD, STEP),
    ),
}  # fmt: skip


@idioms(PAST_THE_WRAPPER)
def test_gradients_that_several_ranks_never_averaged_are_reported_as_averaged(idiom: Idiom, tmp_path: Path) -> None:
    idiom.check(tmp_path)


IN_A_DICT = with_init(
    "nets = {'body': nn.Linear(3, 2), 'head': nn.Linear(3, 2)}",
    "self.nets = {name: context.wrap_model(net) for name, net in nets.items()}",
)
AGAIN = {
    "a part of what one forward computed": Idiom(
        train("hidden = self.model(inputs)", "loss = self.criterion(hidden, targets)", "aux = hidden.pow(2).mean()",
              "self.context.backward(loss, retain_graph=True)", "self.context.backward(aux)", STEP),
        review=("DSM301",),
    ),
    "two forwards, then two passes": Idiom(
        train("loss = self.model(inputs).mean()", "aux = self.model(-inputs).mean()", BACKWARD,
              "self.context.backward(aux)", STEP),
        review=("DSM301",),
    ),
    "one after the other in a loop": Idiom(
        train("out = self.model(inputs)", "losses = [out.mean(), out.std()]", "for loss in losses:",
              "    self.context.backward(loss, retain_graph=True)", STEP),
        review=("DSM301",),
    ),
    "a forward without gradients between": Idiom(
        train(LOSS, "self.context.backward(loss, retain_graph=True)", "with torch.no_grad():",
              "    target = self.model(inputs)", "self.context.backward(loss * target.mean())", STEP),
        review=("DSM301",),
    ),
    "losses of a helper": Idiom(
        train("loss, aux = compute(self.model, inputs)", "self.context.backward(loss, retain_graph=True)",
              "self.context.backward(aux)", STEP),
        review=("DSM301",),
    ),
    "losses of several forwards in a list": Idiom(
        train("losses = []", "for noise in (0.0, 0.1):", "    losses.append(self.model(inputs + noise).mean())",
              "self.context.backward(losses[0])", "self.context.backward(losses[1])", STEP),
        review=("DSM301",),
    ),
    "losses by their names": Idiom(
        train("out = self.model(inputs)", "losses = {}", 'losses["mean"] = out.mean()', 'losses["std"] = out.std()',
              "for loss in losses.values():", "    self.context.backward(loss, retain_graph=True)", STEP),
        review=("DSM301",),
    ),
    "models in a dict": Idiom(
        IN_A_DICT + train('out = self.nets["body"](inputs)', "loss = out.mean()",
                          "self.context.backward(loss, retain_graph=True)", "self.context.backward(out.std())", STEP),
        review=("DSM301",),
    ),
    "each of a separate model in a dict": Idiom(
        IN_A_DICT + train('loss = self.nets["body"](inputs).mean()', 'aux = self.nets["head"](inputs).mean()',
                          "self.context.backward(loss)", "self.context.backward(aux)", STEP),
    ),
    "twice behind each model of a dict": Idiom(
        IN_A_DICT + train("for net in self.nets.values():", "    out = net(inputs)",
                          "    self.context.backward(out.mean(), retain_graph=True)",
                          "    self.context.backward(out.std())", STEP),
        review=("DSM301",),
    ),
    "each behind its own forward": Idiom(
        train(LOSS, BACKWARD, "loss = self.model(-inputs).mean()", BACKWARD, STEP),
    ),
    "each behind a method that runs forward": Idiom(
        train("loss = self.loss(inputs)", "self.context.backward(loss, retain_graph=True)", "loss = self.loss(-inputs)",
              BACKWARD, STEP) + "\ndef loss(self, x):\n    return self.model(x).mean()\n",
    ),
    "in different branches": Idiom(
        train(LOSS, "if epoch_idx:", f"    {BACKWARD}", "else:", f"    {BACKWARD}", STEP),
    ),
    "what is computed from detached values": Idiom(
        train("out = self.model(inputs)", "loss = out.mean()", BACKWARD, "aux = self.scale * out.detach().mean()",
              "self.context.backward(aux)", STEP),
    ),
    "the same name for another loss": Idiom(
        train("out = self.model(inputs)", "loss = out.mean()", BACKWARD, "loss = self.scale * 2", BACKWARD, STEP),
    ),
}  # fmt: skip


@idioms(AGAIN)
def test_gradients_of_a_second_pass_through_one_forward_are_reported_as_averaged(idiom: Idiom, tmp_path: Path) -> None:
    idiom.check(tmp_path)


FREEZE = "self.model.body.requires_grad_(False)"
THAWED = {
    "by the trial": Idiom(
        with_init(FREEZE) + train("if epoch_idx:", "    self.model.body.requires_grad_(True)", LOSS, BACKWARD, STEP),
        review=("DSM301",),
    ),
    "parameter by parameter": Idiom(
        with_init("for p in self.model.parameters():", "    p.requires_grad = False")
        + train("for p in self.model.parameters():", "    p.requires_grad = epoch_idx > 2", LOSS, BACKWARD, STEP),
        review=("DSM301",),
    ),
    "never": Idiom(with_init(FREEZE) + train(LOSS, BACKWARD, STEP)),
    "what was not frozen before": Idiom(
        train("self.model.requires_grad_(batch_idx % 2 == 0)", LOSS, BACKWARD, STEP),
    ),
}  # fmt: skip


@idioms(THAWED)
def test_parameters_that_learn_later_than_they_were_wrapped_are_reported_as_averaged(
    idiom: Idiom, tmp_path: Path
) -> None:
    idiom.check(tmp_path)


LATER = {
    "by who holds the trial": "class Loosen:\n    def on_training_epoch_end(self, trial):\n        trial.limit = 2.0",
    "by name": 'def loosen(trial):\n    setattr(trial, "limit", 2.0)',
}


@pytest.mark.parametrize("code", [pytest.param(case, id=name) for name, case in LATER.items()])
def test_a_norm_that_changes_later_is_asked_for_at_each_step(code: str, tmp_path: Path) -> None:
    clip = "clip_grads=lambda params: torch.nn.utils.clip_grad_norm_(params, self.limit)"
    step = f"self.context.step_optimizer(self.optimizer, {clip})"
    source = with_init("self.limit = 1.0") + train(LOSS, BACKWARD, step)
    Idiom(
        f"{examples.module(source)}\n\n{code}\n",
        (GATE, "torch.nn.utils.clip_grad_norm_(params, self.limit)", "self.model.step()"),
        ('"gradient_clipping"',),
    ).check(tmp_path)


FROM_LISTS = {
    "step_optimizer": Idiom(
        train(LOSS, BACKWARD, "self.context.step_optimizer(self.context.optimizers[0])"),
        ("self.context.engines[self.context.engines.optimizers[0]].step()",),
    ),
    "step_optimizer with a kept clip function": Idiom(
        train(
            LOSS, BACKWARD,
            "self.context.step_optimizer(self.context.optimizers[0],",
            "    clip_grads=lambda params: torch.nn.utils.clip_grad_value_(params, 0.1))",
        ),
        ("self.context.engines[self.context.engines.optimizers[0]].step()",), ("self.context.optimizers",),
    ),
}  # fmt: skip


@idioms(FROM_LISTS)
def test_an_optimizer_from_the_contexts_list_is_found_in_the_new_list(idiom: Idiom, tmp_path: Path) -> None:
    idiom.check(tmp_path)


@pytest.mark.parametrize(("by_hand", "times"), [("", 1), ("clip(self.generator.parameters())", 5)])
def test_gradients_are_reduced_for_a_nested_clip_only_where_it_is_called(
    by_hand: str, times: int, tmp_path: Path
) -> None:
    lines = ["def clip(params):", "    torch.nn.utils.clip_grad_value_(params, 0.5)", *filter(None, [by_hand])]
    lines.append("self.context.step_optimizer(self.opt_g, clip_grads=clip)")
    step = "    self.context.step_optimizer(self.opt_g)\n"
    train_batch = examples.GAN_TRAIN.replace(step, "".join(f"    {line}\n" for line in lines))
    after = (examples.convert(tmp_path, examples.module(examples.GAN_INIT + train_batch)).after or b"").decode()
    assert after.count(".allreduce_gradients()") == times
