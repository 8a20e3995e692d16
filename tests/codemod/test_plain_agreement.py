"""Plain loops on several ranks: decisions that depend on a rank's share of the data become those of all ranks."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from ds_migrate.options import Options
from plain_loops import HEADER, LOOP, body, convert, run

EPOCHS = """\
loader = DataLoader(data, batch_size=4, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{setup}
for epoch in range(9):
    total = 0.0
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        {before}
        loss.backward()
        optimizer.step()
        total += loss.item()
    {after}
"""


def converted(folder: Path, setup: str = "", before: str = "pass", after: str = "pass") -> str:
    indented = before.replace("\n", "\n        "), after.replace("\n", "\n    ")
    return convert(folder, HEADER + EPOCHS.format(setup=setup, before=indented[0], after=indented[1]))


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("if total < 0.1:\n    break", "    if rank_0_decides(total < 0.1):\n        break\n"),
        ("if total / len(loader) < 0.1: break", "    if rank_0_decides(total / len(loader) < 0.1): break\n"),
        (
            "mean = total / len(loader)\nif (mean < 0.1 and epoch > 2):\n    sys.exit()",
            "    if (rank_0_decides(mean < 0.1 and epoch > 2)):\n",
        ),
        (
            "if total > 9:\n    for group in optimizer.param_groups:\n        group['lr'] *= 0.5",
            "    if rank_0_decides(total > 9):\n        for group in optimizer.param_groups:\n",
        ),
        ("if total > 9:\n    raise SystemExit('diverged')", "    if rank_0_decides(total > 9):\n"),
        ("if time.time() - start > 60:\n    break", "    if rank_0_decides(time.time() - start > 60):\n"),
    ],
)
def test_a_condition_on_a_share_that_ends_training_is_rank_0s(tmp_path: Path, after: str, expected: str) -> None:
    setup = "import sys\nimport time\nstart = time.time()"
    assert expected in converted(tmp_path, setup, after=after)


@pytest.mark.parametrize("share", ["enumerate({})", "enumerate(tqdm({}))", "zip(range(9), {})"])
def test_batches_of_a_loader_that_no_name_holds_are_of_a_share(tmp_path: Path, share: str) -> None:
    loop = f"for step, (x, y) in {share.format('DataLoader(data, batch_size=4)')}:"
    text = EPOCHS.replace("for step, (x, y) in enumerate(loader):", loop)
    stop = "if x.sum() > 9:\n            break"
    after = convert(tmp_path, HEADER + text.format(setup="from tqdm import tqdm", before=stop, after="pass"))
    assert "if rank_0_decides(x.sum() > 9):" in after


@pytest.mark.parametrize(
    ("check", "number"), [("math.isnan", "loss.item()"), ("torch.isfinite", "loss"), ("np.isinf", "float(loss)")]
)
def test_a_check_for_nan_looks_at_all_ranks(tmp_path: Path, check: str, number: str) -> None:
    text = converted(tmp_path, "import math\nimport numpy as np", f"if not {check}({number}):\n    continue")
    assert f"        if not {check}(mean_over_ranks({number})):\n            continue\n" in text


@pytest.mark.parametrize("test", ["total > 9 or math.isnan(loss)", "math.isnan(loss) or total > 9"])
def test_a_check_for_nan_beside_what_differs_too_is_rank_0s(tmp_path: Path, test: str) -> None:
    text = converted(tmp_path, "import math", f"if {test}:\n    continue")
    assert f"        if rank_0_decides({test}):\n            continue\n" in text
    assert "mean_over_ranks" not in text


CHECK = """\
def check(loss, value):
    valid, error = True, ""
    if value == float("inf"):
        valid, error = False, "inf"
    return valid, error


"""


@pytest.mark.parametrize(
    ("lines", "is_blind"),
    [
        ("bad = torch.isnan(loss).any()\nif bad:\n    break", True),
        ("valid, error = check(loss, loss.item())\nif not valid:\n    break", True),
        ("valid, error = check(loss, loss.item())\nif not valid:\n    continue", False),
        ("if loss != loss:\n    continue", False),
        ("if loss.item() == -math.inf:\n    continue", False),
        ("if torch.isnan(loss):\n    continue", False),
        ("if loss.item() > 9:\n    continue", False),
    ],
)
def test_a_check_for_nan_that_only_rank_0_makes_is_for_review(lines: str, is_blind: bool, tmp_path: Path) -> None:
    """As DeepSpeech's check_loss(): a rank whose loss was NaN trained on."""
    loop = LOOP.replace("    loss.backward()", "    " + lines.replace("\n", "\n    ") + "\n    loss.backward()")
    report = run(tmp_path, train="import math\n" + HEADER + CHECK + loop)
    messages = [f.message for _, f in report.findings(Severity.REVIEW)]
    assert any("may be NaN or infinite" in message for message in messages) is is_blind


def test_an_early_stopper_decides_by_what_it_has_seen(tmp_path: Path) -> None:
    stopper = """\
class Stopper:
    def __init__(self):
        self.best, self.bad, self.done = 1e9, 0, False

    def __call__(self, loss):
        if loss < self.best:
            self.best, self.bad = loss, 0
        else:
            self.bad += 1
        if self.bad > 3:
            self.done = True


stopper = Stopper()"""
    text = converted(tmp_path, stopper, after="stopper(total)\nif stopper.done:\n    break")
    assert "    if rank_0_decides(stopper.done):\n        break\n" in text
    assert "        if loss < self.best:\n" in text  # nothing that ranks do together depends on it


@pytest.mark.parametrize(
    "kept", ["list(callbacks)", "tuple(callbacks)", "callbacks + [Callback()]", "[Callback(), *callbacks]", "callbacks"]
)
def test_a_callback_in_a_copied_list_decides_by_what_it_has_seen(kept: str, tmp_path: Path) -> None:
    trainer = f"""\
class Callback:
    def on_epoch_end(self, trainer, loss):
        pass


class Stopper(Callback):
    def on_epoch_end(self, trainer, loss):
        if loss < 0.1:
            trainer.should_stop = True


class Trainer:
    def __init__(self, callbacks):
        self.callbacks, self.should_stop = {kept}, False

    def end(self, loss):
        for callback in self.callbacks:
            callback.on_epoch_end(self, loss)


trainer = Trainer([Stopper()])"""
    text = converted(tmp_path, trainer, after="trainer.end(total)\nif trainer.should_stop:\n    break")
    assert "    if rank_0_decides(trainer.should_stop):\n        break\n" in text


def test_a_schedule_steps_by_the_mean_of_the_ranks(tmp_path: Path) -> None:
    setup = "plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)"
    assert "    plateau.step(mean_over_ranks(total))\n" in converted(tmp_path, setup, after="plateau.step(total)")
    steps = "torch.optim.lr_scheduler.StepLR(optimizer, 2)"
    assert "    steps.step(epoch)\n" in converted(tmp_path, f"steps = {steps}", after="steps.step(epoch)")


def test_a_rate_that_a_loss_sets_is_the_mean_of_the_ranks(tmp_path: Path) -> None:
    text = converted(tmp_path, after="optimizer.param_groups[0]['lr'] = 0.1 * total")
    assert "    optimizer.param_groups[0]['lr'] = mean_over_ranks(0.1 * total)\n" in text


def test_a_momentum_that_a_loss_sets_is_the_mean_of_the_ranks(tmp_path: Path) -> None:
    text = converted(tmp_path, after="for group in optimizer.param_groups:\n    group['momentum'] = 0.1 * total")
    assert "        group['momentum'] = mean_over_ranks(0.1 * total)\n" in text


@pytest.mark.parametrize(
    "write",
    [
        "for p in model.parameters():\n        p.grad.data.mul_(0.1)",
        "for name, p in model.named_parameters():\n        p.grad = None",
        "for p in model.parameters():\n        p.requires_grad = False",
        "model.requires_grad_(False)",
        "for group in optimizer.param_groups:\n        for p in group['params']:\n            p.data.clamp_(-1, 1)",
        "with torch.no_grad():\n        for p, noise in zip(model.parameters(), noises):\n            p += noise",
        "with torch.no_grad():\n        model.layer.weight[0] = 0",
        "weight = model.layer.weight.data\n    weight.mul_(0.5)",
        "torch.nn.init.zeros_(model.layer.bias)",
        "model.apply(reset)",
        "optimizer.state.clear()",
    ],
)
def test_a_condition_under_which_weights_change_is_rank_0s(write: str, tmp_path: Path) -> None:
    text = converted(tmp_path, "noises, reset = [], print", after=f"if total > 9:\n    {write}")
    assert "    if rank_0_decides(total > 9):\n" in text


@pytest.mark.parametrize(
    "write",
    [
        "for p in model.parameters():\n        shown = p.data.clone()",
        "counter.add_(1)",
        "x.grad = None",
        "state['weight'] = 3",
    ],
)
def test_a_condition_under_which_no_weight_changes_stays(write: str, tmp_path: Path) -> None:
    setup = "counter, state = torch.zeros(1), {}"
    assert "    if total > 9:\n" in converted(tmp_path, setup, after=f"if total > 9:\n    {write}")


ACT_NORM = """\
class ActNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(8))
        self.register_buffer("done", torch.tensor(0))
        self.register_buffer("seen", torch.zeros(8))
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.normed = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))

    def prepare(self, x):
        self.shift.data.copy_(-x.mean(0))
        self.seen.copy_(x.mean(0))

    def forward(self, x):
        if self.done == 0:
            self.prepare(x)
            self.done.fill_(1)
        return x + self.shift


norm = nn.Sequential(ActNorm())"""


def test_weights_that_a_batch_sets_are_the_mean_of_the_ranks(tmp_path: Path) -> None:
    text = converted(tmp_path, ACT_NORM)
    assert "        self.shift.data.copy_(mean_over_ranks(-x.mean(0)))\n        self.seen.copy_(x.mean(0))\n" in text
    assert "        if self.done == 0:\n" in text


_NOT_OF_ALL = "weights are set by the mean of what each share gives: of the whole batch it may be another number"


@pytest.mark.parametrize(
    "write",
    [
        "self.shift.data.copy_(1 / (x.std(0) + 1e-6))",
        "m = x.mean(0)\n        m /= x.std()\n        self.shift.data.copy_(m)",
        "self.shift.data.copy_(x.sum(0))",
        "self.shift = nn.Parameter(x.mean(0))",
        "self.shift.data.copy_(self.normed(x).mean(0))",
    ],
)
def test_weights_that_a_batch_sets_are_for_review(write: str, tmp_path: Path) -> None:
    norm = ACT_NORM.replace("self.shift.data.copy_(-x.mean(0))\n        self.seen.copy_(x.mean(0))", write)
    report = run(tmp_path, train=HEADER + EPOCHS.format(setup=norm, before="pass", after="pass"))
    after = (report.files[0].after or b"").decode()
    assert "mean_over_ranks(" in after and "mean_over_ranks(nn" not in after
    assert [(f.code, f.message) for _, f in report.findings(Severity.REVIEW)] == [("DSM616", _NOT_OF_ALL)]


def test_the_data_of_a_batch_are_not_those_of_weights(tmp_path: Path) -> None:
    prune = """\
def prune(net):
    for p in net.parameters():
        p.data = torch.where(p.data.abs() < 0.1, 0, p.data)"""
    count = "hits = model(x).eq(y.data.view_as(x))"
    text = converted(tmp_path, EPOCHS.format(setup=prune, before="prune(model)", after=count))
    assert "        p.data = torch.where(p.data.abs() < 0.1, 0, p.data)\n" in text


CODEBOOK = """\
class Codebook(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.zeros(8, 4))
        self.register_buffer("queue", torch.zeros(8, 4))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        self.codes.data.mul_(0.99).add_(x.mean(0), alpha=0.01)
        self.queue[:4] = x
        self.calls += 1
        return x


book = nn.Sequential(Codebook())"""


@pytest.mark.parametrize("init", ["torch.nn.init.normal_(m.weight.data, 0.0, 0.02)", "init.zeros_(m.weight.data)"])
def test_weights_are_initialized_in_place_where_other_data_differs(init: str, tmp_path: Path) -> None:
    setup = (
        "from torch.nn import init\nclass Pool:\n    def __init__(self):\n        self.data = []\npool = Pool()\n"
        f"def weights_init(m):\n    {init}\nmodel.layer.apply(weights_init)"
    )
    text = converted(tmp_path, setup, before="pool.data.append(x)")
    assert f"    {init}\n" in text and "mean_over_ranks" not in text


def test_a_buffer_that_is_made_of_batches_is_for_review(tmp_path: Path) -> None:
    report = run(tmp_path, train=HEADER + EPOCHS.format(setup=CODEBOOK, before="pass", after="pass"))
    found = [(f.code, f.message) for _, f in report.findings(Severity.REVIEW)]
    assert found == [("DSM616", "each rank makes its own codes of its share of the data")]


def test_an_attribute_that_another_class_registers_as_a_buffer_is_none(tmp_path: Path) -> None:
    norm = """\
class Norm(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.codes = nn.Parameter(torch.zeros(config.width))


class Config:
    def __init__(self, width):
        self.width = width


norm = Norm(Config(4))"""
    setup = (
        CODEBOOK.replace("self.codes.data.mul_(0.99).add_(x.mean(0), alpha=0.01)", "self.width = x.sum()") + "\n" + norm
    )
    report = run(tmp_path, train=HEADER + EPOCHS.format(setup=setup, before="pass", after="pass"))
    assert not list(report.findings(Severity.REVIEW))


def test_statistics_that_are_updated_from_a_share_are_for_review(tmp_path: Path) -> None:
    after = "torch.optim.swa_utils.update_bn(loader, model)\ntorch.optim.swa_utils.update_bn(DataLoader(data), model)\n"
    report = run(tmp_path, train=HEADER + LOOP + after)
    found = [(f.line, f.message) for _, f in report.findings(Severity.REVIEW)]
    assert found == [(26, "each rank makes the statistics of BatchNorm of its share of the data")]


def test_a_count_beside_batches_is_the_same_on_all_ranks(tmp_path: Path) -> None:
    loop = EPOCHS.format(setup="", before="pass", after="pass")
    loop = loop.replace("in enumerate(loader)", "in zip(range(9), loader)")
    loop = loop.replace("optimizer.zero_grad()", "if step == 5:\n            break\n        optimizer.zero_grad()", 1)
    assert "        if step == 5:\n            break\n" in convert(tmp_path, HEADER + loop)


def test_weights_that_a_batch_chooses_are_for_review(tmp_path: Path) -> None:
    loop = EPOCHS.format(setup="", before="model.layer.weight.data[y.argmax()] = 0.5", after="pass")
    report = run(tmp_path, train=HEADER + loop)
    found = [(f.code, f.message) for _, f in report.findings(Severity.REVIEW)]
    assert found == [("DSM616", "each rank may set other weights here, by its share of the data")]


@pytest.mark.parametrize(
    "after",
    [
        "if epoch == 5:\n    break",
        "if len(loader) < 3:\n    break",
        "if total < best:\n    best = total\n    torch.save(model.state_dict(), 'best.pt')",
        "losses = [total]\nif sum(losses) < best:\n    best = sum(losses)",
    ],
)
def test_what_is_the_same_on_all_ranks_or_concerns_one_stays(tmp_path: Path, after: str) -> None:
    text = converted(tmp_path, "best = 9.0", after=after)
    assert "rank_0_decides" not in text
    assert after.splitlines()[0] in text


def test_a_loop_whose_samplers_know_the_ranks_keeps_its_own_decisions(tmp_path: Path) -> None:
    loop = EPOCHS.format(setup="", before="pass", after="if total < 0.1:\n        break")
    loop = loop.replace("shuffle=True", "sampler=torch.utils.data.distributed.DistributedSampler(data)")
    text = convert(tmp_path, HEADER + "torch.distributed.init_process_group('gloo')\n" + loop)
    assert "    if total < 0.1:\n        break\n" in text
    assert "init_distributed(share_random_state=False)" in text


def test_a_set_is_for_review_where_ranks_have_no_common_hash_seed(tmp_path: Path) -> None:
    sets = "torch.manual_seed(0)\nwords = set('text')\nindex = {w: i for i, w in enumerate(words | {'x'})}\n"
    divided = LOOP.replace("shuffle=True", "sampler=DistributedSampler(data)")
    loop = f"from torch.utils.data.distributed import DistributedSampler\n{divided}"
    assert not list(run(tmp_path, train=HEADER + sets + LOOP).findings(Severity.REVIEW))
    report = run(tmp_path, Options(plain=True, runtime=False), train=HEADER + sets + loop)
    assert [(f.code, f.line) for _, f in report.findings(Severity.REVIEW)] == [("DSM610", 19)]


def test_functions_named_like_their_modules_are_followed(tmp_path: Path) -> None:
    plateau = "plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)\n"
    after_loop = f"{plateau}plateau.step(evaluate(model, x))\n"
    report = run(
        tmp_path,
        train="from evaluate import evaluate\n" + HEADER + LOOP + after_loop,
        evaluate="def evaluate(net, x):\n    return net(x).mean().item()\n",
    )
    after = {file.path.name: file.after for file in report.files if file.after is not None}
    assert b"plateau.step(mean_over_ranks(evaluate(model, x)))\n" in after["train.py"]


FACTORY = """\
def make_loader(shuffle):
    return DataLoader(data, batch_size=4, shuffle=shuffle), len(data)


loader, size = make_loader(True)
val_loader = make_loader(False)[0]
MAKE_MODEL
for epoch in range(9):
    bar = enumerate(loader)
    bar = tqdm(bar, total=len(loader))
    for step, (x, y) in bar:
        if step + epoch > 9:
            optimizer.param_groups[0]["lr"] = np.sum([0.1, epoch])
        LOSS_STEP
        bar.set_postfix(loss=loss.item())
    meter.sum = loss.item()
    total = sum((y ** 2).mean() for x, y in val_loader)
    {after}
"""


@pytest.mark.parametrize(
    ("after", "is_agreed"),
    [
        ("if total < 0.1: break", True),
        ("if np.sum([epoch, 2]) > 7: break", False),
        ("state = {'epoch': epoch, 'loss': total}\n    if state['epoch'] > 7: break", False),
        ("state = {'epoch': epoch, 'loss': total}\n    if state['loss'] < 0.1: break", True),
        ("state = {'epoch': epoch}\n    state['loss'] = total\n    if min(state.values()) < 0.1: break", True),
        ("state = {'epoch': epoch}\n    state['loss'] = total\n    if state['epoch'] > 7: break", False),
    ],
)
def test_what_differs_by_rank_is_known_by_item_and_library(after: str, is_agreed: bool, tmp_path: Path) -> None:
    text = convert(tmp_path, "import numpy as np\nfrom tqdm import tqdm\n" + HEADER + FACTORY.format(after=after))
    assert text.count("if rank_0_decides(") == is_agreed
    assert "mean_over_ranks" not in text


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("mean = total / len(loader.dataset)", "mean = total / count_samples(loader)"),
        ("mean = 100. * total / len(data)", "mean = 100. * total / count_samples(loader)"),
        ("total /= len(loader.dataset)", "total /= count_samples(loader)"),
        ("print(f'{total} {len(loader.dataset)}')", "print(f'{total} {count_samples(loader)}')"),
        ("weight = 1 / len(data)", "weight = 1 / len(data)"),
        ("mean = total / len(held_out.dataset)", "mean = total / len(held_out.dataset)"),
    ],
)
def test_each_rank_divides_what_it_added_up_by_its_share_of_the_samples(line: str, after: str, tmp_path: Path) -> None:
    loop = LOOP.replace("for x", "total = 0\nheld_out = DataLoader(data)\nfor x") + "    total += loss.item()\n"
    assert after in convert(tmp_path, HEADER + loop + line + "\n")


