"""How batches are consumed, where batch sizes are asked for, and what else a trial asks of its context."""

from __future__ import annotations

from pathlib import Path

import examples
import pytest
from ds_migrate.findings import FileResult, Severity
from idiom_case import Idiom, idioms

HEAD = "def train_batch(self, batch: TorchData, epoch_idx: int, batch_idx: int) -> Dict[str, Any]:"
TAKES = "def train_batch(self, dataloader_iter: Iterator[TorchData], epoch_idx: int, batch_idx: int) -> Dict[str, Any]:"
NEXT = "self.context.to_device(next(dataloader_iter))"
KEEPS = f"batch = {NEXT}"
END = "    self.context.backward(loss)\n    self.context.step_optimizer(self.optimizer)\n    return {'loss': loss}\n"


def train(*lines: str, head: str = HEAD) -> str:
    """``train_batch`` with these lines before the backward."""
    return head + "\n" + "".join(f"    {line}\n" for line in lines) + END


def with_init(*lines: str) -> str:
    return examples.METHODS["__init__"] + "".join(f"    {line}\n" for line in lines) + "\n"


def folded(annotation: str) -> str:
    """The parameters of a converted ``train_batch`` whose head is too long for one line."""
    return f"self, dataloader_iter: {annotation}, epoch_idx: int, batch_idx: int"


LOSS = "loss = self.model(x).mean()"

