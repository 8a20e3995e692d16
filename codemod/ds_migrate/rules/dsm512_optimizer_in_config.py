"""``--optimizer-in-config`` lets DeepSpeed make the optimizer, where it makes the same one.

What it does
    Takes the optimizer out of the trial and writes it into ``ds_config.json``: its class, and the arguments that are
    plain values. Those that are known only at run time are merged in by code. ``Adam`` becomes ``"torch_adam": true,
    "adam_w_mode": false``, ``AdamW`` becomes ``"torch_adam": true``; the other classes of ``torch.optim`` go under
    their own names.

    The optimizer stays, with the reason as a finding, where DeepSpeed would not make the same one: parameter groups, a
    schedule that is made of it, classes that are not torch's.

Why
    With ``"type": "Adam"`` alone DeepSpeed makes an AdamW of its own, which has to be compiled. Only with
    ``torch_adam`` and ``adam_w_mode`` is it torch's. What the config says can be changed for a run without touching
    code, and searched over through ``overwrite_deepspeed_args``.

Options
    --optimizer-in-config

Before
    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.model = self.context.wrap_model(Net())
        self.optimizer = self.context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), lr=self.context.get_hparam("lr"), momentum=0.9)
        )

After
    def __init__(self, context: DeepSpeedTrialContext) -> None:
        self.context = context
        self.model = Net()
        hparams = self.context.get_hparams()
        ds_config = overwrite_deepspeed_config(
            hparams.get("deepspeed_config", str(Path(__file__).with_name("ds_config.json"))),
            {
                "train_micro_batch_size_per_gpu": self.context.get_per_slot_batch_size(),
                "optimizer": {"params": {"lr": self.context.get_hparam("lr")}},
                **hparams.get("overwrite_deepspeed_args", {}),
            },
        )
        engine, self.optimizer, _, _ = deepspeed.initialize(model=self.model, config=ds_config)
        self.model = self.context.wrap_model_engine(engine)

Numbers
    Unchanged: it is the same class of torch with the same arguments.

References
    DeepSpeed config optimizer; DeepSpeedEngine._configure_basic_optimizer
"""

from __future__ import annotations

from ds_migrate.conversion.rule_context import RuleContext

CODE = "DSM512"
NAME = "optimizer-in-config"


def apply(ctx: RuleContext) -> None:
    asked, trial = ctx.trial.asked, ctx.trial
    if not ctx.options.optimizer_in_config or trial.place is None:
        return
    wraps = [wrap for optimizer in trial.optimizers for wrap in optimizer.wraps]
    file, node = (wraps[0].file, wraps[0].call) if wraps else (trial.place.file, trial.place.statement)
    if asked.optimizer is None:
        ctx.review(CODE, file, node, f"the optimizer stays in the trial: {asked.optimizer_stays}")
        return
    message = f"DeepSpeed makes torch.optim.{asked.optimizer.kind} from the config"
    if asked.optimizer.computed:
        message += f", to which the trial adds {', '.join(asked.optimizer.computed)} at run time"
    ctx.converted(CODE, file, node, message)