def test_a_loss_is_weighted_by_all_data(tmp_path: Path) -> None:
    loop = LOOP.replace("for x", "prior = 0\nfor x").replace(
        "y)\n", "y) + prior / len(loader.dataset)\n    prior += 1\n"
    )
    assert "engine(x), y) + prior / len(loader.dataset)\n" in convert(tmp_path, HEADER + loop)


@pytest.mark.parametrize(
    ("keeping", "loaded"),
    [
        ("best, kept = loss.item(), copy.deepcopy(model.state_dict())", "kept"),
        ("kept = {'loss': 1, 'model': copy.deepcopy(model.state_dict())}", "kept['model']"),
        ("kept['model'] = copy.deepcopy(model.state_dict())", "kept['model']"),
        ("kept = (epoch, copy.deepcopy(model.state_dict()))", "kept[1]"),
    ],
)
def test_ranks_agree_on_weights_that_they_keep_beside_something(keeping: str, loaded: str, tmp_path: Path) -> None:
    """Each rank loaded the weights of the epoch that was best on its own share."""
    loop = LOOP.replace("for x", "best, kept, epoch = 1e9, {}, 0\nfor x")
    kept = f"    if loss.item() < best:\n        {keeping}\n        best = loss.item()\n"
    after = convert(tmp_path, f"import copy\n{HEADER}{loop}{kept}model.load_state_dict({loaded})\n")
    assert "    if rank_0_decides(loss.item() < best):\n" in after