BATCHES = {
    "unpacked": Idiom(train("x, y = batch", LOSS), (TAKES, f"x, y = {NEXT}")),
    "unpacked in parentheses": Idiom(train("(x, y) = batch", LOSS), (f"(x, y) = {NEXT}",)),
    "unpacked with a star": Idiom(train("x, *rest = batch", LOSS), (f"x, *rest = {NEXT}",)),
    "one element": Idiom(train("(x,) = batch", LOSS), (f"(x,) = {NEXT}",)),
    "nested": Idiom(train("(x, y), z = batch", LOSS), (f"(x, y), z = {NEXT}",)),
    "unpacked later": Idiom(
        train("print(epoch_idx)", "self.model.train()", "x, y = batch", LOSS),
        ("print(epoch_idx)", "self.model.train()", f"x, y = {NEXT}"),
    ),
    "unpacked after random numbers": Idiom(
        train("noise = torch.randn(4)", "x, y = batch", LOSS), (KEEPS, "noise = torch.randn(4)", "x, y = batch")
    ),
    "a default of an inner function": Idiom(
        train("first = lambda batch=batch: batch[0]", "x = first()", LOSS),
        (KEEPS, "first = lambda batch=batch: batch[0]"),
    ),
    "a head that no longer fits on its line": Idiom(
        train("x, y = batch", LOSS, head=HEAD.replace("Dict[str, Any]", "Union[torch.Tensor, Dict[str, Any]]")),
        ("def train_batch(", "self, dataloader_iter: Iterator[TorchData], epoch_idx: int, batch_idx: int",
         ") -> Union[torch.Tensor, Dict[str, Any]]:", f"x, y = {NEXT}"),
    ),
    "unpacked after a return": Idiom(
        train("if epoch_idx < 0:", "    return {}", "x, y = batch", LOSS),
        (TAKES, KEEPS, "if epoch_idx < 0:", "return {}", "x, y = batch"),
    ),
    "cast": Idiom(
        train("batch = cast(Tuple[torch.Tensor, torch.Tensor], batch)", "x, y = batch", LOSS),
        (f"batch = cast(Tuple[torch.Tensor, torch.Tensor], {NEXT})", "x, y = batch"),
    ),
    "cast and unpacked": Idiom(
        train("x, y = cast(Tuple[Any, Any], batch)", LOSS), (f"x, y = cast(Tuple[Any, Any], {NEXT})",)
    ),
    "different arities": Idiom(
        train("if self.flag:", "    x, y = batch", "else:", "    x, y, z = batch", LOSS),
        (KEEPS, "if self.flag:", "x, y = batch", "else:", "x, y, z = batch"),
    ),
    "tuple comprehension": Idiom(
        train("batch = tuple(t.float() for t in batch)", "x, y = batch", LOSS),
        (KEEPS, "batch = tuple(t.float() for t in batch)", "x, y = batch"),
    ),
    "dict comprehension": Idiom(
        train("batch = {k: batch[k][0] for k in batch}", "x = batch['x']", LOSS),
        (KEEPS, "batch = {k: batch[k][0] for k in batch}"),
    ),
    "the unpack rebinds the name": Idiom(
        train("batch, rewards = batch", "loss = self.model(batch).mean() * rewards"), (f"batch, rewards = {NEXT}",)
    ),
    "a loop reuses the name": Idiom(
        train("x, y = batch", LOSS, "for i, batch in enumerate(self.other):", "    loss = loss + self.model(batch)"),
        (KEEPS, "x, y = batch", "for i, batch in enumerate(self.other):"),
    ),
    "a comprehension reuses the name": Idiom(
        train("x, y = batch", "loss = sum(self.model(batch).mean() for batch in [x])"),
        ("x, y = batch", "loss = sum(self.model(batch).mean() for batch in [x])"),
    ),
    "two names": Idiom(
        train("data = labels = batch", "loss = self.criterion(self.model(data), labels)"),
        (KEEPS, "data = labels = batch"),
    ),
    "read twice in a call": Idiom(
        train("loss = self.criterion(self.model(batch), batch)"),
        (KEEPS, "loss = self.criterion(self.model(batch), batch)"),
    ),
    "a dict": Idiom(train("x = batch['x']", "y = batch['y']", LOSS), (KEEPS, "x = batch['x']")),
    "an index": Idiom(train("loss = self.model(batch[0]).mean()"), (KEEPS, "loss = self.model(batch[0]).mean()")),
    "double star": Idiom(train("loss = self.model(**batch).loss"), (KEEPS, "loss = self.model(**batch).loss")),
    "attributes": Idiom(
        train("loss = self.model(batch.x, batch.batch).mean()"),
        (KEEPS, "loss = self.model(batch.x, batch.batch).mean()"),
    ),
    "given whole": Idiom(train("loss = self.model(batch).mean()"), (KEEPS, "loss = self.model(batch).mean()")),
    "given to a helper": Idiom(
        train("loss = self._loss(batch)")
        + "\ndef _loss(self, batch):\n    x, y = batch\n    return self.model(x).mean()\n",
        (KEEPS, "loss = self._loss(batch)", "def _loss(self, batch):", "x, y = batch"),
    ),
    "never used": Idiom(
        train("loss = self.model(self.sample()).mean()"),
        (TAKES, "next(dataloader_iter)  # this trial does not use its batches"),
    ),
    "only compared": Idiom(
        train("assert batch is not None", "x, y = batch", LOSS), (KEEPS, "assert batch is not None", "x, y = batch")
    ),
    "its length": Idiom(train("n = len(batch)", "x, y = batch", LOSS), (KEEPS, "n = len(batch)")),
    "in an f-string": Idiom(train('print(f"{len(batch)}")', "x, y = batch", LOSS), (KEEPS, 'print(f"{len(batch)}")')),
    "in a lambda": Idiom(
        train("get = lambda: batch", "x, y = get()", LOSS), (KEEPS, "get = lambda: batch", "x, y = get()")
    ),
    "moved by hand": Idiom(
        train("x, y = batch", "x = x.cuda()", "y = self.context.to_device(y)", LOSS),
        (f"x, y = {NEXT}", "x = x.cuda()", "y = self.context.to_device(y)"),
    ),
    "under a docstring": Idiom(
        train('"""One step."""', "loss = self.model(batch).mean()"), (TAKES, '"""One step."""', KEEPS)
    ),
    "under a comment": Idiom(
        train("# the batch", "# is a tuple", "x, y = batch  # (x, y)", LOSS),
        ("# the batch", "# is a tuple", f"x, y = {NEXT}  # (x, y)"),
    ),
    "a keyword of the same name": Idiom(
        train("x, y = batch", "loss = self.model(x, batch=3).mean()"),
        (f"x, y = {NEXT}", "loss = self.model(x, batch=3).mean()"),
    ),
    "a method of the same name": Idiom(
        train("x, y = batch", "loss = self.batch(x).mean()"), (f"x, y = {NEXT}", "loss = self.batch(x).mean()")
    ),
    "the new name is taken": Idiom(
        train("dataloader_iter = 3", "x, y = batch", LOSS),
        ("dataloader_iter = 3", "x, y = self.context.to_device(next(dataloader_iterator))"),
    ),
    "reassigned conditionally": Idiom(
        train("if self.flip:", "    batch = flip(batch)", "x, y = batch", LOSS),
        (KEEPS, "if self.flip:", "batch = flip(batch)", "x, y = batch"),
    ),
    "deleted": Idiom(train("x, y = batch", "del batch", LOSS), (KEEPS, "x, y = batch", "del batch")),
    "augmented": Idiom(train("batch += 1", "loss = self.model(batch).mean()"), (KEEPS, "batch += 1")),
    "annotated": Idiom(train("batch: Any = batch", "x, y = batch", LOSS), (KEEPS, "batch: Any = batch")),
    "walrus": Idiom(train("if (n := len(batch)) > 1:", "    pass", "x, y = batch", LOSS), (KEEPS,)),
}  # fmt: skip

