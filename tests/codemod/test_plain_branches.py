"""Plain training loops: what runs only on some paths, and what the order of assignments hides."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from ds_migrate.rules.codes import Code
from plain_loops import HEADER, LOOP, OPTIONAL_SCALER, blocked, body, convert, run

NO_SYNC = LOOP.replace("model = Net()", "model = DDP(Net())")


def test_gradients_are_averaged_at_the_step_without_no_sync(tmp_path: Path) -> None:
    text = NO_SYNC.replace("for x, y in loader:\n    optimizer.zero_grad()", "for i, (x, y) in enumerate(loader):")
    text = text.replace(
        "    loss.backward()\n    optimizer.step()\n",
        """\
    if i % 2:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    else:
        with model.no_sync():
            loss.backward()
""",
    )
    after = convert(tmp_path, HEADER + text)
    assert "        with contextlib.nullcontext():\n            engine.backward(loss, scale_wrt_gas=False)\n" in after
    assert '"managed_gradient_accumulation": False,' in after


def test_steps_whose_gradients_are_never_averaged_are_refused(tmp_path: Path) -> None:
    text = NO_SYNC.replace("    loss.backward()\n", "    with model.no_sync():\n        loss.backward()\n")
    ((code, message),) = blocked(tmp_path, HEADER + text)
    assert code == Code.PLAIN_DISTRIBUTED and "no_sync() keeps the gradients of a whole step" in message


def test_switches_of_what_was_wrapped_go_where_the_engine_averages_at_the_step(tmp_path: Path) -> None:
    text = NO_SYNC.replace("    loss.backward()\n", "    SWITCH\n    loss.backward()\n").replace(
        "for x, y in loader:\n    optimizer.zero_grad()", "for i, (x, y) in enumerate(loader):"
    )
    text = text.replace("SWITCH", "if len(data) > 1:\n        model.require_backward_grad_sync = i % 2 == 1")
    every = text.replace("    optimizer.step()\n", "    optimizer.step()\n    optimizer.zero_grad()\n")
    ((code, message),) = blocked(tmp_path, HEADER + every)
    assert code == Code.PLAIN_DISTRIBUTED and "require_backward_grad_sync = False keeps the gradients" in message
    last = text.replace(
        "    optimizer.step()\n", "    if i % 2:\n        optimizer.step()\n        optimizer.zero_grad()\n"
    )
    after = convert(tmp_path, HEADER + last)
    assert "require_backward_grad_sync" not in after and "if len(data) > 1" not in after


def test_a_branch_for_a_scaler_that_is_never_given_stays(tmp_path: Path) -> None:
    text = body(OPTIONAL_SCALER + "train(model, loader, optimizer)\n")
    after = convert(tmp_path, text)
    assert (
        "scaler.scale(loss).backward()" in after and "        engine.backward(loss)\n            engine.step()" in after
    )
    ((code, message),) = blocked(tmp_path, text.replace("loader, optimizer)", "loader, optimizer, scalers[0])"))
    assert code == Code.PLAIN_PRECISION and "which GradScaler" in message


def test_a_module_that_is_moved_before_it_is_known_is_one_module(tmp_path: Path) -> None:
    text = """
    class Model(Net):
        def make_optimizer(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)


    class Trainer:
        def __init__(self, model):
            self.model = model
            self.model = self.model.to("cpu")

        def run(self):
            model = self.model
            self.optimizer = model.make_optimizer()
            for x, y in DataLoader(data, batch_size=4):
                model.zero_grad()
                F.mse_loss(model(x), y).backward()
                self.optimizer.step()


    Trainer(Model()).run()
    """
    after = convert(tmp_path, body(text))
    assert "self.engine, *_ = deepspeed.initialize(\n            model=model," in after
    assert "self.engine.backward(F.mse_loss(self.engine(x), y))" in after


@pytest.mark.parametrize("change", ["nn.utils.clip_grad_value_(model.parameters(), 1)", "model.fc.weight.grad.mul_(2)"])
def test_clipping_before_another_change_stays_before_it(change: str, tmp_path: Path) -> None:
    lines = f"    nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n    {change}\n"
    after = convert(tmp_path, HEADER + LOOP.replace("    optimizer.step()", f"{lines}    optimizer.step()"))
    assert f"    engine.backward(loss)\n{lines}    engine.step()\n" in after and '"gradient_clipping": 0.0,' in after


def test_clipping_before_some_of_several_steps_acts_on_averaged_gradients(tmp_path: Path) -> None:
    clipped = "    nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n    optimizer.step()"
    loop = LOOP[LOOP.index("for x, y") :]
    unclipped = loop.replace("    loss.backward()", "    loss.backward(retain_graph=True)\n    loss.backward()")
    after = convert(
        tmp_path,
        HEADER
        + LOOP.replace("    optimizer.step()", clipped)
        + 2 * unclipped.replace("    optimizer.step()", clipped)
        + unclipped,
    )
    assert after.count("    engine.allreduce_gradients()\n    nn.utils.clip_grad_norm_(") == 3


def test_values_of_gradients_are_clipped_where_each_rank_has_them(tmp_path: Path) -> None:
    clip = "    nn.utils.clip_grad_value_(model.parameters(), 0.5)\n    optimizer.step()"
    after = convert(tmp_path, HEADER + LOOP.replace("    optimizer.step()", clip))
    assert "    engine.backward(loss)\n    nn.utils.clip_grad_value_(model.parameters(), 0.5)\n" in after
    assert '"zero_optimization": {"stage": 0},' in after and '"gradient_clipping": 0.0,' in after


@pytest.mark.parametrize(
    ("parameter", "test", "argument"),
    [
        ("train=True", "if train:", "train=False"),
        ("train=True", "if not train:\n            continue\n        else:", "False"),
        ("phase", "if phase == 'train':", 'phase="val"'),
        ("train", "if train is not None:", "None"),
    ],
)
def test_a_loader_of_calls_that_do_not_train_is_not_divided(
    tmp_path: Path, parameter: str, test: str, argument: str
) -> None:
    loop = """
    def run(loader, PARAMETER):
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            TEST
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


    train_loader = DataLoader(data, batch_size=4, shuffle=True)
    val_loader = DataLoader(data, batch_size=4)
    MAKE_MODEL
    for _ in range(2):
        run(train_loader, "train")
        if val_loader is not None:
            run(val_loader, ARGUMENT)
    """
    text = body(loop).replace("PARAMETER", parameter).replace("ARGUMENT", argument).replace("TEST", test)
    after = convert(tmp_path, text)
    assert "train_loader = shard(DataLoader(" in after
    assert "val_loader = DataLoader(data, batch_size=4)\n" in after
    assert "if val_loader is not None:" in after


STEP_FUNCTIONS = """
    def make_step(train):
        def step(x, y):
            loss = F.mse_loss(model(x), y)
            if train:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            return loss
        return step


    train_loader = DataLoader(data, batch_size=4, shuffle=True)
    val_loader = DataLoader(data, batch_size=4)
    MAKE_MODEL
    MADE
    train_batches, val_batches = iter(train_loader), iter(val_loader)
    for _ in range(2):
        train_step(*next(train_batches))
        val_step(*next(val_batches))
    """


@pytest.mark.parametrize(
    "made",
    [
        "train_step = make_step(True)\n    val_step = make_step(False)",
        "train_step, val_step = make_step(True), make_step(False)",
    ],
)
def test_a_loader_of_a_step_function_that_is_made_not_to_train_is_not_divided(made: str, tmp_path: Path) -> None:
    after = convert(tmp_path, body(STEP_FUNCTIONS.replace("MADE", made)))
    assert "train_loader = shard(DataLoader(" in after and "val_loader = DataLoader(data, batch_size=4)\n" in after


def test_a_loader_of_a_function_that_trains_at_each_of_its_calls_needs_no_review(tmp_path: Path) -> None:
    run_twice = "def train(model):\n" + textwrap.indent(LOOP.replace("model = Net()\n", ""), "    ")
    report = run(tmp_path, train=HEADER + run_twice + "\n\nmodel = Net()\ntrain(model)\ntrain(model)\n")
    assert not list(report.findings(Severity.REVIEW))


def test_a_loader_of_calls_that_may_train_is_divided(tmp_path: Path) -> None:
    loop = """
    def run(loader, train):
        train = train or True
        for x, y in loader:
            if train:
                STEP


    MAKE_MODEL
    run(DataLoader(data, batch_size=4), False)
    """
    assert "run(shard(DataLoader(data, batch_size=4)), False)" in convert(tmp_path, body(loop))


def test_a_loader_of_a_function_that_makes_those_of_evaluation_too_is_divided_by_its_name(tmp_path: Path) -> None:
    loop = """
    def get_data(split):
        return data, DataLoader(data, batch_size=4, shuffle=split == "train")


    def run(loader):
        for i, (x, y) in enumerate(loader):
            STEP


    train_data, train_loader = get_data("train")
    val_data, val_loader = get_data("val")
    MAKE_MODEL
    run(train_loader)
    print(sum(F.mse_loss(model(x), y).item() for x, y in val_loader))
    """
    (result,) = run(tmp_path, train=body(loop)).files
    after = (result.after or b"").decode()
    assert '    return data, DataLoader(data, batch_size=4, shuffle=split == "train")\n' in after
    assert 'get_data("train")\ntrain_loader = shard(train_loader)\nval_data, val_loader = get_data("val")\n' in after
    assert not [f for f in result.findings if f.code == Code.PLAIN_SAMPLER and f.severity is Severity.REVIEW]


@pytest.mark.parametrize(
    ("loop", "is_reviewed"), [("for fold in range(3):", False), ('for split in ("train", "val"):', True)]
)
def test_a_loader_of_each_fold_trains_and_one_of_each_split_may_not(
    tmp_path: Path, loop: str, is_reviewed: bool
) -> None:
    text = f"""
    {loop}
        loader = DataLoader(data, batch_size=4)
        MAKE_MODEL
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            if {'split != "val"' if is_reviewed else "x.sum() > 0"}:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    """
    (result,) = run(tmp_path, train=body(text)).files
    reviews = [f for f in result.findings if f.code == Code.PLAIN_SAMPLER and f.severity is Severity.REVIEW]
    assert bool(reviews) is is_reviewed
    assert b"shard(DataLoader(data, batch_size=4))" in (result.after or b"")


PHASES = """
    MAKE_MODEL
    LOADERS
    for phase in ["train", "val"]:
        ONE
        for x, y in OVER:
            optimizer.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                loss = F.mse_loss(model(x), y)
                if phase == "train":
                    loss.backward()
                    optimizer.step()
    """


@pytest.mark.parametrize(
    ("loaders", "one", "over", "divided"),
    [
        (
            'loaders = {x: DataLoader(data, batch_size=4) for x in ["train", "val"]}', "model.train()",
            "loaders[phase]", 'loaders["train"] = shard(loaders["train"])\n',
        ),
        (
            "pass", "loader = DataLoader(data, batch_size=4)", "loader",
            '    if phase == "train":\n        loader = shard(loader)\n',
        ),
    ],
)  # fmt: skip
def test_the_loader_of_the_phase_that_trains_is_divided(
    tmp_path: Path, loaders: str, one: str, over: str, divided: str
) -> None:
    text = body(PHASES).replace("LOADERS", loaders).replace("ONE", one).replace("OVER", over)
    (result,) = run(tmp_path, train=text).files
    after = (result.after or b"").decode()
    assert "DataLoader(data, batch_size=4)" in after and "shard(DataLoader" not in after
    assert divided in after
    assert not [f for f in result.findings if f.code == Code.PLAIN_SAMPLER and f.severity is Severity.REVIEW]


def test_loaders_of_phases_that_no_text_tells_apart_are_all_divided(tmp_path: Path) -> None:
    loaders = "loaders = {x: DataLoader(data, batch_size=4) for x in names()}"
    text = body(PHASES).replace("LOADERS", loaders).replace("ONE", "model.train()").replace("OVER", "loaders[phase]")
    (result,) = run(tmp_path, train=text.replace('for phase in ["train", "val"]', "for phase in names()")).files
    assert b"{x: shard(DataLoader(data, batch_size=4)) for x in names()}" in (result.after or b"")
    assert [f for f in result.findings if f.code == Code.PLAIN_SAMPLER and f.severity is Severity.REVIEW]


def test_a_loader_of_each_fold_of_a_script_trains(tmp_path: Path) -> None:
    text = """
    if __name__ == "__main__":
        for fold in range(3):
            loader = DataLoader(data, batch_size=4)
            MAKE_MODEL
            for x, y in loader:
                STEP
    """
    (result,) = run(tmp_path, train=body(text)).files
    assert not [f for f in result.findings if f.severity is Severity.REVIEW]


OLD_SCALER = """\
try:
    from {module} import {names}