def test_ranks_agree_on_the_weights_that_they_keep_and_load_again(tmp_path: Path) -> None:
    loop = LOOP.replace("for x", "best, kept = 1e9, None\nfor x")
    kept = "    if loss.item() < best:\n        best = loss.item()\n        kept = copy.deepcopy(model.state_dict())\n"
    after = convert(tmp_path, "import copy\n" + HEADER + loop + kept + "model.load_state_dict(kept)\n")
    assert "    if rank_0_decides(loss.item() < best):\n        best = loss.item()\n" in after
    after = convert(tmp_path, "import copy\n" + HEADER + loop + kept + "torch.save(kept, 'a')\n")
    assert "    if loss.item() < best:\n" in after


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("name = time.strftime('%H')", "name = rank_0_text(time.strftime('%H'))"),
        ("name = f'runs/{time.time()}'", "name = rank_0_text(f'runs/{time.time()}')"),
        ("now = datetime.now()\nname = now.strftime('%H')", "name = rank_0_text(now.strftime('%H'))"),
        (
            "name = os.path.join('a', datetime.now().isoformat())",
            "os.path.join('a', rank_0_text(datetime.now().isoformat()))",
        ),
        ("now = datetime.now()\nname = 'a_{}'.format(now.hour)", "name = rank_0_text('a_{}'.format(now.hour))"),
        ("now = datetime.now()\nname = 'a_%d' % now.hour", "name = rank_0_text('a_%d' % now.hour)"),
        ("now = time.localtime()\nname = f'a_{now.tm_min}'", "name = rank_0_text(f'a_{now.tm_min}')"),
        ("name = 'a_' + secrets.token_hex(4)", "name = 'a_' + rank_0_text(secrets.token_hex(4))"),
        ("name = 'a' + str(datetime.now())", "name = 'a' + rank_0_text(str(datetime.now()))"),
        ("name = f'{datetime.now():%H}.pt'", "name = rank_0_text(f'{datetime.now():%H}.pt')"),
        ("now = datetime.now()\nhour = f'{now.hour}'.zfill(2)", "hour = rank_0_text(f'{now.hour}').zfill(2)"),
        ("name = str(int(time.time()))", "name = rank_0_text(str(int(time.time())))"),
        ("name = str(uuid.uuid4())[:8]", "name = rank_0_text(str(uuid.uuid4()))[:8]"),
        ("name = uuid.uuid4().hex", "name = rank_0_text(uuid.uuid4().hex)"),
        ("name = 'a_{}'.format(time.time())", "name = rank_0_text('a_{}'.format(time.time()))"),
        ("name = 'a_%d' % time.time()", "name = rank_0_text('a_%d' % time.time())"),
        ("name = ''.join(str(time.time()).split('.'))", "rank_0_text(str(time.time())).split('.'))"),
        ("name = time.strftime('%H') + time.ctime()", "rank_0_text(time.strftime('%H')) + rank_0_text(time.ctime())"),
        ("parser.add_argument('-n', default=time.ctime())", "default=rank_0_text(time.ctime()))"),
        ("taken = str(time.time() - start)", "taken = str(time.time() - start)"),
        ("seed = int(str(time.time_ns())[-4:])", "seed = int(str(time.time_ns())[-4:])"),
        ("pid = str(os.getpid())", "pid = str(os.getpid())"),
        ("for _ in loader:\n    name = f'{datetime.now()}'", "name = f'{datetime.now()}'"),
        ("start = time.time()", "start = time.time()"),
        ("name = time.strftime('%H', start)", "name = time.strftime('%H', start)"),
        ("writer = open(time.strftime('%H'), 'w')", "os.devnull, 'w')"),
    ],
)
def test_all_ranks_have_the_names_that_rank_0_makes_of_the_time(line: str, after: str, tmp_path: Path) -> None:
    converted = convert(
        tmp_path, "import os, secrets, time, uuid\nfrom datetime import datetime\n" + HEADER + LOOP + line + "\n"
    )
    assert after in converted
    assert ("rank_0_text" in after) == ("rank_0_text" in converted)


