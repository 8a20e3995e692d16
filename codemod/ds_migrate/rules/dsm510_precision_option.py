"""``--precision`` says what the engine computes in.

What it does
    ``bf16`` and ``fp16`` put the block of that name into ``ds_config.json``: weights, activations and gradients in half
    precision, with a float32 copy of the weights for the optimizer. ``autocast`` puts ``torch_autocast`` there: float32
    weights, and the operations that torch has on its list in bfloat16. ``fp32`` leaves all of that out, also where the
    trial asked for mixed precision itself. ``float32_outside`` casts what goes into the model and what comes out, so
    that losses and metrics stay float32.

    Blocked where the engine would not do what was asked: forward passes that go past the engine; half precision in a
    trial that changes parameters or gradients itself, which the optimizer's copies would not see.

Why
    ``torch_autocast`` does nothing for a forward pass that is not the engine's own, without a warning. With ``bf16``
    and ``fp16`` DeepSpeed casts the model and leaves its inputs to the caller.

Options
    --precision bf16

Before
    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.model = self.context.wrap_model(Net())
        self.optimizer = self.context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

After
    def __init__(self, context: DeepSpeedTrialContext) -> None:
        self.context = context
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        hparams = self.context.get_hparams()
        ds_config = overwrite_deepspeed_config(
            hparams.get("deepspeed_config", str(Path(__file__).with_name("ds_config.json"))),
            {
                "train_micro_batch_size_per_gpu": self.context.get_per_slot_batch_size(),
                **hparams.get("overwrite_deepspeed_args", {}),
            },
        )
        engine, self.optimizer, _, _ = deepspeed.initialize(
            model=self.model, optimizer=self.optimizer, config=ds_config
        )
        self.model = self.context.wrap_model_engine(float32_outside(engine))

Numbers
    Those of the number format: with ``bf16``, ``fp16`` and ``autocast`` about three digits.

References
    DeepSpeed config bf16, fp16, torch_autocast; trial_runtime.pytorch.deepspeed.float32_outside
"""

from __future__ import annotations

from ds_migrate.conversion.rule_context import RuleContext

CODE = "DSM510"
NAME = "precision-option"

_SAID = {
    "fp32": "the engine computes in float32",
    "bf16": "weights, activations and gradients are bfloat16 now; the optimizer keeps a float32 copy of the weights",
    "fp16": "weights, activations and gradients are float16 now, the loss is scaled and steps that overflow are "
    "skipped; the optimizer keeps a float32 copy of the weights. It needs a GPU",
    "autocast": "the engine's forward computes in bfloat16 where torch's autocast does; weights stay float32",
}


def apply(ctx: RuleContext) -> None:
    asked, place = ctx.trial.asked, ctx.trial.place
    if place is None or asked.precision is None:
        return
    if asked.precision_refused:
        ctx.blocked(
            CODE, place.file, place.statement,
            f"--precision {asked.precision} would not be what it says: {asked.precision_refused}",
            "leave --precision out and put torch.autocast around the trial's forward passes, or take that out",
        )  # fmt: skip
        return
    ctx.review(CODE, place.file, place.statement, f"--precision {asked.precision}: {_SAID[asked.precision]}")
