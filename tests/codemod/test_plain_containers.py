"""Optimizers of plain training loops that lists and dicts hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from ds_migrate.options import Options
from ds_migrate.rules.codes import Code
from plain_loops import HEADER, LOOP, blocked, body, convert, run

LISTED = """
    a, b = Net(), nn.Linear(4, 1)
    opts = [torch.optim.Adam(a.parameters()), torch.optim.SGD(b.parameters(), lr=0.1)]
    for x, y in DataLoader(data, batch_size=4):
        for opt in opts:
            opt.zero_grad()
        F.mse_loss(a(x) + b(x), y).backward()
        for opt in opts:
            opt.step()
    """
TRAINER = """
    class Trainer:
        def __init__(self):
            self.nets = {"g": Net(), "d": nn.Linear(4, 1)}
            self.optimizers = {}
            self.optimizers["g"] = torch.optim.Adam(self.nets["g"].parameters())
            self.optimizers["d"] = torch.optim.Adam(self.nets["d"].parameters())
            self.schedules = [torch.optim.lr_scheduler.StepLR(o, 1) for o in self.optimizers.values()]

        def fit(self, loader):
            for x, y in loader:
                for name in ("g", "d"):
                    self.optimizers[name].zero_grad()
                F.mse_loss(self.nets["g"](x), y).backward()
                self.optimizers["g"].step()
                F.mse_loss(self.nets["d"](x), y).backward()
                self.optimizers["d"].step()
            for schedule in self.schedules:
                schedule.step()


    Trainer().fit(DataLoader(data, batch_size=4))
    """


def test_each_optimizer_of_a_list_has_an_engine_which_it_leads_to(tmp_path: Path) -> None:
    after = convert(tmp_path, body(LISTED))
    assert "a_engine, *_ = deepspeed.initialize(\n    model=a,\n    optimizer=opts[0],\n" in after
    assert "b_engine, *_ = deepspeed.initialize(\n    model=b,\n    optimizer=opts[1],\n" in after
    assert after.count('"train_micro_batch_size_per_gpu": 4,') == 2
    assert after.endswith(
        "    for opt in opts:\n        opt.zero_grad()\n    F.mse_loss(a(x) + b(x), y).backward()\n"
        "    for opt in opts:\n        engine_of(opt).step()\n"
    )


def test_an_item_with_a_key_has_its_engine_by_name(tmp_path: Path) -> None:
    after = convert(tmp_path, body(TRAINER))
    assert 'self.nets_g_engine, *_ = deepspeed.initialize(\n            model=self.nets["g"],\n' in after
    assert 'optimizer=self.optimizers["g"],' in after
    assert 'self.nets_g_engine.backward(F.mse_loss(self.nets["g"](x), y), scale_wrt_gas=False)\n' in after
    assert "            self.nets_d_engine.step()\n" in after


@pytest.mark.parametrize(
    ("loop", "step"),
    [
        ("for i, opt in enumerate(opts): opt.step()", "engine_of(opt).step()"),
        ("for net, opt in zip((a, b), opts): opt.step()", "engine_of(opt).step()"),
        ("[o.step() for o in reversed(opts)]", "[engine_of(o).step() for o in reversed(opts)]"),
        ("opts[1].step(); opts[0].step()", "b_engine.step(); a_engine.step()"),
        ("opts.reverse(); opts[0].step(); opts[1].step()", "engine_of(opts[0]).step(); engine_of(opts[1]).step()"),
        ("for i in range(2): opts[i].step()", "engine_of(opts[i]).step()"),
    ],
)
def test_a_loop_over_a_list_steps_the_engines(loop: str, step: str, tmp_path: Path) -> None:
    text = body(LISTED).replace("for opt in opts:\n        opt.step()", loop)
    assert step in convert(tmp_path, text)


@pytest.mark.parametrize("empty", ["[]", "list()"])
def test_an_appended_optimizer_has_an_engine(empty: str, tmp_path: Path) -> None:
    appended = (
        f"opts = {empty}\nopts.append(torch.optim.Adam(a.parameters()))\nopts.append(torch.optim.SGD(b.parameters()))\n"
    )
    (line,) = [line for line in body(LISTED).splitlines() if line.startswith("opts =")]
    after = convert(tmp_path, body(LISTED).replace(line + "\n", appended))
    assert after.count("    optimizer=opts[-1],\n") == 2 and "engine_of(opt).step()" in after


def test_a_list_is_handed_on_as_it_is(tmp_path: Path) -> None:
    after = convert(
        tmp_path,
        body("""
        def make(a, b):
            return [torch.optim.Adam(a.parameters()), torch.optim.SGD(b.parameters(), lr=0.1)]


        def train(a, b, opts):
            for x, y in DataLoader(data, batch_size=4):
                for net, opt in zip((a, b), opts):
                    opt.zero_grad()
                    F.mse_loss(net(x), y).backward()
                    opt.step()


        def main():
            a, b = Net(), nn.Linear(4, 1)
            opts = make(a, b)
            train(a, b, opts)


        main()
        """),
    )
    assert "    train(a, b, opts)\n" in after and "engine_of(opt).step()" in after
    assert "        model=b,\n        optimizer=opts[1],\n" in after


EACH = {
    "a list": ("[torch.optim.Adam(n.parameters()) for n in nets]", "for optimizer, n in zip(opts, nets)"),
    "by index": (
        "[torch.optim.Adam(nets[i].parameters()) for i in range(len(nets))]",
        "for optimizer, i in zip(opts, range(len(nets)))",
    ),
    "a dict": (
        "{i: torch.optim.Adam(n.parameters()) for i, n in enumerate(nets)}",
        "for optimizer, (i, n) in zip(opts.values(), enumerate(nets))",
    ),
}
ENSEMBLE = """
    nets = [Net() for _ in range(2)]
    opts = MADE
    for x, y in DataLoader(data, batch_size=4):
        for i in range(2):
            opts[i].zero_grad()
            F.mse_loss(nets[i](x), y).backward()
            CLIP
            opts[i].step()
    """


@pytest.mark.parametrize(("made", "clause"), EACH.values(), ids=EACH.keys())
def test_each_optimizer_of_a_comprehension_has_an_engine(made: str, clause: str, tmp_path: Path) -> None:
    after = convert(tmp_path, body(ENSEMBLE.replace("MADE", made).replace("CLIP", "")))
    assert f"        keep_gradients=True,\n    )\n    {clause}\n]\n" in after
    assert "            optimizer=optimizer,\n" in after and "engine_of(opts[i]).step()" in after


def test_clipping_averages_gradients_of_the_engine_that_its_loop_is_at(tmp_path: Path) -> None:
    text = ENSEMBLE.replace("MADE", EACH["a list"][0])
    clip = "nn.utils.clip_grad_norm_(nets[i].parameters(), 1.0)"
    after = convert(tmp_path, body(text.replace("CLIP", clip)))
    assert f"        engine_of(opts[i]).allreduce_gradients()\n        {clip}\n" in after
    found = blocked(tmp_path, body(text.replace("CLIP", clip.replace("[i]", "[0]"))))
    assert [code for code, _ in found] == [Code.PLAIN_CLIPPING]


@pytest.mark.parametrize("over", ["(net for net in (a, b))", "iter(made)", "(made if a else [])"])
def test_optimizers_of_a_comprehension_over_what_ends_are_refused(over: str, tmp_path: Path) -> None:
    made = f"made = [a, b]\nopts = [torch.optim.Adam(n.parameters()) for n in {over}]\nunused = ["
    assert blocked(tmp_path, body(LISTED).replace("opts = [", made))[0][0] == Code.PLAIN_ENGINE


def test_without_the_runtime_nothing_leads_to_the_engine(tmp_path: Path) -> None:
    assert Code.PLAIN_UNTRACED in [
        code for code, _ in blocked(tmp_path, body(LISTED), Options(plain=True, runtime=False))
    ]


UNPACKED = """
    def train(nets, optims, loader, epoch):
        net_g, net_d = nets
        optim_g, optim_d = optims
        for x, y in loader:
            optim_d.zero_grad()
            F.mse_loss(net_d(x), y).backward()
            optim_d.step()
            optim_g.zero_grad()
            F.mse_loss(net_g(x), y).backward()
            optim_g.step()
        print(optim_g.param_groups[0]["lr"])

    a, b = Net(), nn.Linear(4, 1)
    opt_a, opt_b = torch.optim.Adam(a.parameters()), torch.optim.SGD(b.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=4)
    for epoch in range(2):
        if epoch == 0:
            train([a, b], [opt_a, opt_b], loader, epoch)
        else:
            train([a, b], optims=[opt_a, opt_b], loader=loader, epoch=epoch)
    """


def test_optimizers_that_a_function_unpacks_from_a_list_find_their_engines_when_they_step(tmp_path: Path) -> None:
    after = convert(tmp_path, body(UNPACKED))
    assert "engine_of(optim_g).step()" in after and "optims=[opt_a, opt_b]" in after


def test_a_star_among_unpacked_optimizers_is_refused(tmp_path: Path) -> None:
    text = UNPACKED.replace("optim_g, optim_d = optims", "optim_g, *_, optim_d = optims")
    ((code, message), *_) = blocked(tmp_path, body(text))
    assert code == Code.PLAIN_UNTRACED and "cannot determine which optimizer" in message


def test_a_keyword_is_renamed_as_the_parameter_of_the_function_that_is_called(tmp_path: Path) -> None:
    text = """
        def first(model, optimizer, x):
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()


        def second(model, optimizer, x, engine):
            print(engine)
            optimizer.zero_grad()
            model(x).std().backward()
            optimizer.step()


        MAKE_MODEL
        for x, y in DataLoader(data, batch_size=4):
            first(model, optimizer=optimizer, x=x)
            second(model, optimizer=optimizer, x=x, engine="a name")
        """
    after = convert(tmp_path, body(text))
    assert "first(model, engine=ds_engine, x=x)" in after
    assert 'second(model, ds_engine=ds_engine, x=x, engine="a name")' in after


OPTIONAL = """
    class Base:
        def __init__(self, model, optimizer=None):
            self.model = model
            self.optimizer = optimizer

        def run(self, loader):
            for x, y in loader:
                loss = F.mse_loss(self.model(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()


    class Runner(Base):
        def __init__(self, model, optimizer=None):
            super().__init__(model, optimizer=optimizer)


    MAKE_MODEL
    Runner(model, optimizer).run(DataLoader(data, batch_size=4, shuffle=True))
    """


@pytest.mark.parametrize(
    ("call", "kept", "forward"),
    [
        ("Runner(model)", "engine.optimizer if engine is not None else None", "self.model(x)"),
        ("Runner(model, optimizer=None)", "engine.optimizer if engine is not None else None", "self.model(x)"),
        ("pass", "engine.optimizer", "self.engine(x)"),
    ],
)
def test_an_optimizer_that_a_call_leaves_out_stays_none_where_it_is_kept(
    call: str, kept: str, forward: str, tmp_path: Path
) -> None:
    after = convert(tmp_path, body(OPTIONAL) + f"{call}\n")
    assert f"        self.optimizer = {kept}\n" in after
    assert f"loss = F.mse_loss({forward}, y)" in after, "it may evaluate without an engine"


def test_a_schedule_that_is_registered_by_name_steps_as_it_is(tmp_path: Path) -> None:
    text = """
        class Engine:
            def __init__(self):
                self.schedules = {}

            def register(self, name, schedule):
                self.schedules[name] = schedule

            def update(self):
                for name in list(self.schedules.keys()):
                    self.schedules[name].step()

        MAKE_MODEL
        engine = Engine()
        engine.register("model", torch.optim.lr_scheduler.StepLR(optimizer, 1))
        for x, y in DataLoader(data, batch_size=4, shuffle=True):
            STEP
        engine.update()
        """
    report = run(tmp_path, train=body(text))
    assert not list(report.findings(Severity.REVIEW))
    assert b"self.schedules[name].step()" in (report.files[0].after or b"")


BY_NAME = """
    nets = {"a": Net(), "b": nn.Linear(4, 1)}
    opts = {}
    for name in nets.keys():
        opts[name] = torch.optim.Adam(nets[name].parameters())
    for x, y in DataLoader(data, batch_size=4):
        for opt in opts.values():
            opt.zero_grad()
        F.mse_loss(nets["a"](x) + nets["b"](x), y).backward()
        STEP
    """


@pytest.mark.parametrize(
    ("step", "after"),
    [
        ('opts["a"].step()', '    engine_of(opts["a"]).step()\n'),
        ("[opt.step() for opt in opts.values()]", "[engine_of(opt).step() for opt in opts.values()]\n"),
    ],
)
def test_an_optimizer_that_a_dict_holds_by_a_variable_key_has_an_engine(step: str, after: str, tmp_path: Path) -> None:
    text = convert(tmp_path, body(BY_NAME.replace("STEP", step)))
    assert "    engine, *_ = deepspeed.initialize(\n        model=nets[name],\n        optimizer=opts[name],\n" in text
    assert text.endswith(after)


ATTRIBUTES = """
    import types
    from munch import Munch

    class Options(dict):
        def __getattr__(self, name):
            return self[name]

    class Solver:
        def __init__(self):
            self.nets = MADE(g=Net(), d=nn.Linear(4, 1))
            self.optims = OPTIMS

        def train(self, loader):
            nets, optims = self.nets, self.optims
            for x, y in loader:
                for optim in (optims.g, optims.d):
                    optim.zero_grad()
                F.mse_loss(nets.g(x) + nets.d(x), y).backward()
                optims.g.step()
                optims.d.step()

    Solver().train(DataLoader(data, batch_size=4))
    """


@pytest.mark.parametrize("made", ["Munch", "Options"])
def test_items_of_a_dict_are_its_attributes(made: str, tmp_path: Path) -> None:
    filled = f"{made}()\n            for net in self.nets.keys():\n                self.optims[net] = "
    filled += "torch.optim.Adam(self.nets[net].parameters())"
    after = convert(tmp_path, body(ATTRIBUTES.replace("MADE", made).replace("OPTIMS", filled)))
    assert "model=self.nets[net],\n" in after and "optimizer=self.optims[net],\n" in after
    assert "engine_of(optims.g).step()\n" in after and "engine_of(optims.d).step()\n" in after


@pytest.mark.parametrize("made", ["Munch", "Options", "types.SimpleNamespace"])
def test_what_attributes_are_made_of_by_keywords_is_followed(made: str, tmp_path: Path) -> None:
    given = "g=torch.optim.Adam(self.nets.g.parameters()), d=torch.optim.Adam(self.nets.d.parameters())"
    after = convert(tmp_path, body(ATTRIBUTES.replace("MADE", made).replace("OPTIMS", f"{made}({given})")))
    assert after.count("deepspeed.initialize(") == 2
    assert "model=self.nets.g,\n" in after and "model=self.nets.d,\n" in after
    assert "engine_of(optims.g).step()\n" in after and "engine_of(optims.d).step()\n" in after


CHOSEN = """
    from typing import Dict, cast

    KINDS = {name: kind for name, kind in NAMESPACE.items() if name[0].isupper()}

    class Codec(Net):
        def __init__(self):
            super().__init__()
            self.levels = nn.Parameter(torch.zeros(3))

    def make_optimizers(net, conf):
        named = dict(net.named_parameters())
        parts = {
            "net": {name for name in named if not name.endswith("levels")},
            "aux": {name for name in named if name.endswith("levels")},
        }

        def make(key):
            kept = dict(conf[key])
            params = (named[name] for name in sorted(parts[key]))
            return KINDS[kept.pop("type")](params, **kept)

        optimizer = MADE
        return cast(Dict[str, torch.optim.Optimizer], optimizer)

    def configure(net):
        optimizer = make_optimizers(net, {"net": {"type": "Adam"}, "aux": {"type": "Adam"}})
        return optimizer["net"], optimizer["aux"]

    def train(model, loader, optimizer, other):
        for x, y in loader:
            optimizer.zero_grad()
            other.zero_grad()
            F.mse_loss(model(x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            model.levels.square().sum().backward()
            other.step()
    """
MAIN = """
    model = Codec()
    first, second = configure(model)
    train(model, DataLoader(data, batch_size=4), first, second)
    """


@pytest.mark.parametrize("namespace", ["torch.optim.__dict__", "vars(torch.optim)"])
def test_a_comprehension_over_names_makes_optimizers_of_a_librarys_namespace(namespace: str, tmp_path: Path) -> None:
    made = '{key: make(key) for key in ["net", "aux"]}'
    after = convert(tmp_path, body(CHOSEN.replace("NAMESPACE", namespace).replace("MADE", made) + MAIN))
    assert 'for made_optimizer, key in zip(optimizer.values(), ["net", "aux"])' in after
    assert "engine_of(optimizer).step()\n" in after and "engine_of(other).step()\n" in after


def test_engines_of_items_that_hold_one_module_have_names(tmp_path: Path) -> None:
    made = '{"net": make("net"), "aux": make("aux")}'
    after = convert(tmp_path, body(CHOSEN.replace("NAMESPACE", "vars(torch.optim)").replace("MADE", made) + MAIN))
    assert "    engine_net, *_ = deepspeed.initialize(\n" in after and "    engine_aux, *_ = deepspeed" in after


def test_a_function_that_makes_optimizers_of_several_models_has_engines_of_each(tmp_path: Path) -> None:
    text = CHOSEN.replace("NAMESPACE", "vars(torch.optim)").replace("MADE", '{"net": make("net"), "aux": make("aux")}')
    again = text[text.index("    def configure(") :].replace("configure(", "set_up(").replace("train(", "fit(")
    other = "\n    class Other(Codec):\n        pass\n"
    later = MAIN.replace("Codec(", "Other(").replace("configure(", "set_up(").replace("train(", "fit(")
    later = later.replace("model", "another").replace("first", "third").replace("second", "fourth")
    after = convert(tmp_path, body(text.rstrip() + "\n\n" + again.rstrip() + "\n" + other + MAIN + later))
    assert after.count("    engine_of(optimizer).allreduce_gradients()\n") == 2


@pytest.mark.parametrize(
    "chosen",
    [
        '{"Adam": torch.optim.Adam(model.parameters()), "SGD": torch.optim.SGD(model.parameters(), lr=0.1)}[kind]',
        "{one.__name__: one(model.parameters(), lr=0.1) for one in (torch.optim.Adam, torch.optim.SGD)}[kind]",
        "[one(model.parameters(), lr=0.1) for one in (torch.optim.Adam, torch.optim.SGD)][len(kind)]",
    ],
)
def test_an_optimizer_that_is_chosen_among_several_of_one_module_has_the_engine(chosen: str, tmp_path: Path) -> None:
    text = LOOP.replace("torch.optim.SGD(model.parameters(), lr=0.1)", chosen)
    after = convert(tmp_path, HEADER + 'kind = "Adam"\n' + text)
    assert f"optimizer = {chosen}\nengine, *_ = deepspeed.initialize(\n    model=model,\n" in after


def test_an_optimizer_that_is_chosen_among_those_of_several_modules_is_refused(tmp_path: Path) -> None:
    made = "[torch.optim.SGD(net.parameters(), lr=0.1) for net in (model, Net())][0]"
    ((_, message),) = blocked(tmp_path, HEADER + LOOP.replace("torch.optim.SGD(model.parameters(), lr=0.1)", made))
    assert message.endswith("a comprehension makes one for each of several modules")