@pytest.mark.parametrize(("head", "is_shared"), [("", True), ("@other\n", False)])
def test_all_ranks_call_a_function_of_a_library_that_trains(head: str, is_shared: bool, tmp_path: Path) -> None:
    lines = "folder = time.strftime('%H')\n" + LOOP + "torch.save(model, folder)\nmodel = torch.load(folder)\n"
    after = convert(
        tmp_path, f"import time\nfrom other import other\n{HEADER}\n{head}def fit():\n{textwrap.indent(lines, '    ')}"
    )
    assert ("folder = rank_0_text(time.strftime('%H'))\n" in after) == is_shared
    assert ("    wait_for_all_ranks()\n    model = torch.load(folder)\n" in after) == is_shared


def test_all_ranks_have_rank_0s_default_that_is_made_of_the_time(tmp_path: Path) -> None:
    lines = LOOP + "torch.save(model, name)\nmodel = torch.load(name)\n"
    head = 'def fit(name=\'a\' + time.strftime(\'%S\'), limit=time.time()):\n    """Train."""\n'
    after = convert(tmp_path, f"import time\n{HEADER}\n{head}{textwrap.indent(lines, '    ')}\n\nfit()\n")
    assert head + "    name = rank_0_text(name)\n" in after and after.count("rank_0_text(") == 1


def test_a_name_that_only_rank_0_makes_stays(tmp_path: Path) -> None:
    function = "def name():\n    stamp = time.strftime('%H')\n    return stamp\n\n\n"
    after = convert(tmp_path, "import time\n" + HEADER + function + LOOP + "torch.save(model, name())\n")
    assert "stamp = time.strftime('%H')\n" in after


def test_samples_are_counted_once_there_is_a_loader(tmp_path: Path) -> None:
    before = LOOP.replace("model = ", "print(len(data))\nmodel = ")  # all of it, though the loader is there
    after = convert(tmp_path, HEADER + before + "print(len(data))\n")
    assert after.count("print(len(data))") == after.count("print(count_samples(loader))") == 1


FOUND = """
def find(model):
    losses = []
    for x, y in loader:
        losses.append(F.mse_loss(model(x), y).item())
    return len(losses), min(losses)


count, found = find(Net())
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("range(9)", "range(1, best)", "for epoch in range(1, int(mean_over_ranks(best))):"),
        ("lr=0.1", "lr=found / 10", "lr=mean_over_ranks(found / 10))"),
        ("model.parameters(), lr=0.1", "model.parameters(), found", "SGD(model.parameters(), mean_over_ranks(found))"),
        (
            "model.parameters(), lr=0.1",
            "[{'params': model.parameters(), 'lr': found}]",
            "SGD([{'params': model.parameters(), 'lr': mean_over_ranks(found)}])",
        ),
        (
            "model.parameters(), lr=0.1",
            "[dict(params=model.parameters(), lr=found)]",
            "SGD([dict(params=model.parameters(), lr=mean_over_ranks(found))])",
        ),
    ],
)
def test_numbers_of_a_share_that_rule_training_are_the_mean(old: str, new: str, expected: str, tmp_path: Path) -> None:
    setup = f"{FOUND}best = 3 if found > 1 else 5"
    text = EPOCHS.format(setup="pass", before="pass", after="pass").replace(old, new)
    head, loader = HEADER, "loader = DataLoader(data, batch_size=4, shuffle=True)\n"
    assert expected in convert(tmp_path, head + loader + setup + "\n" + text.replace(loader, ""))


def test_the_parameters_that_a_function_gets_behind_a_name_are_no_learning_rate(tmp_path: Path) -> None:
    factory = "def create(name, *args, **kwargs):\n    return REGISTRY[name](*args, **kwargs)\n\n\n"
    factory += "REGISTRY = {'SGD': torch.optim.SGD}\n"
    text = EPOCHS.format(setup=f"{FOUND}best = 3", before="pass", after="pass")
    text = text.replace("torch.optim.SGD(model.parameters(), lr=0.1)", "create('SGD', model.parameters(), lr=found)")
    text = text.replace("model = Net()", "model = pick(Net(), found)")
    loader = "loader = DataLoader(data, batch_size=4, shuffle=True)\n"
    pick = "def pick(net, found):\n    return net if found else Net()\n\n\n"
    after = convert(tmp_path, HEADER + factory + pick + loader + text.replace(loader, ""))
    assert "create('SGD', model.parameters(), lr=mean_over_ranks(found))" in after


def test_settings_beside_a_log_in_one_dict_are_those_of_all_ranks(tmp_path: Path) -> None:
    config = "config = {}\nconfig['log'] = open('log.txt', 'w')\nconfig['rounds'] = 9\nconfig['lr'] = 0.1\n"
    text = EPOCHS.format(setup="", before="config['log'].write(str(loss.item()))", after="pass")
    text = text.replace("range(9)", "range(config['rounds'])").replace("lr=0.1", "lr=config['lr']")
    after = convert(tmp_path, HEADER + config + text)
    assert "range(config['rounds'])" in after and "lr=config['lr'])" in after and "mean_over_ranks" not in after


def test_settings_that_differ_in_a_dict_are_no_learning_rate(tmp_path: Path) -> None:
    loader = "loader = DataLoader(data, batch_size=4, shuffle=True)\n"
    text = EPOCHS.format(setup="", before="pass", after="pass").replace(loader, "")
    text = text.replace("lr=0.1", "**settings")
    settings = "settings = {'lr': sum(y.mean().item() for x, y in loader)}\n"
    report = run(tmp_path, train=HEADER + loader + settings + text)
    (result,) = report.files
    assert result.after is not None and b"model.parameters(), **settings)" in result.after
    found = [f.message for _, f in report.findings(Severity.REVIEW)]
    assert [message for message in found if "other settings of the optimizer" in message]


def test_a_schedule_has_the_same_settings_on_all_ranks(tmp_path: Path) -> None:
    lines = "schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=found, total_steps=best)\n"
    lines += "other = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[best])\n"
    setup = "found = best = 0\nfor x, y in loader:\n    found += F.mse_loss(model(x), y).item()\nbest = int(found)\n"
    text = HEADER + EPOCHS.format(setup=setup + lines, before="pass", after="pass")
    report = run(tmp_path, train=text)
    (result,) = report.files
    after = (result.after or b"").decode()
    assert "max_lr=mean_over_ranks(found), total_steps=int(mean_over_ranks(best))" in after
    found = [f.message for _, f in report.findings(Severity.REVIEW)]
    assert [message for message in found if "other settings of the optimizer" in message]


@pytest.mark.parametrize(
    ("loop", "is_reviewed"),
    [
        ("total = 0\nfor x, y in loader:\n    total += x.mean()\n", True),
        ("words = set()\nfor x, y in loader:\n    words.update(y.tolist())\n", True),
        ("total = 0\nfor x, y in loader:\n    total += F.mse_loss(model(x), y).item()\n", False),
        ("def run(x):\n  return model(x)\ntotal = 0\nfor x, y in loader:\n    total += F.mse_loss(run(x), y)\n", False),
        ("total = 0\nfor x, y in loader:\n    mean = x.mean()\n    total += mean\n", True),
        ("count = 0\nfor x, y in loader:\n    print(x)\n    count += 1\n", False),
        ("for x, y in loader:\n    shape = x.shape\n    break\n", False),
    ],
)  # fmt: skip
def test_what_is_made_of_a_share_before_training_is_for_review(loop: str, is_reviewed: bool, tmp_path: Path) -> None:
    report = run(tmp_path, train=HEADER + EPOCHS.format(setup=loop, before="pass", after="pass"))
    found = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    assert any("sums up a rank's share" in message for message in found) is is_reviewed


def test_a_loop_that_steps_the_optimizer_of_another_file_is_not_for_review(tmp_path: Path) -> None:
    pretrain = """
