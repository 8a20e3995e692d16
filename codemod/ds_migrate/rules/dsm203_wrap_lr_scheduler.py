"""``wrap_lr_scheduler`` stays: the runtime steps and saves the schedule as PyTorchTrial did.

What it does
    Keeps ``context.wrap_lr_scheduler(scheduler, step_mode, frequency)`` where it is, over the plain torch optimizer;
    the engine is made after it.

Why
    A scheduler handed to ``deepspeed.initialize`` is stepped once per optimizer step, never per epoch, and
    ``ReduceLROnPlateau`` would be fed the batch size as its metric.

Before
    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.model = self.context.wrap_model(Net())
        self.optimizer = self.context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
        self.context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.StepLR(self.optimizer, 1), step_mode=LRScheduler.StepMode.STEP_EVERY_EPOCH
        )

After
    def __init__(self, context: DeepSpeedTrialContext) -> None:
        self.context = context
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.StepLR(self.optimizer, 1), step_mode=LRScheduler.StepMode.STEP_EVERY_EPOCH
        )
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
        self.model = self.context.wrap_model_engine(engine)

Numbers
    Unchanged: every step mode and frequency gives the learning rates it gave.

References
    PyTorchTrialContext.wrap_lr_scheduler, LRScheduler.StepMode
"""

from __future__ import annotations

from ds_migrate.plan import Plan

CODE = "DSM203"
NAME = "wrap-lr-scheduler"


def apply(plan: Plan) -> None:
    for wrap in plan.trial.schedulers:
        plan.handle(wrap.use)
        if plan.target.ships_helpers:
            plan.converted(CODE, wrap.file, wrap.call, "the schedule stays as it is, the runtime steps and saves it")
        else:
            plan.blocked(
                CODE, wrap.file, wrap.call, "Determined's DeepSpeedTrialContext has no wrap_lr_scheduler",
                "convert for the bundled runtime (--target runtime)",
            )  # fmt: skip