SIGNATURES = {
    "no annotations": Idiom(
        train("x, y = batch", LOSS, head="def train_batch(self, batch, epoch_idx, batch_idx):"),
        ("def train_batch(self, dataloader_iter, epoch_idx, batch_idx):", f"x, y = {NEXT}"),
    ),
    "module annotation": Idiom(
        train("x, y = batch", LOSS, head=HEAD.replace("TorchData", "pytorch.TorchData")),
        (folded("Iterator[pytorch.TorchData]"),),
    ),
    "quoted annotation": Idiom(
        train("x, y = batch", LOSS, head=HEAD.replace("TorchData", '"TorchData"')),
        (folded('"Iterator[TorchData]"'),),
    ),
    "union annotation": Idiom(
        train("x, y = batch", LOSS, head=HEAD.replace("TorchData", "Tuple[Any, ...]")),
        (folded("Iterator[Tuple[Any, ...]]"),),
    ),
    "over several lines": Idiom(
        train("x, y = batch", LOSS,
              head="def train_batch(\n    self,\n    batch: TorchData,  # data\n    epoch_idx: int,\n"
              "    batch_idx: int,\n):"),
        ("dataloader_iter: Iterator[TorchData],  # data", "epoch_idx: int,"),
    ),
    "double star": Idiom(
        train("x, y = batch", "print(kwargs['epoch_idx'])", LOSS, head="def train_batch(self, batch, **kwargs):"),
        ('kwargs = {"epoch_idx": epoch_idx, "batch_idx": batch_idx, **kwargs}', f"x, y = {NEXT}",
         "print(kwargs['epoch_idx'])"),
    ),
    "double star, not used": Idiom(
        train("x, y = batch", LOSS, head="def train_batch(self, batch, **_):"),
        ("def train_batch(self, dataloader_iter, epoch_idx, batch_idx, **_):",),
    ),
    "with a trailing double star": Idiom(
        train("x, y = batch", LOSS, head="def train_batch(self, batch, epoch_idx, batch_idx, **kwargs):"),
        ("def train_batch(self, dataloader_iter, epoch_idx, batch_idx, **kwargs):",),
    ),
    "keyword only": Idiom(
        train("x, y = batch", LOSS, head="def train_batch(self, batch, *, epoch_idx, batch_idx):"),
        ("def train_batch(self, dataloader_iter, epoch_idx, batch_idx):",),
    ),
    "defaults": Idiom(
        train("x, y = batch", LOSS, head="def train_batch(self, batch, epoch_idx=0, batch_idx=0):"),
        ("def train_batch(self, dataloader_iter, epoch_idx=0, batch_idx=0):",),
    ),
    "old, with a model": Idiom(
        train("x, y = batch", LOSS, head="def train_batch(self, batch, model, epoch_idx, batch_idx):"),
        blocked=("DSM310", "is not called with those parameters"),
    ),
    "another order": Idiom(
        train("x, y = batch", LOSS, head="def train_batch(self, batch, batch_idx, epoch_idx):"),
        blocked=("DSM310", "is not called with those parameters"),
    ),
}  # fmt: skip

EVAL = "def evaluate_batch(self, {}):\n"
RETURNS = "    return {'loss': self.model(x).mean()}\n"