import torch


def init(translator, loader):
    optimizer, total = torch.optim.SGD(translator.parameters(), lr=0.1), 0
    for x, y in loader:
        loss = (translator(x) - y).abs().mean()
        total += loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
    text = LOOP.replace("model = Net()\n", "model, translator = Net(), nn.Linear(4, 1)\ninit(translator, loader)\n")
    report = run(tmp_path, pretrain=pretrain, train=f"from pretrain import init\n{HEADER}{text}")
    assert not [f.message for _, f in report.findings(Severity.REVIEW) if "sums up a rank's share" in f.message]


CAUGHT = """
    MAKE_MODEL
    for x, y in DataLoader(data, batch_size=4, shuffle=True):
        try:
            STEP
        except ERROR:
            END
    """
OUT_OF_MEMORY = (
    "if 'memory' in str(error):\n                print(error)\n            else:\n                raise error"
)


@pytest.mark.parametrize(
    ("error", "end", "is_reviewed"),
    [
        ("Exception as error", "print(error)", True),
        ("RuntimeError as error", OUT_OF_MEMORY, True),
        ("RuntimeError as error", "if 'memory' in str(error):\n                continue\n            raise", True),
        ("RuntimeError as error", "raise ValueError('too large') from error", False),
        ("KeyboardInterrupt", "break", False),
        ("ImportError", "print('apex is missing')", False),  # on all ranks
        ("(ImportError, RuntimeError)", "print('skipped')", True),
        ("ValueError: quit()\n        except RuntimeError", "raise", False),  # in one line
    ],
)
def test_a_loop_that_continues_behind_an_error_of_one_rank_is_for_review(
    error: str, end: str, is_reviewed: bool, tmp_path: Path
) -> None:
    report = run(tmp_path, train=body(CAUGHT.replace("ERROR", error).replace("END", end)))
    messages = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    assert any("a rank that fails here alone" in message for message in messages) is is_reviewed


CAUGHT_IN_CALLER = """
    class Trainer:
        def __init__(self, model):
            self.model = model
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def update(self, x, y):
            OWN_STEP

        def safe_update(self, x, y):
            try:
                self.update(x, y)
            except ERROR:
                END

        def fit(self, loader):
            for x, y in loader:
                self.safe_update(x, y)


    Trainer(Net()).fit(DataLoader(data, batch_size=4))
    """


@pytest.mark.parametrize(("end", "is_reviewed"), [("print('skipped')", True), ("raise", False)])
def test_an_error_that_a_caller_of_the_step_catches_is_for_review(end: str, is_reviewed: bool, tmp_path: Path) -> None:
    report = run(tmp_path, train=body(CAUGHT_IN_CALLER.replace("ERROR", "Exception").replace("END", end)))
    messages = [finding.message for _, finding in report.findings(Severity.REVIEW)]
    assert any("a rank that fails here alone" in message for message in messages) is is_reviewed


def test_all_of_a_condition_on_a_finite_loss_looks_at_the_mean(tmp_path: Path) -> None:
    after = converted(tmp_path, before="if loss == 0 or not torch.isfinite(loss): break")
    assert "if mean_over_ranks(loss) == 0 or not torch.isfinite(mean_over_ranks(loss)): break" in after


SLOWED = """
import os

rank = int(os.environ.get("RANK", -1))
MAKE_MODEL


def slow_down(optimizer, loss):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 * loss


def train(optimizer):
    for x, y in DataLoader(data, batch_size=4, shuffle=True):
        LOSS_STEP
        {first}
    {last}


train(optimizer)
"""
SLOW = "slow_down(optimizer, loss.item())"


@pytest.mark.parametrize("test", ["rank in {-1, 0}", "rank == 0", "is_main_process()"])
def test_ranks_agree_on_nothing_in_a_function_that_rank_0_may_run_alone(tmp_path: Path, test: str) -> None:
    report = run(tmp_path, train=HEADER + SLOWED.format(first=SLOW, last=f"if {test}:\n        {SLOW}"))
    text = next(f.after for f in report.files if f.after is not None).decode()
    assert '        group["lr"] = 0.1 * loss\n' in text
    [note] = [f.message for f in report.files[0].findings if "be here alone" in f.message]
    assert "as slow_down() in line" in note


@pytest.mark.parametrize("test", ["rank != -1", "rank >= 0", "ranking"])
def test_ranks_agree_in_a_function_that_all_of_several_ranks_run(tmp_path: Path, test: str) -> None:
    guarded = f"if {test}:\n            {SLOW}"
    assert 'group["lr"] = mean_over_ranks(0.1 * loss)' in convert(
        tmp_path, HEADER + SLOWED.format(first=guarded, last="pass")
    )


def test_ranks_agree_on_nothing_in_a_method_that_rank_0_may_call_of_a_loaded_object(tmp_path: Path) -> None:
    text = SLOWED.replace("def slow_down(optimizer, loss):", "class Slow:\n    def slow_down(self, optimizer, loss):")
    text = text.replace(
        '    for group in optimizer.param_groups:\n        group["lr"]',
        "        for group in optimizer.param_groups:\n            group['lr']",
    )
    last = f"if rank == 0:\n        torch.load('slow.pt').{SLOW}"
    report = run(tmp_path, train=HEADER + text.format(first=f"Slow().{SLOW}", last=last))
    assert any("be here alone" in f.message for f in report.files[0].findings)


@pytest.mark.parametrize(
    ("setup", "is_reviewed"),
    [
        ("import time\ntorch.manual_seed(int(time.time()))\n", True),
        ("import os, random\nseed = 1\nseed = seed or os.getpid()\nrandom.seed(seed)\n", True),
        ("import numpy as np\nnp.random.seed()\n", True),
        ("import numpy as np\norder = np.random.default_rng().permutation(8)\n", True),
        ("draws = torch.Generator()\ndraws.seed()\norder = torch.randperm(8, generator=draws)\n", True),
        ("draws = torch.Generator()\ndraws.manual_seed(1)\norder = torch.randperm(8, generator=draws)\n", False),
        ("import random\nrandom.Random(None).shuffle([1, 2])\n", True),
        ("import optuna\nstudy = optuna.create_study(direction='maximize')\n", True),
        ("import optuna\nstudy = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=3))\n", False),
        ("import random\nimport numpy as np\nrandom.seed(3)\nnp.random.default_rng(seed=3)\n", False),
        ("import numpy as np\ndef start(worker_id):\n    np.random.seed()\n", False),
        ("import random\nclass Data:\n    def __init__(self):\n        self.rng = random.Random()\n"
         "    def __getitem__(self, index):\n        return self.rng.random()\n", False),
    ],
)  # fmt: skip
def test_a_generator_that_each_rank_starts_by_itself_is_for_review(
    setup: str, is_reviewed: bool, tmp_path: Path
) -> None:
    report = run(tmp_path, train=HEADER + setup + LOOP)
    assert [f.code for _, f in report.findings(Severity.REVIEW)] == (["DSM616"] if is_reviewed else [])


