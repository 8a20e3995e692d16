"""wrap_model, wrap_optimizer and wrap_lr_scheduler in every shape; optimizers however they are built."""

from __future__ import annotations

from pathlib import Path

import examples
import pytest
from ds_migrate.trial.model import Optimizer
from idiom_case import Idiom, idioms

INIT = "def __init__(self, context: PyTorchTrialContext) -> None:\n    self.context = context\n"
SGD = "self.optimizer = self.context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))"
INITIALIZE = "engine, self.optimizer, _, _ = deepspeed.initialize("
SIMPLE = ("model=self.model, optimizer=self.optimizer, config=ds_config", ")",
          "self.model = self.context.wrap_model_engine(engine)")  # fmt: skip
GATE = "if self.context.is_gradient_accumulation_boundary():"
COLLECTED = "self.context.engines.initialize(ds_config)"


def init(*lines: str) -> str:
    """``__init__`` with these lines after the context is kept."""
    return INIT + "".join(f"    {line}\n" if line else "\n" for line in lines)


WRAPS = {
    "in a function inside": Idiom(
        init("def create(frozen=False):", "    model = self.context.wrap_model(Net())", "    return model", "",
             "self.model = create()", "self.average = create(frozen=True)", SGD, "self.losses = []"),
        ("model = self.context.engines.add_model(Net())", "self.average = create(frozen=True)",
         "self.optimizer = self.context.engines.add_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))",
         COLLECTED, "self.losses = []"),
    ),
    "returned by a helper under local names": Idiom(
        init("self.model, self.optimizer = self.create()", "self.losses = []") + """
def create(self):
    net = self.context.wrap_model(Net())
    optimizer = self.context.wrap_optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    return net, optimizer
""",
        ("self.context.engines.backward(loss)", "self.context.engines[self.optimizer].step()",
         "net = self.context.engines.add_model(Net())", COLLECTED, "return net, optimizer"),
    ),
    "the last statement of a line goes": Idiom(
        init("self.model = Net(); self.model = self.context.wrap_model(self.model)", SGD),
        ("self.model = Net()", *SIMPLE),
    ),
    "in a function inside that nothing calls": Idiom(
        init("def create():", "    self.model = self.context.wrap_model(Net())", "self.model = Net()", SGD),
        blocked=("DSM205", "wrapped in create(), which __init__() does not call"),
    ),
    "inline": Idiom(init("self.model = self.context.wrap_model(Net())", SGD), ("self.model = Net()", *SIMPLE)),
    "keyword": Idiom(init("self.model = self.context.wrap_model(model=Net())", SGD), ("self.model = Net()", *SIMPLE)),
    "a name": Idiom(
        init("net = Net()", "self.model = self.context.wrap_model(net)", SGD),
        ("net = Net()", "self.model = net", *SIMPLE),
    ),
    "a name, optimizer before the wrap": Idiom(
        init("net = Net()", "opt = torch.optim.SGD(net.parameters(), lr=0.1)",
             "self.model = self.context.wrap_model(net)", "self.optimizer = self.context.wrap_optimizer(opt)"),
        ("net = Net()", "opt = torch.optim.SGD(net.parameters(), lr=0.1)",
         "model=net, optimizer=opt, config=ds_config", "self.model = self.context.wrap_model_engine(engine)"),
        ("self.model = net", "self.optimizer = opt"),
    ),
    "an attribute": Idiom(
        init("self.net = Net()", "self.model = self.context.wrap_model(self.net)", SGD),
        ("self.net = Net()", "self.model = self.net"),
    ),
    "rebinding an attribute": Idiom(
        init("self.model = Net()", "self.model = self.context.wrap_model(self.model)", SGD),
        ("self.model = Net()", "self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)", *SIMPLE),
    ),
    "rebinding a name": Idiom(
        init("model = Net()", "model = self.context.wrap_model(model)", "self.model = model", SGD),
        ("model = Net()", "self.model = model", *SIMPLE),
    ),
    "annotated": Idiom(
        init("self.model: nn.Module = self.context.wrap_model(Net())", SGD),
        ("self.model: nn.Module = Net()", *SIMPLE),
    ),
    "cast": Idiom(
        init("self.model = cast(Net, self.context.wrap_model(Net()))", SGD), ("self.model = cast(Net, Net())", *SIMPLE)
    ),
    "two names": Idiom(
        init("self.model = self.net = self.context.wrap_model(Net())", SGD), ("self.model = self.net = Net()",),
    ),
    "a tuple": Idiom(
        init("model = Net()", "self.model, self.optimizer = (", "    self.context.wrap_model(model),",
             "    self.context.wrap_optimizer(torch.optim.SGD(model.parameters(), lr=0.1)),", ")"),
        ("self.model, self.optimizer = (", "model,", "torch.optim.SGD(model.parameters(), lr=0.1),", ")", *SIMPLE),
    ),
    "discarded": Idiom(
        init("self.model = Net()", "self.context.wrap_model(self.model)", SGD),
        ("self.model = Net()", "self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)", *SIMPLE),
    ),
    "discarded optimizer": Idiom(
        init("self.model = self.context.wrap_model(Net())",
             "self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)",
             "self.context.wrap_optimizer(self.optimizer)"),
        ("self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)", *SIMPLE),
    ),
    "over several lines": Idiom(
        init("self.model = self.context.wrap_model(  # the model", "    nn.Sequential(",
             "        nn.Linear(3, 3),  # in", "        nn.Linear(3, 1),", "    )", ")", SGD),
        ("nn.Linear(3, 3),  # in", *SIMPLE),
    ),
    "behind a semicolon": Idiom(
        init("net = Net(); self.model = self.context.wrap_model(net)", SGD), ("net = Net(); self.model = net", *SIMPLE)
    ),
    "moved by hand": Idiom(
        init("self.model = self.context.wrap_model(Net().to(self.context.device))", SGD),
        ("self.model = Net().to(self.context.device)", *SIMPLE),
    ),
    "surgery after the wrap": Idiom(
        init("self.model = self.context.wrap_model(Net())", "self.model.apply(init_weights)",
             "self.model.load_state_dict(torch.load('w.pt'))", SGD, "print(self.model)"),
        ("self.model = Net().to(self.context.device)", "self.model.apply(init_weights)", "print(self.model)", *SIMPLE),
    ),
    "both branches of an if": Idiom(
        init('if self.context.get_hparam("big"):', "    self.model = self.context.wrap_model(Net(9))", "else:",
             "    self.model = self.context.wrap_model(Net(3))", SGD),
        ("self.model = Net(9)", "else:", "self.model = Net(3)", *SIMPLE),
    ),
    "a conditional expression": Idiom(
        init('self.model = self.context.wrap_model(Net(9) if self.context.get_hparam("big") else Net(3))', SGD),
        ('self.model = Net(9) if self.context.get_hparam("big") else Net(3)', *SIMPLE),
    ),
    "optimizers in branches": Idiom(
        init("self.model = self.context.wrap_model(Net())", 'if self.context.get_hparam("adam"):',
             "    self.optimizer = self.context.wrap_optimizer(torch.optim.Adam(self.model.parameters()))", "else:",
             f"    {SGD}"),
        ("self.optimizer = torch.optim.Adam(self.model.parameters())", "else:",
         "self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)", *SIMPLE),
    ),
    "try and except": Idiom(
        init("try:", "    self.model = self.context.wrap_model(Net(big=True))", "except TypeError:",
             "    self.model = self.context.wrap_model(Net())", SGD),
        ("self.model = Net(big=True)", "except TypeError:", "self.model = Net()", *SIMPLE),
    ),
    "only under an if": Idiom(
        init("self.model = self.context.wrap_model(Net())", "self.teacher = None", "if self.context.get_hparam('t'):",
             "    self.teacher = self.context.wrap_model(Net())", SGD),
        ("self.model = self.context.engines.add_model(Net())", "self.teacher = self.context.engines.add_model(Net())",
         COLLECTED, "self.context.engines.backward(loss)", GATE, "self.context.engines[self.optimizer].step()"),
    ),
    "in a comprehension": Idiom(
        init("self.nets = [self.context.wrap_model(Net()) for _ in range(2)]", "self.model = self.nets[0]", SGD),
        ("self.nets = [self.context.engines.add_model(Net()) for _ in range(2)]", COLLECTED),
    ),
    "in a loop": Idiom(
        init("self.nets = []", "for size in (3, 4):", "    self.nets.append(self.context.wrap_model(Net(size)))",
             "self.model = self.nets[0]", SGD),
        ("self.nets.append(self.context.engines.add_model(Net(size)))", COLLECTED),
    ),
    "in a dict": Idiom(
        init('self.nets = {"d": self.context.wrap_model(Net()), "g": self.context.wrap_model(Net())}',
             'self.model = self.nets["g"]',
             "self.optimizer = self.context.wrap_optimizer(torch.optim.SGD(self.nets['g'].parameters(), lr=0.1))"),
        ('self.nets = {"d": Net(), "g": Net()}',),
    ),
    "in a list": Idiom(
        init("self.nets = [self.context.wrap_model(Net()), self.context.wrap_model(Net())]",
             "self.model = self.nets[0]",
             "self.optimizer = self.context.wrap_optimizer(torch.optim.SGD(self.nets[0].parameters(), lr=0.1))"),
        ("self.nets = [Net(), Net()]",),
    ),
    "in a helper method": Idiom(
        INIT + "    self._build()\n    self.criterion = nn.MSELoss()\n\ndef _build(self):\n"
        f"    self.model = self.context.wrap_model(Net())\n    {SGD}\n",
        ("self._build()", "def _build(self):", "self.model = Net()", *SIMPLE),
    ),
    "in helper methods that return": Idiom(
        INIT + "    self.model = self._model()\n    self.optimizer = self._optimizer()\n"
        "    self.criterion = nn.MSELoss()\n\ndef _model(self):\n    return self.context.wrap_model(Net())\n\n"
        "def _optimizer(self):\n"
        "    return self.context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))\n",
        ("return self.context.engines.add_model(Net())",
         "return self.context.engines.add_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))"),
    ),
    "in a method that __init__ does not call": Idiom(
        INIT + "    self.criterion = nn.MSELoss()\n\ndef setup(self):\n"
        f"    self.model = self.context.wrap_model(Net())\n    {SGD}\n",
        blocked=("DSM205", "__init__ does not call"),
    ),
    "no model": Idiom(
        init("self.model = Net()", SGD), blocked=("DSM205", "found no wrap_model()"),
    ),
    "no optimizer": Idiom(
        init("self.model = self.context.wrap_model(Net())",
             "self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)"),
        blocked=("DSM205", "found no wrap_optimizer()"),
    ),
    "a wrapped model that is a dictionary of parameters": Idiom(
        init("self.model = self.context.wrap_model(Net())",
             "self.weights = self.context.wrap_model(nn.ParameterDict({'a': nn.Parameter(torch.zeros(()))}))",
             "parameters = [*self.model.parameters(), *self.weights.parameters()]",
             "self.optimizer = self.context.wrap_optimizer(torch.optim.SGD(parameters, lr=0.1))"),
        ("model=EngineModule(self.optimizer, model=self.model, weights=self.weights),",),
    ),
    "horovod options": Idiom(
        init("self.model = self.context.wrap_model(Net())", "self.optimizer = self.context.wrap_optimizer(",
             "    torch.optim.SGD(self.model.parameters(), lr=0.1),  # plain",
             "    backward_passes_per_step=2,  # twice", "    fp16_compression=True,",
             "    average_aggregated_gradients=True,", ")"),
        ("# twice", "self.optimizer = (", "torch.optim.SGD(self.model.parameters(), lr=0.1)  # plain", ")", *SIMPLE),
        ("backward_passes_per_step", "fp16_compression="), review=("DSM202",),
    ),
    "TorchScript": Idiom(
        init("self.model = self.context.wrap_model(torch.jit.script(Net()))", SGD),
        ("model=EngineModule(self.optimizer, model=self.model), optimizer=self.optimizer, config=ds_config",),
    ),
    "a frozen teacher without optimizer": Idiom(
        init("self.model = self.context.wrap_model(Net())", "self.teacher = self.context.wrap_model(Net())", SGD),
        ("self.model = Net()", "self.teacher = Net()",
         "model=EngineModule(self.optimizer, model=self.model, teacher=self.teacher),",
         "self.engine = self.context.wrap_model_engine(engine)", "self.engine.backward(loss)", GATE,
         "self.engine.step()"),
    ),
    "a loss with parameters": Idiom(
        init("self.model = self.context.wrap_model(Net())", "self.criterion = self.context.wrap_model(Loss())",
             "self.optimizer = self.context.wrap_optimizer(torch.optim.SGD(",
             "    list(self.model.parameters()) + list(self.criterion.parameters()), lr=0.1))"),
        ("model=EngineModule(self.optimizer, model=self.model, criterion=self.criterion),",),
    ),
    "names that the codemod wants are taken": Idiom(
        init('hparams = self.context.get_hparams()', "engine = 3", "ds_config = {}",
             "self.model = self.context.wrap_model(Net(hparams, engine, ds_config))", SGD),
        ("ds_hparams = self.context.get_hparams()", "ds_config2 = overwrite_deepspeed_config(",
         "ds_engine, self.optimizer, _, _ = deepspeed.initialize(",
         "self.model = self.context.wrap_model_engine(ds_engine)"),
    ),
}  # fmt: skip