EVALUATION = {
    "one argument": Idiom(
        EVAL.format("batch: TorchData") + "    x, y = batch\n" + RETURNS,
        ("def evaluate_batch(self, dataloader_iter: Iterator[TorchData]):", f"x, y = {NEXT}"),
    ),
    "two arguments": Idiom(
        EVAL.format("batch, batch_idx: int") + "    x, y = batch\n" + RETURNS,
        ("def evaluate_batch(self, dataloader_iter, batch_idx: int):", f"x, y = {NEXT}"),
    ),
    "an index with a default": Idiom(
        EVAL.format("batch, batch_idx=0") + "    x, y = batch\n" + RETURNS,
        ("def evaluate_batch(self, dataloader_iter, batch_idx=0):",),
    ),
    "double star": Idiom(
        EVAL.format("batch, **kwargs") + "    x, y = batch\n    print(kwargs)\n" + RETURNS,
        ("def evaluate_batch(self, dataloader_iter, batch_idx, **kwargs):",
         'kwargs = {"batch_idx": batch_idx, **kwargs}'),
    ),
    "a third argument": Idiom(
        EVAL.format("batch, model, batch_idx") + "    x, y = batch\n" + RETURNS,
        blocked=("DSM310", "is not called with those parameters"),
    ),
    "given to the training code": Idiom(
        EVAL.format("batch") + "    return self.train_batch(batch, 0, 0)\n",
        ("return self.train_batch(iter([batch]), 0, 0)",),
    ),
    "called by another method": Idiom(
        EVAL.format("batch") + "    x, y = batch\n" + RETURNS
        + "\ndef look(self, samples):\n    return self.evaluate_batch(samples[0])\n",
        ("return self.evaluate_batch(iter([samples[0]]))",),
    ),
    "behind its colon": Idiom(
        "def evaluate_batch(self, batch: TorchData): return {'loss': self.model(batch[0]).mean()}  # short\n",
        ("def evaluate_batch(self, dataloader_iter: Iterator[TorchData]):", KEEPS,
         "return {'loss': self.model(batch[0]).mean()}  # short"),
    ),
    "a stub": Idiom(
        "def evaluate_batch(self, batch, **kwargs): pass\n",
        ("def evaluate_batch(self, dataloader_iter, batch_idx, **kwargs):",
         "next(dataloader_iter)  # this trial does not use its batches", "pass"),
    ),
}  # fmt: skip


@idioms(BATCHES)
def test_batches(idiom: Idiom, tmp_path: Path) -> None:
    idiom.check(tmp_path)


@idioms(SIGNATURES)
def test_signatures(idiom: Idiom, tmp_path: Path) -> None:
    idiom.check(tmp_path)


@idioms(EVALUATION)
def test_evaluate_batch(idiom: Idiom, tmp_path: Path) -> None:
    idiom.check(tmp_path)


FULL = """\
def evaluate_full_dataset(self, data_loader):
    losses = []
    for batch in data_loader:
        batch = self.context.to_device(batch)
        losses.append(self.model(batch[0]).mean().item())
    return {"loss": sum(losses) / len(losses)}
"""


def test_evaluate_full_dataset_stays_as_it_is(tmp_path: Path) -> None:
    text = examples.module(FULL)
    text = text.replace(text[text.index("    def evaluate_batch") : text.index("    def build_training")], "")
    result = examples.convert(tmp_path, text)
    assert examples.problems(result) == []
    assert result.after is not None
    assert examples.methods(result.after.decode())["evaluate_full_dataset"] == examples.methods(text)[
        "evaluate_full_dataset"
    ].replace("    def evaluate", "def evaluate")


MICRO = "self.context.get_train_micro_batch_size_per_gpu()"
SLOT = "self.context.get_per_slot_batch_size()"
BUILD = "def build_training_data_loader(self):\n"

SIZES = {
    "in a loader": Idiom(
        BUILD + f"    return DataLoader(self.data, batch_size={SLOT})\n",
        (f"return DataLoader(self.data, batch_size={MICRO})",),
    ),
    "under a name": Idiom(
        BUILD + f"    size = {SLOT}\n    return DataLoader(self.data, size)\n", (f"size = {MICRO}",)
    ),
    "arithmetic": Idiom(
        BUILD + f"    return DataLoader(self.data, batch_size=int(1.5 * {SLOT}))\n",
        (f"return DataLoader(self.data, batch_size=int(1.5 * {MICRO}))",),
    ),
    "in __init__": Idiom(
        with_init(f"self.batch_size = {SLOT}"), (f"self.batch_size = {SLOT}",)
    ),
    "in another method": Idiom(
        f"def sizes(self):\n    return {SLOT}\n", (f"return {SLOT}",)
    ),
    "while training": Idiom(
        train("x, y = batch", f"hidden = self.model.init_hidden({SLOT})", "loss = self.model(x, hidden).mean()"),
        (f"hidden = self.model.init_hidden({MICRO})",),
    ),
    "in a loader that __init__ builds": Idiom(
        with_init("self.length = len(self.build_training_data_loader())")
        + BUILD + f"    return DataLoader(self.data, batch_size={SLOT})\n",
        (f"return DataLoader(self.data, batch_size={SLOT})",),
    ),
    "global": Idiom(
        BUILD + "    return DataLoader(self.data, batch_size=self.context.get_global_batch_size())\n",
        ("return DataLoader(self.data, batch_size=self.context.get_global_batch_size())",),
    ),
    "a number": Idiom(
        BUILD + "    return DataLoader(self.data, batch_size=4)\n", ("return DataLoader(self.data, batch_size=4)",)
    ),
    "torch's loader, checks switched off": Idiom(
        BUILD + "    self.context.experimental.disable_dataset_reproducibility_checks()\n"
        f"    return torch.utils.data.DataLoader(self.data, batch_size={SLOT})\n",
        ("self.context.disable_dataset_reproducibility_checks()",
         f"return torch.utils.data.DataLoader(self.data, batch_size={MICRO})"),
    ),
    "a sampler": Idiom(
        BUILD + f"    sampler = torch.utils.data.BatchSampler(self.order, {SLOT}, drop_last=True)\n"
        "    return DataLoader(self.data, batch_sampler=sampler, collate_fn=stack)\n",
        ("sampler = torch.utils.data.BatchSampler(", f"self.order, {MICRO}, drop_last=True", ")"),
    ),
    "consumed by hand": Idiom(
        with_init("loader = self.build_training_data_loader()", "self.first = next(iter(loader.get_data_loader()))")
        + BUILD + "    return DataLoader(self.data, batch_size=4)\n",
        ("self.first = next(iter(loader.get_data_loader()))",),
    ),
    "batches of another shape": Idiom(
        "def get_batch_length(self, batch):\n    return len(batch['x'])\n",
        ("def get_batch_length(self, batch):", "return len(batch['x'])"),
    ),
}  # fmt: skip