except{error}:
    class GradScaler:
        def scale(self, loss): return loss
        def unscale_(self, optimizer): pass
        def step(self, optimizer): optimizer.step()
        def update(self): pass
"""
SCALED = """\
loader = DataLoader(data, batch_size=4)
MAKE_MODEL
scaler = GradScaler()
for x, y in loader:
    optimizer.zero_grad()
    scaler.scale(F.mse_loss(model(x), y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(("names", "error"), [("GradScaler", ""), ("autocast, GradScaler", " ImportError")])
def test_a_scaler_for_an_older_torch_does_not_run(names: str, error: str, tmp_path: Path) -> None:
    old = OLD_SCALER.format(module="torch.cuda.amp", names=names, error=error)
    text = convert(tmp_path, HEADER + old + SCALED)
    assert old in text
    assert "use_scaler(engine, scaler)\n" in text


def test_a_scaler_for_what_may_be_missing_may_run(tmp_path: Path) -> None:
    old = OLD_SCALER.format(module="ours.amp", names="GradScaler", error="")
    report = run(tmp_path, train=HEADER + old + SCALED)
    assert [f.code for _, f in report.findings(Severity.BLOCKED)] == ["DSM607"]


def test_an_option_that_is_called_no_sync_is_none_of_the_model_s(tmp_path: Path) -> None:
    after = convert(tmp_path, HEADER + "import options\n\nargs = options.parse()\nsync = not args.no_sync\n" + LOOP)
    assert "sync = not args.no_sync\n" in after


SCALED_BY_HELPER = """
    def backward(loss, scaler):
        if scaler is not None:
            scaler.scale(loss).backward()
        else:
            loss.backward()


    def train(model, loader, optimizer, scaler):
        for x, y in loader:
            optimizer.zero_grad()
            backward(F.mse_loss(model(x), y), scaler)
            if scaler is not None:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()


    def main(amp):
        MAKE_MODEL
        scaler = torch.amp.GradScaler() if amp else None
        train(model, DataLoader(data, batch_size=4), optimizer, scaler)


    main(True)
    """


def test_a_helper_that_scales_the_loss_stays(tmp_path: Path) -> None:
    after = convert(tmp_path, body(SCALED_BY_HELPER))
    assert "        scaler.scale(loss).backward()\n    else:\n        loss.backward()\n" in after
    assert "use_scaler(engine, scaler)" in after and after.count("            engine.step()\n") == 2
    assert "scaler.step" not in after and "scaler.update" not in after


def test_a_helper_with_a_scaler_that_the_engine_cannot_get_is_refused(tmp_path: Path) -> None:
    made = "scalers = {'a': torch.amp.GradScaler() if amp else None}"
    text = SCALED_BY_HELPER.replace("scaler = torch.amp.GradScaler() if amp else None", made)
    ((code, message),) = blocked(
        tmp_path, body(text.replace("optimizer, scaler)\n\n\n    main", "optimizer, scalers['a'])\n\n\n    main"))
    )
    assert code == Code.PLAIN_PRECISION and "cannot get the GradScaler" in message


AVERAGED = """
import torch.distributed as dist


class Average(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.copy = Net()


def update(average, net, decay):
    kept = dict(average.copy.named_parameters())
    for name, value in net.named_parameters():
        kept[name].data.mul_(decay).add_(value.data, alpha=1 - decay)


dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = Net()
if dist.get_world_size() > 1:
    model = DDP(model)
COPY
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


@pytest.mark.parametrize(
    ("copy", "is_copied"),
    [
        ("average = Average(model)\nupdate(average, model, 0)", True),
        ("import copy\nteacher = copy.deepcopy(model)", True),
        ("ema = ModelEma(model, decay=0.9)", True),
        ("teacher = Net()\nteacher.load_state_dict(model.state_dict())", True),
        ("teacher, state = Net(), model.state_dict()\nteacher.load_state_dict(state)", True),
        ("shadow = {}\nfor name, weight in model.named_parameters():\n    shadow[name] = weight.data.clone()", True),
        ("shadow = [weight.detach().clone() for weight in model.parameters()]", True),
        ("import copy\nfirst = copy.deepcopy(model.state_dict())", True),
        ("first = nn.utils.parameters_to_vector(model.parameters())", True),
        ("first = torch.zeros(3).clone()", False),
        ("teacher = Net()\nteacher.load_state_dict(torch.load('teacher.pt'))", False),
    ],
)
def test_copies_of_weights_begin_with_those_that_the_wrapper_gave_all_ranks(
    copy: str, is_copied: bool, tmp_path: Path
) -> None:
    begin, end = LOOP.index("model = Net()"), LOOP.index("for ")
    loop = LOOP[:begin] + AVERAGED.replace("COPY", copy) + LOOP[end:]
    after = convert(tmp_path, HEADER + loop)
    assert ("    model = share_weights(model)\n" in after) is is_copied
    assert "DDP(" not in after


SEVERAL_MAKERS = """
def make(part):
    return DataLoader(data, batch_size=4, shuffle=part == "train")


def make_sorted(part):
    return DataLoader(data, batch_size=4)


def loaders(make_one):
    return make_one("train"), make_one("val")


train_loader, val_loader = loaders(make if len(data) > 8 else make_sorted)
MAKE_MODEL
for x, y in train_loader:
    STEP
"""


def test_a_name_that_has_one_of_several_loaders_is_divided_once(tmp_path: Path) -> None:
    after = convert(tmp_path, HEADER + SEVERAL_MAKERS)
    assert after.count("shard(") == 1 and "\ntrain_loader = shard(train_loader)\n" in after


AMP_UNDER_TWO_CONDITIONS = """
    def train(model, loader, optimizer, scaler, use_amp):
        for i, (x, y) in enumerate(loader):
            if scaler is not None and use_amp:
                scaler.scale(F.mse_loss(model(x), y) / 2).backward()
            else:
                (F.mse_loss(model(x), y) / 2).backward()
            if i % 2:
                if scaler is not None and use_amp:
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    optimizer.step()
                optimizer.zero_grad()
        if len(loader) % 2:
            if scaler is not None and use_amp:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            optimizer.zero_grad()


    MAKE_MODEL
    use_amp = len(data) > 4
    scaler = torch.amp.GradScaler(enabled=use_amp)
    train(model, DataLoader(data, batch_size=4), optimizer, scaler, use_amp)
    """


def test_a_scaler_is_used_under_one_test_of_several_names(tmp_path: Path) -> None:
    report = run(tmp_path, train=body(AMP_UNDER_TWO_CONDITIONS))
    (result,) = report.files
    after = (result.after or b"").decode()
    assert after.count("engine.step()") == 4 and "scaler.step" not in after and "scaler.update" not in after
    assert "            use_scaler(engine, scaler)\n" in after and "            use_scaler(engine, None)\n" in after
    assert not [finding.message for _, finding in report.findings(Severity.REVIEW)]  # the last step is fed, too


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("            if i % 2:\n", "            use_amp = i > 2\n            if i % 2:\n"),
        ("is not None and use_amp:\n                scaler.step", "is not None:\n                scaler.step"),
        ("enumerate(loader):", "enumerate(loader):\n            scaler = next(scalers)"),
    ],
)
def test_steps_under_another_test_than_the_scaled_losses_are_refused(tmp_path: Path, old: str, new: str) -> None:
    text = AMP_UNDER_TWO_CONDITIONS.replace("    use_amp = len(data) > 4\n", "").replace(
        "use_amp)\n", "len(data) > 4)\n"
    )
    assert old in text
    ((code, message),) = blocked(tmp_path, body(text.replace(old, new)))
    assert code == Code.PLAIN_PRECISION and message.startswith("a GradScaler scales some losses")