MODEL = "self.model = self.context.wrap_model(Net())"
DECAY = (
    "no_decay = ['bias']",
    "groups = [",
    "    {'params': [p for n, p in self.model.named_parameters() if not any(d in n for d in no_decay)],",
    "     'weight_decay': 0.1},",
    "    {'params': [p for n, p in self.model.named_parameters() if any(d in n for d in no_decay)]},",
    "]",
)


def built(*lines: str) -> str:
    return init(MODEL, *lines)


def wrapped(optimizer: str) -> str:
    return f"self.optimizer = self.context.wrap_optimizer({optimizer})"


OPTIMIZERS = {
    "keyword parameters": (built(wrapped("torch.optim.Adam(params=self.model.parameters(), lr=0.1)")), 1),
    "positional lr": (built(wrapped("torch.optim.Adadelta(self.model.parameters(), 0.1)")), 1),
    "from torch.optim import": (
        built("from torch.optim import AdamW", wrapped("AdamW(self.model.parameters(), lr=0.1)")), 1),
    "arguments from a dict": (
        built("args = {'lr': 0.1}", wrapped("torch.optim.SGD(self.model.parameters(), **args)")), 1),
    "filter": (
        built(wrapped("torch.optim.SGD(filter(lambda p: p.requires_grad, self.model.parameters()), 0.1, 0.9)")), 1),
    "generator with requires_grad": (
        built(wrapped("torch.optim.SGD([p for p in self.model.parameters() if p.requires_grad], 0.1, 0.9)")), 1),
    "list of parameters": (
        built("params = list(self.model.parameters())", wrapped("torch.optim.SGD(params, 0.1, 0.9)")), 1),
    "weight decay groups": (built(*DECAY, wrapped("torch.optim.AdamW(groups, lr=0.1)")), 1),
    "one group": (built(wrapped("torch.optim.SGD([{'params': self.model.parameters()}], 0.1, 0.9)")), 1),
    "no momentum": (built(wrapped("torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0)")), 0),
    "no momentum by position": (built(wrapped("torch.optim.SGD(self.model.parameters(), 0.1, 0.0)")), 0),
    "momentum from a name": (built(wrapped("torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=MOMENTUM)")), 1),
    "momentum in a group": (
        built(wrapped("torch.optim.SGD([{'params': self.model.parameters(), 'momentum': 0.9}], lr=0.1)")), 1),
    "a factory": (built(wrapped("create_optimizer(args, self.model)")), 0),
    "an own class": (built(wrapped("Lamb(self.model.parameters(), lr=0.1)")), 0),
    "chosen at run time": (
        built("kind = getattr(torch.optim, 'SGD')", wrapped("kind(self.model.parameters(), lr=0.1)")), 0),
    "not elementwise": (built(wrapped("torch.optim.LBFGS(self.model.parameters())")), 0),
}  # fmt: skip