@idioms(SIZES)
def test_batch_sizes(idiom: Idiom, tmp_path: Path) -> None:
    idiom.check(tmp_path)


CONTEXT = {
    "a reducer": Idiom(
        with_init("self.acc = self.context.wrap_reducer(lambda values: sum(values), name='acc', for_training=False)"),
        ("self.acc = self.context.wrap_reducer(lambda values: sum(values), name='acc', for_training=False)",),
    ),
    "an experimental reducer": Idiom(
        with_init("self.acc = self.context.experimental.wrap_reducer(sum, name='acc')"),
        ("self.acc = self.context.wrap_reducer(sum, name='acc')",),
    ),
    "auto_to_device switched off": Idiom(
        with_init("self.context.experimental.disable_auto_to_device()  # the trial moves them")
        + train("x, y = batch", LOSS),
        ("# the trial moves them", "x, y = next(dataloader_iter)"),
    ),
    "experimental under another name": Idiom(
        with_init("experiments = self.context.experimental", "experiments.use_amp()"),
        blocked=("DSM390", "experimental"),
    ),
    "use_deepspeed": Idiom(
        with_init("self.context.experimental.use_deepspeed()"), blocked=("DSM390", "experimental.use_deepspeed")
    ),
    "distributed": Idiom(
        with_init("self.rank = self.context.distributed.get_rank()"),
        ("self.rank = self.context.distributed.get_rank()",),
    ),
    "tensorboard writer": Idiom(
        with_init("self.writer = self.context.get_tensorboard_writer()"),
        ("self.writer = self.context.get_tensorboard_writer()",),
    ),
    "progress": Idiom(
        train("x, y = batch", LOSS, "if self.context.is_epoch_start():",
              "    print(self.context.current_train_epoch())"),
        ("if self.context.is_epoch_start():", "print(self.context.current_train_epoch())"),
    ),
    "a private attribute": Idiom(
        with_init("self.slots = self.context._slots_per_trial"), blocked=("DSM390", "_slots_per_trial")
    ),
    "the epoch's length": Idiom(
        train("x, y = batch", LOSS, "done = batch_idx / self.context._epoch_len"),
        ("done = batch_idx / self.context._epoch_len",),
    ),
    "aggregation in a batch": Idiom(
        train("x, y = batch", LOSS, "k = self.context._aggregation_frequency"),
        ("k = self.context.get_num_micro_batches_per_slot()",),
    ),
    "aggregation": Idiom(
        with_init("self.k = self.context._aggregation_frequency"), blocked=("DSM390", "_aggregation_frequency")
    ),
    "optimizers": Idiom(with_init("self.first = self.context.optimizers[0]"), ("self.first = self.optimizer",)),
    "given to a helper": Idiom(
        with_init("self.data = make(context)", "self.lr = learning_rate(context)")
        + "\ndef use(self):\n    return other(self.context)\n",
        ("self.data = make(context)", "return other(self.context)"),
    ),
    "state_dict": Idiom(
        "def save(self):\n    torch.save(self.model.state_dict(), 'w.pt')\n",
        ("torch.save(self.model.module.state_dict(), 'w.pt')",),
    ),
    "attributes that are called as hooks are": Idiom(
        with_init("self.load = context.get_hparam('load')", "if self.load:", "    self.restore(self.load)")
        + "\ndef restore(self, path):\n    self.loader = path\n    return path.load(self.load)\n",
        ("self.load_ = context.get_hparam('load')", "if self.load_:", "self.restore(self.load_)", "self.loader = path",
         "return path.load(self.load_)"),
    ),
    "by a string": Idiom(
        "def save(self):\n    torch.save(getattr(self, 'model').state_dict(), 'w.pt')\n"
        "    return getattr(self, 'model', None), getattr(self, 'criterion')\n",
        ("torch.save(getattr(self, 'model').module.state_dict(), 'w.pt')",
         "return getattr(self, 'model', None), getattr(self, 'criterion')"),
    ),
    "by a string that is not known": Idiom(
        "def save(self, name):\n    return getattr(self, name).state_dict()\n", review=("DSM306",),
    ),
    "among all attributes": Idiom(
        "def save(self):\n    return {k: v.state_dict() for k, v in vars(self).items() if isinstance(v, nn.Module)}\n\n"
        "def all(self):\n    return [v.state_dict() for v in self.__dict__.values() if hasattr(v, 'state_dict')]\n",
        review=("DSM306",),
    ),
    "a number by a string": Idiom("def look(self, name):\n    return float(getattr(self, name)), len(vars(self))\n"),
    "under a local name": Idiom(
        "def look(self):\n    net = self.model\n    print(net.training)\n    return net[0], net.state_dict()\n",
        ("net = self.model", "print(net.training)", "return net.module[0], net.module.state_dict()"),
    ),
    "without DistributedDataParallel": Idiom(
        "def look(self):\n    ddp = isinstance(self.model, nn.parallel.DistributedDataParallel)\n"
        "    net = self.model.module if ddp else self.model\n    return net.state_dict()\n",
        ("net = self.model.module if ddp else self.model.module", "return net.state_dict()"),
    ),
    "what train() and eval() return": Idiom(
        "def look(self):\n    self.model.eval()\n    net = self.model.eval()\n    return net\n",
        ("self.model.eval()", "net = self.model.module.eval()"),
    ),
    "the attribute bound anew": Idiom(
        "def look(self):\n    self.model = self.model.eval()\n",
        ("model=EngineModule(self.optimizer, model=self.model), optimizer=self.optimizer, config=ds_config",
         "self.engine.backward(loss)",
         "self.model = self.model.eval()"),
    ),
    "deepcopy and isinstance": Idiom(
        "def look(self):\n    assert isinstance(self.model, Net)\n    return copy.deepcopy(self.model)\n",
        ("assert isinstance(self.model.module, Net)", "return copy.deepcopy(self.model.module)"),
    ),
    "a custom method of the model": Idiom(
        train("x, y = batch", "loss = self.model.parse_losses(x)['loss']", "self.model.encoder.eval()"),
        ("loss = self.model.parse_losses(x)['loss']", "self.model.encoder.eval()"),
        review=("DSM301",),
    ),
    "an item of the model": Idiom(
        "def look(self):\n    return self.model[0].weight, len(self.model)\n",
        ("return self.model.module[0].weight, len(self.model.module)",),
    ),
    "train and eval": Idiom(
        train("self.model.train()", "x, y = batch", LOSS, "self.model.eval()"),
        ("self.model.train()", "self.model.eval()"),
    ),
    "callbacks": Idiom(
        "def build_callbacks(self):\n    return {'mine': Mine(self)}\n", ("return {'mine': Mine(self)}",)
    ),
    "an exponential average": Idiom(
        with_init("self.ema = copy.deepcopy(self.model)")
        + train("x, y = batch", LOSS, "for a, b in zip(self.ema.parameters(), self.model.parameters()):",
                "    a.data.mul_(0.9).add_(b.data, alpha=0.1)"),
        ("self.ema = copy.deepcopy(self.model)", "engine, self.optimizer, _, _ = deepspeed.initialize("),
    ),
}  # fmt: skip