@pytest.mark.parametrize("is_behind", [True, False])
def test_a_return_behind_what_all_ranks_do_together_stays_each_rank_s(is_behind: bool, tmp_path: Path) -> None:
    norm = (
        "class Norm(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.bias = nn.Parameter(torch.zeros(4))\n    def start(self, x):\n"
        "        self.bias.data.copy_(x.mean(0))\n    def forward(self, x, reverse=False):\n"
    )
    lines = ["        self.start(x)\n", "        if reverse:\n            return x - self.bias\n"]
    forward = "".join(lines if is_behind else reversed(lines)) + "        return x + self.bias\n"
    net = "model = nn.Sequential(Norm(), nn.Linear(4, 1))\n"
    after = convert(tmp_path, HEADER + norm + forward + LOOP.replace("model = Net()\n", net))
    assert "self.bias.data.copy_(mean_over_ranks(x.mean(0)))" in after
    assert ("        if reverse:\n" in after) is is_behind


@pytest.mark.parametrize(
    "lines", ["env.reset()\n", "env.reset(seed=3)\nother = gym.vector.make('a', 2)\n", "print(env.action_space)\n"]
)
def test_each_environment_is_for_review(lines: str, tmp_path: Path) -> None:
    """The seed of one says nothing of another, nor of the actions that its space draws."""
    setup = "import gymnasium as gym\nenv = gym.make('CartPole-v1')\n"
    report = run(tmp_path, train=HEADER + setup + lines + LOOP)
    found = [f for _, f in report.findings(Severity.REVIEW) if "separate environment" in f.message]
    assert len(found) == (setup + lines).count("make(")


def test_ranks_that_act_in_separate_environments_do_not_train_on_the_same_data_alone(tmp_path: Path) -> None:
    """Two reviews of one script contradicted each other: the same data, and data that differ."""
    loop = LOOP.replace("for x, y in loader:", "for x, y in act(env):").replace(LOOP.splitlines()[0], "")
    report = run(tmp_path, train=f"{HEADER}import gym\nenv = gym.make('CartPole-v1')\nenv.reset()\n{loop}")
    found = [f.message for _, f in report.findings(Severity.REVIEW) if "train on the same data" in f.message]
    message = "no DataLoader feeds this step: several ranks train on the same data"
    assert found == [f"{message}, but for what environments without a common seed give"]


def test_a_name_that_a_with_statement_binds_is_not_what_another_one_binds_to_it(tmp_path: Path) -> None:
    setup = 'import yaml\nwith open("c.yaml") as f:\n    config = yaml.safe_load(f)\nbest = 9.0\nif config["deep"]:\n'
    setup += "    model.fc.bias.data.zero_()"
    after = (
        'if total < best:\n    best = total\n    path = "a"\n    with open(path, "w") as f:\n        f.write("best")'
    )
    text = converted(tmp_path, setup, after=after)
    assert 'if config["deep"]:\n' in text and "rank_0_decides" not in text


def test_a_loop_over_a_share_says_nothing_of_another_loop_with_the_same_name(tmp_path: Path) -> None:
    setup = "for x in model.parameters():\n    if x.dim() > 1 and x in model.fc.parameters():\n        x.data.zero_()"
    assert "rank_0_decides" not in converted(tmp_path, setup)


def test_a_name_that_a_loop_binds_and_its_body_sets_anew_may_be_either(tmp_path: Path) -> None:
    setup = "import sys\nloss = 0.0"
    after = "for loss in [1.0, 2.0]:\n    loss = total\n    if loss > 5:\n        sys.exit()"
    assert "if mean_over_ranks(loss) > 5:\n" in converted(tmp_path, setup, after=after)


def test_a_tensor_s_method_keeps_nothing_of_what_it_is_given(tmp_path: Path) -> None:
    net = (
        "class Wide(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.weight = nn.Parameter(torch.ones(4))\n        self.start()\n    def start(self):\n"
        "        nn.init.normal_(self.weight, std=self.weight.numel() ** 0.5)\n        if self.weight is not None:\n"
        "            nn.init.zeros_(self.weight)\n    def forward(self, x):\n"
        "        return (x * self.weight.expand(*x.shape[:-1], int(x.max())).mean()).sum(1, keepdim=True)\n"
    )
    text = convert(tmp_path, HEADER + net + LOOP.replace("Net()", "Wide()"))
    assert "if self.weight is not None:" in text and "mean_over_ranks" not in text


OPTIONS = """\
import argparse
from types import SimpleNamespace


class Meter:
    def update(self, loss):
        self.loss = loss


parser = argparse.ArgumentParser()
parser.add_argument("--loss")
args = parser.parse_args()
config = SimpleNamespace(loss="mse")
meter = Meter()"""


@pytest.mark.parametrize(
    ("test", "before", "is_decided"),
    [
        ("args.loss == 'mse'", "pass", False),
        ("config.loss == 'mse'", "pass", False),
        ("args.loss == 'mse'", "args.loss = loss.item()", True),
        ("meter.loss < 0.1", "pass", True),
    ],
)
def test_a_condition_on_an_option_is_the_same_on_all_ranks(
    test: str, before: str, is_decided: bool, tmp_path: Path
) -> None:
    loop = LOOP.replace(
        "    optimizer.step()\n", f"    optimizer.step()\n    meter.update(loss.item())\n    {before}\n"
    )
    after = convert(tmp_path, f"{HEADER}{OPTIONS}\n{loop}    if {test}:\n        break\n")
    assert (f"    if rank_0_decides({test}):\n" in after) is is_decided


@pytest.mark.parametrize("made", ["dict(deep=True, start=time.time())", '{"deep": True, "start": time.time()}'])
def test_an_item_of_a_dict_is_not_what_another_item_is(made: str, tmp_path: Path) -> None:
    setup = f"import time\noptions = {made}\nif options['deep']:\n    model.fc.bias.data.zero_()"
    assert "rank_0_decides" not in converted(tmp_path, setup)


SWITCH = """\
class Stopper:
    def __call__(self, loss, owner):
        if loss < 0.1:
            {set}

class Owner:
    stop = False

owner, stopper = Owner(), Stopper()
"""


@pytest.mark.parametrize("read", ["owner.stop", "getattr(owner, 'stop', False)"])
@pytest.mark.parametrize("written", ["owner.stop = True", "setattr(owner, 'stop', True)"])
def test_an_attribute_that_is_set_or_read_by_its_name_differs_like_any_other(
    written: str, read: str, tmp_path: Path
) -> None:
    after = f"stopper(total, owner)\nif {read}:\n    break"
    text = converted(tmp_path, SWITCH.replace("{set}", written), after=after)
    assert f"    if rank_0_decides({read}):\n" in text


def test_another_attribute_that_is_read_by_its_name_is_the_same_on_all_ranks(tmp_path: Path) -> None:
    after = "stopper(total, owner)\nif getattr(owner, 'other', False):\n    break"
    text = converted(tmp_path, SWITCH.replace("{set}", "setattr(owner, 'stop', True)"), after=after)
    assert "rank_0_decides" not in text


FEEDS_RATE = """
    class Schedule:
        def __init__(self, optimizer):
            self.optimizer = optimizer
            self.delta = 1
            self.steps = 0

        def faster(self):
            self.delta *= 2

        def update(self):
            self.steps += self.delta
            rate = self.steps ** -0.5
            for group in self.optimizer.param_groups:
                group["lr"] = rate


    loader = DataLoader(data, batch_size=4, shuffle=True)
    MAKE_MODEL
    schedule = Schedule(optimizer)
    worst = 0.0
    for epoch in range(2):
        for x, y in loader:
            LOSS_STEP
            schedule.update()
        if loss.item() > worst:
            worst = loss.item()
            CHANGE
    """


@pytest.mark.parametrize("change", ["schedule.faster()", "pass"])
def test_rank_0_decides_about_a_call_that_changes_what_the_rate_is_made_of(change: str, tmp_path: Path) -> None:
    after = convert(tmp_path, body(FEEDS_RATE).replace("CHANGE", change))
    assert ("if rank_0_decides(loss.item() > worst):" in after) is (change != "pass")
    assert 'group["lr"] = rate\n' in after