@idioms(WRAPS)
def test_wraps(idiom: Idiom, tmp_path: Path) -> None:
    idiom.check(tmp_path)


@pytest.mark.parametrize(("block", "stage"), [pytest.param(*case, id=name) for name, case in OPTIMIZERS.items()])
def test_an_optimizer_over_the_model_gets_the_engine_and_zero_1_only_where_that_is_exact(
    block: str, stage: int, tmp_path: Path
) -> None:
    Idiom(block, SIMPLE).check(tmp_path)
    (tmp_path / "model_def.py").write_text(examples.module(block))
    assert written_config(tmp_path)["zero_optimization"] == {"stage": stage}


def written_config(folder: Path) -> dict[str, object]:
    import json

    created = next(f for f in examples.run(folder).files if f.path.name == "ds_config.json")
    assert created.after is not None
    config: dict[str, object] = json.loads(created.after)
    assert config["gradient_clipping"] == 0.0
    return config


GAN = ("self.generator = self.context.wrap_model(Generator())",
       "self.discriminator = self.context.wrap_model(Discriminator())")  # fmt: skip


def adam(name: str, params: str) -> str:
    return f"self.{name} = self.context.wrap_optimizer(torch.optim.Adam({params}, lr=0.1))"


def steps(*names: str) -> str:
    body = "".join(
        f"    loss{i} = self.generator(batch).mean()\n"
        f"    self.context.backward(loss{i})\n    self.context.step_optimizer(self.{name})\n"
        for i, name in enumerate(names)
    )
    return f"\ndef train_batch(self, batch, epoch_idx, batch_idx):\n{body}    return {{'loss': loss0}}\n"