@idioms(CONTEXT)
def test_what_is_asked_of_the_context_and_the_model(idiom: Idiom, tmp_path: Path) -> None:
    idiom.check(tmp_path)


MAIN = """

def main():
    hparams = {{"global_batch_size": 4}}
    with {module}init({arguments}) as train_context:
        trial = MyTrial(train_context)
        trainer = {module}Trainer(trial, train_context)
        trainer.fit(max_length=pytorch.Batch(100), validation_period=pytorch.Batch(10), checkpoint_policy="none")


main()
"""


def script(arguments: str, module: str = "pytorch.") -> str:
    return examples.module() + MAIN.format(arguments=arguments, module=module)


LAUNCH = {
    "init and Trainer": Idiom(
        script("hparams=hparams"),
        ("with init(hparams=hparams) as train_context:", "trainer = Trainer(trial, train_context)",
         'trainer.fit(max_length=pytorch.Batch(100), validation_period=pytorch.Batch(10), checkpoint_policy="none")'),
    ),
    "aggregation_frequency": Idiom(
        script("hparams=hparams, aggregation_frequency=2"),
        ('"overwrite_deepspeed_args": {"gradient_accumulation_steps": 2},',
         "with init(hparams=hparams) as train_context:",
         'trainer.fit(max_length=pytorch.Batch(50), validation_period=pytorch.Batch(5), checkpoint_policy="none")'),
        ("aggregation_frequency",),
    ),
    "aggregation_frequency over several lines": Idiom(
        script("\n        aggregation_frequency=2,  # two\n        hparams=hparams,\n    "),
        ('"overwrite_deepspeed_args": {"gradient_accumulation_steps": 2},', "# two", "hparams=hparams,"),
    ),
    "aggregation_frequency with hyperparameters known later": Idiom(
        script("hparams=read(), aggregation_frequency=2"),
        ('with init(hparams={**read(), "overwrite_deepspeed_args": {"gradient_accumulation_steps": 2}}) '
         "as train_context:",),
    ),
    "aggregation_frequency of 1": Idiom(
        script("hparams=hparams, aggregation_frequency=1"), ("with init(hparams=hparams) as train_context:",)
    ),
    "aggregation_frequency known later": Idiom(
        script("hparams=hparams, aggregation_frequency=K"),
        ('with init(hparams={**hparams, "overwrite_deepspeed_args": {"gradient_accumulation_steps": K}}) '
         "as train_context:",
         "trainer.fit(", "max_length=pytorch.Batch(max(100 // K, 1)),",
         "validation_period=pytorch.Batch(max(10 // K, 1)),", 'checkpoint_policy="none",', ")"),
    ),
    "aggregation_frequency that is computed": Idiom(
        script("hparams=hparams, aggregation_frequency=read()"), blocked=("DSM330", "aggregation_frequency=read()")
    ),
    "aggregation_frequency without hyperparameters": Idiom(
        script("aggregation_frequency=2"), blocked=("DSM330", "aggregation_frequency=2")
    ),
    "lengths that do not divide": Idiom(
        script("hparams=hparams, aggregation_frequency=8"),
        ('trainer.fit(max_length=pytorch.Batch(12), validation_period=pytorch.Batch(1), checkpoint_policy="none")',),
        review=("DSM330",),
    ),
    "lengths in epochs": Idiom(
        script("hparams=hparams, aggregation_frequency=2").replace("pytorch.Batch(100)", "pytorch.Epoch(3)"),
        ('trainer.fit(max_length=pytorch.Epoch(3), validation_period=pytorch.Batch(5), checkpoint_policy="none")',),
    ),
    "configure_profiler": Idiom(
        script("hparams=hparams").replace(
            "        trainer.fit", "        trainer.configure_profiler(enabled=True)\n        trainer.fit"),
        ("trainer = Trainer(trial, train_context)",), ("configure_profiler",),
    ),
}  # fmt: skip