UNTIL_IT_IS_SMALL = """
    loader = DataLoader(data, batch_size=4, shuffle=True)
    MAKE_MODEL
    total = LARGE
    while total > 0.5:
        total = 0.0
        for x, y in loader:
            LOSS_STEP
            total += loss.item()
    """


@pytest.mark.parametrize("large", ["np.inf", "math.inf", "float('inf')", "np.nan"])
def test_rank_0_decides_how_long_a_loss_is_large_that_begins_as_a_number_of_a_library(
    large: str, tmp_path: Path
) -> None:
    after = convert(tmp_path, "import math\nimport numpy as np\n" + body(UNTIL_IT_IS_SMALL).replace("LARGE", large))
    assert "while rank_0_decides(total > 0.5):" in after


def test_what_follows_from_a_decision_of_rank_0_is_not_decided_again(tmp_path: Path) -> None:
    lower = """\
if total > best:
    rate = optimizer.param_groups[0]["lr"] * 0.5
    if rate > 1e-6:
        for group in optimizer.param_groups:
            group["lr"] = rate"""
    after = converted(tmp_path, setup="best = 1.0", after=lower)
    assert "if rank_0_decides(total > best):" in after
    assert "if rate > 1e-6:" in after and 'group["lr"] = rate\n' in after


@pytest.mark.parametrize(
    ("given", "name", "is_decided"),
    [
        ("measure(total)", "limit", False),
        ("measure(total)", "found", True),
        ("(total, 3)", "limit", False),
        ("(total, 3)", "found", True),
        ("measure(3) if total > 2 else measure(4)", "limit", True),
        ("spread(total)", "limit", True),
    ],
)
def test_only_the_item_of_a_tuple_that_differs_is_decided(
    given: str, name: str, is_decided: bool, tmp_path: Path
) -> None:
    """As in 3D-ResNets, whose optimizer, and all that it was given to, differed with the loader beside it."""
    functions = "def measure(x):\n    return x, 3\ndef spread(x):\n    return (*[x], 3)"
    after = converted(tmp_path, setup=functions, after=f"found, limit = {given}\nif {name} > 2: break")
    assert (f"if rank_0_decides({name} > 2): break" in after) is is_decided


SCALED = """\
class {base}:
    def note(self, loss):
        {owner}.scale = loss.item()


class Scaled({bases}):
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(4))
        self.scale = 0.5

    def rescale(self):
        with torch.no_grad():
            self.shift.mul_(self.scale)


meter, scaled = {base}(), Scaled()
"""


@pytest.mark.parametrize(
    ("base", "owner", "bases", "differs"),
    [
        ("Meter", "self", "nn.Module", False),
        ("Meter", "self", "Meter, nn.Module", True),
        ("Meter", "self", "nn.Module, bases[0]", True),  # whatever that is
        ("Meter", "scaled", "nn.Module", True),
        ("Scale(torch.autograd.Function)", "self", "nn.Module", False),
    ],
)
def test_an_attribute_that_an_object_sets_of_itself_is_not_that_of_another_class(
    base: str, owner: str, bases: str, differs: bool, tmp_path: Path
) -> None:
    setup = SCALED.format(base=base, owner=owner, bases=bases).replace("= Scale(torch.autograd.Function)", "= Scale")
    text = converted(tmp_path, setup, before="scaled.rescale()", after="meter.note(loss)")
    assert ("self.shift.mul_(mean_over_ranks(self.scale))" in text) is differs


@pytest.mark.parametrize(
    ("owner", "differs"), [("best.loc[0, 'end']", False), ("best.iat[-1]", False), ("best.end", True)]
)
def test_a_table_that_is_changed_in_part_is_no_attribute_of_others(owner: str, differs: bool, tmp_path: Path) -> None:
    part = owner.replace("best", "rows")
    tables = "import pandas as pd\nbest, rows = pd.DataFrame(), pd.DataFrame()\n"
    setup = f"{tables}if {part} > 2:\n    model.fc.bias.data.zero_()"
    text = converted(tmp_path, setup, after=f"{owner} = loss.item()")
    assert ("rank_0_decides(" in text) is differs


def test_a_table_that_a_function_changes_for_its_caller_differs(tmp_path: Path) -> None:
    fill = "def fill(table, loss):\n    table.loc[0, 'loss'] = loss\n\n\n"
    setup = (
        f"import pandas as pd\n{fill}rows = pd.DataFrame()\nif rows.loc[0, 'loss'] > 2:\n    model.fc.bias.data.zero_()"
    )
    assert "rank_0_decides(" in converted(tmp_path, setup, after="fill(rows, loss.item())")


FUNCTION = """\
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x * scale

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale, None


class Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(4))
        self.scale = scale

    def rescale(self):
        with torch.no_grad():
            self.shift.mul_(self.scale)


scaled = Scaled(0.5)
"""


def test_what_a_function_with_a_gradient_keeps_for_its_way_back_is_of_no_other_class(tmp_path: Path) -> None:
    text = converted(tmp_path, FUNCTION, before="scaled.rescale()")
    assert "self.shift.mul_(self.scale)" in text and "mean_over_ranks" not in text


@pytest.mark.parametrize(
    ("call", "differs"),
    [
        ("Scale.apply(x, 0.5)", False),
        ("Scale.apply(x, x.mean())", True),
        ("scale(x, 0.5)", True),  # another name, whose calls are not looked at
        ("Scale.apply(*[x, 0.5])", True),
    ],
)
def test_a_function_with_a_gradient_keeps_what_its_calls_give(call: str, differs: bool, tmp_path: Path) -> None:
    setup = f"{FUNCTION}settings = open('settings')\nscale = Scale.apply\n"
    setup = setup if call.startswith("scale") else setup.replace("scale = Scale.apply\n", "")
    text = converted(tmp_path, setup, before=f"x = {call}", after="if settings.scale > 2: break")
    assert ("if rank_0_decides(settings.scale > 2): break" in text) is differs


RESULT = """\
from dataclasses import dataclass
from typing import NamedTuple


class Result({base}):
    loss: float
    epoch: int

"""


@pytest.mark.parametrize(("base", "decorator"), [("object", "@dataclass\n"), ("NamedTuple", "")])
@pytest.mark.parametrize(("test", "differs"), [("result.loss < 0.1", True), ("result.epoch > 5", False)])
def test_a_field_of_a_record_differs_where_the_number_that_it_is_given_does(
    test: str, differs: bool, base: str, decorator: str, tmp_path: Path
) -> None:
    setup = RESULT.format(base=base).replace("class Result", f"{decorator}class Result")
    text = converted(tmp_path, setup, after=f"result = Result(total, epoch=epoch)\nif {test}:\n    break")
    assert (f"if rank_0_decides({test}):" in text) is differs


@pytest.mark.parametrize(
    ("lines", "agreed"),
    [
        ("[step(x, y) for x, y in loader if x.mean() > 0]", "if rank_0_decides(x.mean() > 0)]"),
        (
            "for x, y in loader:\n    step(x, y) if x.mean() > 0 else None",
            "step(x, y) if rank_0_decides(x.mean() > 0) else",
        ),
        ("shown = [x for x, y in loader if x.mean() > 0]", ""),
    ],
)
def test_a_condition_in_an_expression_that_leads_to_a_step_is_rank_0_s(lines: str, agreed: str, tmp_path: Path) -> None:
    text = """
    loader = DataLoader(data, batch_size=4, shuffle=True)
    MAKE_MODEL


    def step(x, y):
        STEP


    for x, y in loader:
        step(x, y)
    """
    after = convert(tmp_path, body(text) + lines + "\n")
    assert ("rank_0_decides(" in after) is bool(agreed) and agreed in after


TIMED = """
    import time

    MAKE_MODEL
    start, shown = time.time(), time.time()
    x, y = torch.zeros(4, 4), torch.zeros(4, 1)
    while time.perf_counter() < end:
        if time.time() - shown > 10:
            print(loss.item())
        LOSS_STEP
        STOP
    """