EVALUATE = "\ndef evaluate_batch(self, batch):\n    return {'loss': self.generator(batch).mean()}\n"

SEVERAL = {
    "two models, two optimizers": Idiom(
        init(*GAN, adam("opt_g", "self.generator.parameters()"), adam("opt_d", "self.discriminator.parameters()"))
        + steps("opt_d", "opt_g") + EVALUATE,
        ("model=EngineModule(self.opt_g, generator=self.generator), optimizer=self.opt_g, config=ds_config",
         "self.engine_g = self.context.wrap_model_engine(engine)",
         "model=EngineModule(self.opt_d, discriminator=self.discriminator), optimizer=self.opt_d, config=ds_config",
         "self.engine_d = self.context.wrap_model_engine(engine)",
         "self.engine_d.backward(loss0)", GATE, "self.engine_d.step()",
         "self.engine_g.backward(loss1)", GATE, "self.engine_g.step()"),
    ),
    "one optimizer over two models": Idiom(
        init(*GAN, adam("opt", "itertools.chain(self.generator.parameters(), self.discriminator.parameters())"))
        + steps("opt") + EVALUATE,
        ("model=EngineModule(self.opt, generator=self.generator, discriminator=self.discriminator),",
         "self.engine = self.context.wrap_model_engine(engine)", "self.engine.backward(loss0)", GATE,
         "self.engine.step()"),
    ),
    "two optimizers over parts of one model": Idiom(
        init("self.generator = self.context.wrap_model(Generator())", adam("opt_w", "self.generator.weights()"),
             adam("opt_a", "self.generator.arch.parameters()")) + steps("opt_w", "opt_a") + EVALUATE,
        ("model=EngineModule(self.opt_w, generator=self.generator), optimizer=self.opt_w, config=ds_config",
         "model=EngineModule(self.opt_a, generator=self.generator), optimizer=self.opt_a, config=ds_config"),
    ),
    "clipping of one part of the model only": Idiom(
        init("self.generator = self.context.wrap_model(Generator())", adam("opt", "self.generator.arch.parameters()"))
        + steps("opt").replace("(self.opt)", "(self.opt, lambda p: torch.nn.utils.clip_grad_norm_(p, 1.0))") + EVALUATE,
        ("model=EngineModule(self.opt, generator=self.generator), optimizer=self.opt, config=ds_config",),
    ),
    "a parameter of no model": Idiom(
        init("self.generator = self.context.wrap_model(Generator())", "self.log_z = nn.Parameter(torch.zeros(1))",
             adam("opt", "[{'params': self.generator.parameters()}, {'params': [self.log_z]}]"))
        + steps("opt") + EVALUATE,
        ("model=EngineModule(self.opt, generator=self.generator), optimizer=self.opt, config=ds_config",),
        review=("DSM202",),
    ),
    "names of engines that are taken": Idiom(
        init("self.engine = 3", *GAN, adam("opt", "self.generator.parameters()"),
             adam("optimizer", "self.discriminator.parameters()")) + steps("opt", "optimizer") + EVALUATE,
        ("self.opt_engine = self.context.wrap_model_engine(engine)",
         "self.optimizer_engine = self.context.wrap_model_engine(engine)",
         "self.opt_engine.backward(loss0)", "self.opt_engine.step()",
         "self.optimizer_engine.backward(loss1)", "self.optimizer_engine.step()"),
    ),
    "in dicts": Idiom(
        init("self.nets = {k: self.context.wrap_model(make(k)) for k in 'dg'}",
             "self.opts = {", "    k: self.context.wrap_optimizer(torch.optim.Adam(net.parameters(), lr=0.1))",
             "    for k, net in self.nets.items()", "}")
        + "\ndef train_batch(self, batch, epoch_idx, batch_idx):\n    for k, net in self.nets.items():\n"
        "        loss = net(batch).mean()\n        self.context.backward(loss)\n"
        "        self.context.step_optimizer(self.opts[k])\n    return {'loss': loss}\n"
        "\ndef evaluate_batch(self, batch):\n    return {'loss': self.nets['g'](batch).mean()}\n",
        ("self.nets = {k: self.context.engines.add_model(make(k)) for k in 'dg'}",
         "k: self.context.engines.add_optimizer(torch.optim.Adam(net.parameters(), lr=0.1))", COLLECTED,
         "self.context.engines.backward(loss)", GATE, "self.context.engines[self.opts[k]].step()"),
    ),
}  # fmt: skip