@idioms(LAUNCH)
def test_launch_code(idiom: Idiom, tmp_path: Path) -> None:
    idiom.check(tmp_path)


@pytest.mark.parametrize("gone", ["# first\n    # second\n    ", ""])
def test_comments_above_the_first_statement_stay_below_the_batch(gone: str, tmp_path: Path) -> None:
    block = HEAD + f"\n    {gone}loss = self.model(batch[0]).mean()\n" + END
    wanted = (TAKES, KEEPS, *(line.strip() for line in gone.strip().splitlines()), "loss = self.model(batch[0]).mean()")
    Idiom(block, wanted).check(tmp_path)


PUT_ON = {
    "the class": Idiom(
        examples.module("") + "\n\ndef train(self, batch, epoch_idx, batch_idx):\n    return {}\n\n\n"
        "MyTrial.train_batch = train\n",
        blocked=("DSM310", "MyTrial.train_batch"),
    ),
    "the trial": Idiom(
        "def choose(self):\n    self.train_batch = self.other\n", blocked=("DSM310", "self.train_batch")
    ),
}  # fmt: skip


@idioms(PUT_ON)
def test_a_batch_method_that_is_assigned_instead_of_defined_blocks(idiom: Idiom, tmp_path: Path) -> None:
    idiom.check(tmp_path)


WRAPPER = """import functools

import torch


def around(function):
    @functools.wraps(function)
    def inner({parameters}):
        {first}
        return function({arguments})
    return inner


"""