@pytest.mark.parametrize(
    ("stop", "after"),
    [("if time.time() - start > 60:\n            break", "if rank_0_decides(time.time() - start > 60):"), ("", "")],
)
def test_rank_0_decides_when_the_time_is_over_without_a_loader(stop: str, after: str, tmp_path: Path) -> None:
    """A rank whose clock was first left training, and the others waited for it in the next step."""
    text = convert(tmp_path, HEADER + textwrap.dedent(TIMED.replace("STOP", stop)))
    assert "while rank_0_decides(time.perf_counter() < end):" in text and after in text
    assert "if time.time() - shown > 10 and is_main_rank():" in text


@pytest.mark.parametrize(
    ("clock", "agreed"),
    [
        ("stop = lambda: time.time() - start > 60", True),
        ("stop = lambda: start > 60", False),
        ("stop, now = lambda now=1: now > 60, time.time()", False),
        ("class Stop:\n    check = None\nstop = Stop()\nstop.check = lambda: time.time() > 60", True),
    ],
)
def test_rank_0_decides_by_a_clock_that_a_lambda_reads(clock: str, agreed: bool, tmp_path: Path) -> None:
    """One rank left, and the others waited for it in the next step."""
    call = "stop.check()" if "check" in clock else "stop()"
    lines = f"import time\nstart = 1\n{clock}\nMAKE_MODEL\nwhile not {call}:\n    x, y = data[:4]\n    LOSS_STEP\n"
    after = convert(tmp_path, body(lines))
    assert (f"while rank_0_decides(not {call}):" in after) is agreed


def test_a_condition_on_rank_0_stays_where_its_rank_is_kept_beside_what_differs(tmp_path: Path) -> None:
    """Rank 0 decided for all that they were rank 0."""
    text = """
        import os

        def reset(model):
            model.load_state_dict(Net().state_dict())
            return model

        state = [int(os.environ.get("RANK", -1)), 0.0]
        loader = DataLoader(data, batch_size=4)
        MAKE_MODEL
        for x, y in loader:
            rank, best = state[0], state[-1]
            average = reset(model) if rank in [-1, 0] else None
            if best > 9:
                break
            LOSS_STEP
            state.append(loss.item())
        """
    after = convert(tmp_path, HEADER + textwrap.dedent(text))
    assert "if rank_0_decides(best > 9):" in after and "reset(model) if rank in [-1, 0] else None" in after


def test_ranks_do_not_agree_in_a_loop_that_waits(tmp_path: Path) -> None:
    """Each rank asked as often as it had waited, and the last one waited for the others."""
    wait = """
        import os
        import time


        def wait(path):
            end = time.time() + 30
            while not os.path.exists(path):
                if time.time() > end:
                    raise TimeoutError(path)
                time.sleep(1)


        try:
            wait("ready")
        except TimeoutError:
            print("no server")
        """
    loop = LOOP.replace("for x, y in loader:", "for x, y in [(torch.zeros(4, 4), torch.zeros(4, 1))]:")
    after = convert(tmp_path, HEADER + textwrap.dedent(wait) + loop.partition("\n")[2])
    assert "        if time.time() > end:" in after and "rank_0_decides" not in after


HOLDER = """
    class Batches:
        def __init__(self):
            self.loader = DataLoader(data, batch_size=4, shuffle=True)

        def __iter__(self):
            return self.loader.__iter__()


    class Learner:
        def __init__(self):
            self.model = Net()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def update(self, x, y):
            if x.sum() > 9:
                return
            OWN_STEP


    learner = Learner()
    for number, (x, y) in enumerate(Batches()):
        learner.update(x, y)
    """


def test_ranks_agree_on_what_an_object_gives_that_runs_over_a_divided_loader(tmp_path: Path) -> None:
    assert "        if rank_0_decides(x.sum() > 9):\n" in convert(tmp_path, body(HOLDER))


HELPER = """
    def value(tree, depth):
        if tree[0] > 9:
            raise ValueError(tree)
        return value(tree[1:], depth - 1) if depth else 0.0


    def safe_value(tree):
        try:
            return value(tree, 2)
        except ValueError:
            HANDLED


    def stream(loader):
        for x, y in loader:
            for row in x:
                found = safe_value(row)
                if found is not None:
                    yield found


    MAKE_MODEL
    loader = DataLoader(data, batch_size=4, shuffle=True)
    for x, y in loader:
        STEP
    for found in stream(loader):
        print(found)
    """


def test_ranks_do_not_wait_for_each_other_in_a_helper_that_handles_its_own_errors(tmp_path: Path) -> None:
    """Each rank comes to it for the samples of its share, and some more often than others."""
    after = convert(tmp_path, body(HELPER.replace("HANDLED", "return None")))
    assert "rank_0_decides" not in after and "any_rank" not in after


def test_ranks_agree_on_an_error_behind_which_the_loop_leaves_a_batch_out(tmp_path: Path) -> None:
    checked = "        try:\n            value(x[0], 2)\n        except ValueError:\n            continue\n"
    text = HELPER.replace("        STEP", f"{checked}        STEP", 1)
    assert "    if rank_0_decides(tree[0] > 9):\n" in convert(tmp_path, body(text.replace("HANDLED", "return None")))


STATES = """\
import time


def resume(ckpt):
    return ckpt["epoch"] + 1


def main():
    ckpt = torch.load("last.pt")
    start = resume(ckpt)
    loader = DataLoader(data, batch_size=4, shuffle=True)
    MAKE_MODEL
    for epoch in range(start, 3):
        for x, y in loader:
            STEP
        if epoch > 1:
            ckpt = {"epoch": epoch, "date": time.time()}
            torch.save(ckpt, "last.pt")
            END


main()
"""


@pytest.mark.parametrize(
    ("end", "differs"),
    [
        ("del ckpt", False),
        ("print(start); del start, ckpt", False),
        ("pass", True),
        ("if start: del ckpt", True),
        ("if start: break\n            del ckpt", True),
        ("print(lambda: ckpt)\n            del ckpt", True),
    ],
)
def test_a_name_that_is_deleted_again_is_none_of_what_it_is_elsewhere(end: str, differs: bool, tmp_path: Path) -> None:
    """As YOLO's checkpoints, which hold a date: what was loaded under that name, and each setting, differed by rank."""
    report = run(tmp_path, train=HEADER + STATES.replace("END", end))
    found = [finding.message for _, finding in report.findings()]
    assert any("all ranks run the mean number of rounds" in message for message in found) is differs


@pytest.mark.parametrize("name", ["stopping", "self.stopping"])
def test_an_object_of_a_library_that_is_called_with_what_differs_may_differ(name: str, tmp_path: Path) -> None:
    """Ranks have other running statistics: one that stopped earlier left the others waiting."""
    text = """
    class Trainer:
        def fit(self):
            model = nn.Sequential(nn.Linear(4, 1), nn.BatchNorm1d(1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            NAME = EarlyStopping(patience=2)
            for epoch in range(9):
                for x, y in DataLoader(data, batch_size=4, shuffle=True):
                    STEP
                model.eval()
                NAME(F.mse_loss(model(data.tensors[0]), data.tensors[1]).item(), model)
                if NAME.early_stop:
                    break


    Trainer().fit()
    """
    after = convert(tmp_path, "from early_stopping_pytorch import EarlyStopping\n" + body(text.replace("NAME", name)))
    assert f"if rank_0_decides({name}.early_stop):" in after


def test_a_name_that_is_made_of_the_time_leaves_what_is_loaded_by_it_the_same(tmp_path: Path) -> None:
    """As in language models: all that a checkpoint held was taken for another one on each rank."""
    text = """
    import time

    name = str(time.time()) + ".pt"


    def load():
        global model, optimizer
        model, optimizer = torch.load(name)


    MAKE_MODEL
    for x, y in [(torch.zeros(8, 4), torch.zeros(8, 1))]:
        rate = optimizer.param_groups[0]["lr"]
        STEP
        optimizer.param_groups[0]["lr"] = rate / 2
    load()
    """
    after = convert(tmp_path, body(text))
    assert 'name = rank_0_text(str(time.time())) + ".pt"' in after and "mean_over_ranks" not in after