@idioms(SEVERAL)
def test_several_models_and_optimizers(idiom: Idiom, tmp_path: Path) -> None:
    idiom.check(tmp_path)


def test_the_engines_of_several_optimizers_reduce_in_step_at_stage_0(tmp_path: Path) -> None:
    (tmp_path / "model_def.py").write_text(SEVERAL["two models, two optimizers"].module)
    assert written_config(tmp_path) == {
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": 0},
        "managed_gradient_accumulation": False,
    }


@pytest.mark.parametrize(
    ("optimizer", "engine"),
    [
        ("self.optimizer", "self.engine"),
        ("self.opt", "self.engine"),
        ("self.opt_d", "self.engine_d"),
        ("self.d_opt", "self.d_engine"),
        ("self.optimizer_G", "self.engine_G"),
        ("self.optimizerD", "self.engineD"),
        ("self.optimiser", "self.engine"),
        ("self.optim_actor", "self.engine_actor"),
        ("self.G_optim", "self.G_engine"),
        ("self.adam", "self.adam_engine"),
        ("self.options", "self.options_engine"),
        ("self.netGOptimizer", "self.netGOptimizer_engine"),
        ('self.opts["d"]', "self.engines_d"),
    ],
)
def test_an_engine_is_named_after_its_optimizer(optimizer: str, engine: str) -> None:
    from ds_migrate.decisions.engine_names import engine_name

    assert engine_name(Optimizer(optimizer, ())) == engine