def decorated(folder: Path, decorator: str, parameters: str, first: str, arguments: str) -> FileResult:
    head = WRAPPER.format(parameters=parameters, first=first, arguments=arguments)
    text = examples.module().replace("    def train_batch(", f"    {decorator}\n    def train_batch(")
    return examples.convert(folder, head + text)


@pytest.mark.parametrize(
    ("decorator", "parameters", "first", "arguments"),
    [
        ("@around", "self, *args, **kwargs", "print(self)", "self, *args, **kwargs"),
        ("@around", "self, batch, epoch_idx, batch_idx", "print(self)", "self, batch, epoch_idx, batch_idx"),
        ("@torch.enable_grad()", "*args", "pass", "*args"),
    ],
    ids=["any arguments", "named arguments", "torch's own"],
)
def test_a_decorator_that_passes_the_batch_on_may_pass_an_iterator_on(
    decorator: str, parameters: str, first: str, arguments: str, tmp_path: Path
) -> None:
    result = decorated(tmp_path, decorator, parameters, first, arguments)
    assert result.after is not None and not [f for f in result.findings if f.severity is Severity.REVIEW]


@pytest.mark.parametrize(
    ("parameters", "first", "arguments"),
    [
        ("self, batch, epoch_idx, batch_idx", "batch = batch[0]", "self, batch, epoch_idx, batch_idx"),
        ("self, batch, *rest", "pass", "self, move(batch), *rest"),
        ("*args", "print(args[1][0])", "*args"),
    ],
    ids=["changed", "moved", "indexed"],
)
def test_a_decorator_that_uses_the_batch_blocks(parameters: str, first: str, arguments: str, tmp_path: Path) -> None:
    result = decorated(tmp_path, "@around", parameters, first, arguments)
    assert any("DSM310" in p and "the decorator around" in p for p in examples.problems(result)), result.findings


def test_a_decorator_that_cannot_be_seen_is_reported(tmp_path: Path) -> None:
    result = decorated(tmp_path, "@profile", "*args", "pass", "*args")
    assert [f.code for f in result.findings if f.severity is Severity.REVIEW] == ["DSM310"]


def test_an_epochs_length_is_reviewed_where_an_experiment_accumulates(tmp_path: Path) -> None:
    (tmp_path / "const.yaml").write_text(
        "entrypoint: model_def:MyTrial\nhyperparameters:\n  global_batch_size: 8\n"
        "optimizations:\n  aggregation_frequency: 2\n"
    )
    source = train("x, y = batch", LOSS, "done = 1 / self.context._epoch_len")
    Idiom(source, ("done = 1 / self.context._epoch_len",), review=("DSM390",)).check(tmp_path)


MICRO_BATCHES = "batch_idx = self.context.get_micro_batch_idx()"


@pytest.mark.parametrize(
    ("line", "has", "review"),
    [
        ("if batch_idx % 2: print(epoch_idx)", (MICRO_BATCHES, "if batch_idx % 2: print(epoch_idx)"), ()),
        (
            "print(self.context.current_train_batch())",
            ("print(self.context.get_micro_batch_idx())",),
            (),
        ),
        ("print(self.context.is_epoch_end())", ("print(self.context.is_epoch_end())",), ("DSM390",)),
    ],
)
def test_with_accumulation_indices_still_count_micro_batches(
    line: str, has: tuple[str, ...], review: tuple[str, ...], tmp_path: Path
) -> None:
    config = "entrypoint: model_def:MyTrial\nhyperparameters: {global_batch_size: 8}\n"
    (tmp_path / "const.yaml").write_text(config + "optimizations: {aggregation_frequency: 2}\n")
    Idiom(train("x, y = batch", LOSS, line), has, review=review).check(tmp_path)


@pytest.mark.parametrize(
    ("parameters", "has", "review"),
    [
        ("batch, **kwargs", (MICRO_BATCHES, 'kwargs = {"epoch_idx": epoch_idx, "batch_idx": batch_idx, **kwargs}'), ()),
        ("batch, *args", (), ("DSM310",)),
    ],
)
def test_with_accumulation_hidden_indices_count_micro_batches_or_are_reviewed(
    parameters: str, has: tuple[str, ...], review: tuple[str, ...], tmp_path: Path
) -> None:
    config = "entrypoint: model_def:MyTrial\nhyperparameters: {global_batch_size: 8}\n"
    (tmp_path / "const.yaml").write_text(config + "optimizations: {aggregation_frequency: 2}\n")
    head = f"def train_batch(self, {parameters}):"
    source = train("x, y = batch", LOSS, f"print({parameters.rpartition('*')[2]})", head=head)
    Idiom(source, has, review=review).check(tmp_path)