SCHEDULER = "torch.optim.lr_scheduler.StepLR(self.optimizer, 2)"
MODE = "LRScheduler.StepMode.STEP_EVERY_EPOCH"


@pytest.mark.parametrize(
    "call",
    [
        f"wrap_lr_scheduler({SCHEDULER}, {MODE})",
        f"wrap_lr_scheduler({SCHEDULER}, step_mode={MODE}, frequency=3)",
        f"wrap_lr_scheduler(lr_scheduler={SCHEDULER}, step_mode=LRScheduler.StepMode.STEP_EVERY_BATCH)",
        f"wrap_lr_scheduler({SCHEDULER}, step_mode=LRScheduler.StepMode(self.context.get_hparam('mode')))",
        f"wrap_lr_scheduler({SCHEDULER}, step_mode=pytorch.LRScheduler.StepMode.MANUAL_STEP)",
    ],
)
def test_a_schedule_stays_as_it_is_before_the_engine(call: str, tmp_path: Path) -> None:
    block = init(MODEL, SGD, f"self.scheduler = self.context.{call}")
    Idiom(block, (f"self.scheduler = self.context.{call}", INITIALIZE, *SIMPLE)).check(tmp_path)


def test_a_discarded_schedule_stays_as_it_is(tmp_path: Path) -> None:
    call = f"self.context.wrap_lr_scheduler({SCHEDULER}, {MODE})"
    Idiom(init(MODEL, SGD, call), (call, INITIALIZE)).check(tmp_path)


def test_a_schedule_under_an_if_comes_before_the_engine(tmp_path: Path) -> None:
    call = f"self.context.wrap_lr_scheduler({SCHEDULER}, {MODE})"
    block = init(MODEL, SGD, "if self.context.get_hparam('decay'):", f"    self.scheduler = {call}")
    Idiom(block, (f"self.scheduler = {call}", INITIALIZE, *SIMPLE)).check(tmp_path)
