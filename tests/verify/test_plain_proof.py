"""``ds-verify --plain``: conversions written by hand are the same, and those that are wrong on purpose are caught."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import ds_verify
import jsonschema
import pytest
from ds_verify.cli import main
from ds_verify.exit_codes import DIFFERENT, NOT_RUN, SAME
from ds_verify.launchers import launcher_for
from ds_verify.plain.runs import ScriptRuns
from ds_verify.runs import Round, Settings, TrainingRun
from ds_verify.verdict import outcome
from ds_verify.working_copies import Sides
from fixture_folders import FIXTURES

pytestmark = pytest.mark.timeout(600)

Replacement = tuple[str, str]

IMPORTS = "import deepspeed\nfrom torch.utils.data import DistributedSampler\n"
DIGITS: tuple[Replacement, ...] = (
    ("import numpy as np\n", IMPORTS + "import numpy as np\n"),
    ("torch.manual_seed(0)\n", "deepspeed.init_distributed()\ntorch.manual_seed(0)\n"),
    ("BATCH_SIZE, shuffle=True)", "BATCH_SIZE, sampler=DistributedSampler(train_set))"),
    (
        "best_acc = 0.0",
        "engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config={\n"
        '    "train_micro_batch_size_per_gpu": BATCH_SIZE,\n    "gradient_clipping": 0.0,\n'
        '    "zero_optimization": {"stage": 0},\n})\nbest_acc = 0.0',
    ),
    ("    net.train()\n", "    net.train()\n    train_loader.sampler.set_epoch(epoch)\n"),
    ("        optimizer.zero_grad()\n", ""),
    ("net(inputs)\n        loss", "engine(inputs)\n        loss"),
    ("        loss.backward()\n        optimizer.step()\n", "        engine.backward(loss)\n        engine.step()\n"),
)
ACCUMULATION: tuple[Replacement, ...] = (
    ("import torch\n", "import torch\n" + IMPORTS),
    ("    args = get_args()\n", "    args = get_args()\n    deepspeed.init_distributed()\n"),
    (
        "    train_loader = DataLoader(Spirals(384, seed=1), batch_size=args.batch_size, shuffle=True, drop_last=True)",
        "    train_set = Spirals(384, seed=1)\n    sampler = DistributedSampler(train_set)\n"
        "    train_loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler, drop_last=True)",
    ),
    (
        "    os.makedirs(args.out, exist_ok=True)\n",
        "    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config={\n"
        '        "train_micro_batch_size_per_gpu": args.batch_size,\n'
        '        "gradient_accumulation_steps": args.accumulate,\n        "gradient_clipping": args.max_norm,\n'
        '        "zero_optimization": {"stage": 0},\n    })\n    os.makedirs(args.out, exist_ok=True)\n',
    ),
    ("def train_one_epoch(model,", "def train_one_epoch(engine, model,"),
    ("train_one_epoch(model, criterion", "sampler.set_epoch(epoch)\n        train_one_epoch(engine, model, criterion"),
    ("    losses = AverageMeter()\n    optimizer.zero_grad()\n", "    losses = AverageMeter()\n"),
    ("loss = criterion(model(x), y)", "loss = criterion(engine(x), y)"),
    ("        loss = loss / args.accumulate\n        loss.backward()\n", "        engine.backward(loss)\n"),
    (
        "        if (i + 1) % args.accumulate == 0:\n"
        "            torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)\n"
        "            optimizer.step()\n            scheduler.step()\n            optimizer.zero_grad()\n",
        "        engine.step()\n        if (i + 1) % args.accumulate == 0:\n            scheduler.step()\n",
    ),
    ("        state = {", "        if deepspeed.comm.get_rank():\n            continue\n        state = {"),
)  # fmt: skip
GAN: tuple[Replacement, ...] = (
    ("import torch.utils.data\n", "import torch.utils.data\n" + IMPORTS),
    ("device = torch.device(", "deepspeed.init_distributed()\ndevice = torch.device("),
    ("batch_size=opt.batchSize, shuffle=True,", "batch_size=opt.batchSize, sampler=DistributedSampler(dataset),"),
    (
        "for epoch in range(opt.niter):\n",
        'config = {"train_micro_batch_size_per_gpu": opt.batchSize, "gradient_clipping": 0.0,\n'
        '          "zero_optimization": {"stage": 0}}\n'
        "engineD, *_ = deepspeed.initialize(model=netD, optimizer=optimizerD, config=config)\n"
        "engineG, *_ = deepspeed.initialize(model=netG, optimizer=optimizerG, config=config)\n"
        "for epoch in range(opt.niter):\n    dataloader.sampler.set_epoch(epoch)\n",
    ),
    ("errD_real.backward()", "engineD.backward(errD_real)"),
    ("errD_fake.backward()", "engineD.backward(errD_fake)"),
    ("errG.backward()", "engineG.backward(errG)"),
    ("optimizerD.step()", "engineD.step()"),
    ("optimizerG.step()", "engineG.step()"),
)
JOINT: tuple[Replacement, ...] = (
    ("import torch\n", "import deepspeed\nimport torch\n"),
    ("import DataLoader,", "import DataLoader, DistributedSampler,"),
    ("torch.manual_seed(0)\n", "deepspeed.init_distributed()\ntorch.manual_seed(0)\n"),
    ("shuffle=True)", "sampler=DistributedSampler(data))"),
    (
        "warm_up()\nfor",
        'config = {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0.0, "zero_optimization": {"stage": 0}}\n'
        "engine, *_ = deepspeed.initialize(model=modules, optimizer=optimizer, config=config)\nwarm_up()\nfor",
    ),
    ("    train()\n", "    loader.sampler.set_epoch(epoch + 1)\n    train()\n"),
    ("        optimizer.zero_grad()\n", ""),
    ("error.backward()", "engine.backward(error)"),
    ("loss.backward()", "engine.backward(loss)"),
    ("optimizer.step()", "engine.step()"),
)


@dataclass(frozen=True)
class Conversion:
    """A conversion of a fixture, written by hand."""

    script: str
    replacements: tuple[Replacement, ...]
    resumes: tuple[str, ...] = ()


CONVERSIONS = {
    "plain_accumulation": Conversion("train.py", ACCUMULATION, ("--resume", "checkpoints/last.pth")),
    "plain_digits": Conversion("train.py", DIGITS),
    "plain_gan": Conversion("dcgan.py", GAN),
    "joint": Conversion("train.py", JOINT),
}


def before(name: str) -> Path:
    """Return the folder of the original: a fixture, or a script that is here for its faults alone."""
    return Path(__file__).with_name(name) if name == "joint" else FIXTURES / name / "before"


def write(name: str, folder: Path, *changes: Replacement) -> Path:
    """Write the conversion of a fixture, with further changes."""
    script = CONVERSIONS[name].script
    shutil.copytree(before(name), folder)
    text = (folder / script).read_text()
    for right, wrong in (*CONVERSIONS[name].replacements, *changes):
        assert right in text, f"{script} has no {right!r}"
        text = text.replace(right, wrong)
    (folder / script).write_text(text)
    return folder


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., dict[str, str]]]:
    """Return a function that trains a fixture and conversions of it on 2 ranks, and returns the verdicts by name."""

    def verdicts(name: str, conversions: dict[str, Path], steps: int = 12, resume: bool = False) -> dict[str, str]:
        work = tmp_path_factory.mktemp(name)
        conversion = CONVERSIONS[name]
        settings = Settings(steps=steps, ranks=(2,), tolerance=1e-6)
        sides = Sides(before(name), work / "none", "")
        runs = ScriptRuns(
            sides, Path(conversion.script), (), conversion.resumes if resume else (), settings, work,
            lambda _: None, launcher_for("cpu"),
        )  # fmt: skip
        runs.replaces_cuda = True
        (alone,) = runs.train([runs.job("original", "original-1ranks", 1)])
        assert alone.failure is None, alone.failure
        runs.alone = alone.figures
        jobs = [runs.job("original", "original-2ranks", 2)]
        for title, folder in conversions.items():
            sides.converted = folder
            jobs.append(runs.job("converted", f"{title}-2ranks", 2))
        original, *converted = runs.train(jobs)
        assert original.failure is None, original.failure
        assert original.figures["steps"] == steps
        return {title: _verdict(original, each, settings) for title, each in zip(conversions, converted, strict=True)}

    yield verdicts


def _verdict(original: TrainingRun, converted: TrainingRun, settings: Settings) -> str:
    found = outcome(Round(2, original, original, converted, settings), unit="step")
    return found.first or "same"


def test_a_conversion_that_is_saved_and_resumed_is_the_same(
    proof: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    right = write("plain_accumulation", tmp_path / "right")
    weights_only = ("        optimizer.load_state_dict(checkpoint", "        {}.update(checkpoint")
    found = proof(
        "plain_accumulation",
        {
            "right": right,
            "lost": write("plain_accumulation", tmp_path / "lost", weights_only),
            "renamed": write("plain_accumulation", tmp_path / "renamed", ('{"model": model.', '{"model": engine.')),
        },
        steps=16,
        resume=True,
    )
    assert found["right"] == "same"
    assert found["lost"].startswith("step ")
    assert "Missing key(s) in state_dict" in found["renamed"]


FAULTS: dict[str, dict[str, tuple[tuple[Replacement, ...], str]]] = {
    "plain_digits": {
        "gradient_clipping_absent": ((('    "gradient_clipping": 0.0,\n', ""),), "step 1: limits of clip_grad_norm_"),
        "no_sampler": (
            (
                ("sampler=DistributedSampler(train_set)", "shuffle=True"),
                ("    train_loader.sampler.set_epoch(epoch)\n", ""),
            ),
            # BatchNorm has seen the batch.
            "before the first step: initial Net.features.5.running_var on rank 1 ",
        ),
        "epoch_of_the_sampler_not_set": (
            (("    train_loader.sampler.set_epoch(epoch)\n", ""),),
            "step 8: norm of Net buffers on rank 1 ",
        ),
        "schedule_stepped_by_the_engine": (
            (("model=net, optimizer=optimizer,", "model=net, optimizer=optimizer, lr_scheduler=scheduler,"),),
            "step 1: steps of schedules by 1 ",
        ),
        "optimizer_stepped_beside_the_engine": (
            (("        engine.step()", "        optimizer.step()"),),
            "before the first step: setup optimizer steps that an engine knows nothing of by 12 ",
        ),
        "validated_on_a_share": (
            (("test_loader = DataLoader(test_set, batch_size=100)",
              "test_loader = DataLoader(test_set, batch_size=100, sampler=DistributedSampler(test_set))"),),
            "step 8: validation outputs of Net in evaluations by 5.2 ",
        ),
        "saved_as_another_model": (
            (("torch.save(net.", "torch.save(engine."),),
            "step 8: saved net.pth: fc.bias: missing in the candidate",
        ),
        "results_in_the_wrong_order": ((("engine, *_ =", "*_, engine ="),), "step 1: TypeError"),
    },
    "plain_accumulation": {
        "loss_divided_twice": (
            (("engine.backward(loss)", "engine.backward(loss / args.accumulate)"),),
            "step 1: gradient norm|step 1: training loss",
        ),
        "zero_grad_left": (
            (("        engine.backward(loss)\n", "        optimizer.zero_grad()\n        engine.backward(loss)\n"),),
            "step 1: gradient norm",
        ),
        "clipped_by_hand_at_stage_1": (
            (
                ('"gradient_clipping": args.max_norm', '"gradient_clipping": 0.0'),
                ('"stage": 0', '"stage": 1'),
                (
                    "        engine.step()\n",
                    "        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n        engine.step()\n",
                ),
            ),
            "step ",
        ),
        "optimizer_stepped_at_stage_0": (
            (("        engine.step()\n", "        engine.is_gradient_accumulation_boundary() and optimizer.step()\n"
              "        engine.step()\n"),),
            "step 1: |before the first step: setup ",
        ),
    },
    "plain_gan": {
        "two_backwards_at_stage_1": ((('"stage": 0', '"stage": 1'),), "step 1: gradient norm"),
        "engines_swapped": ((("engineG.step()", "engineD.step()"),), "step "),
    },
    "joint": {
        "parameters_that_are_not_in_the_engine": (
            (("model=modules,", "model=torch.nn.ModuleList([encoder, decoder]),"),), "step 1: gradient norm",
        ),
        "one_loss_over_two_engines": (
            (
                (
                    "optimizer = torch.optim.Adam(modules.parameters(), lr=0.01)",
                    "optimizer = torch.optim.Adam(encoder.parameters(), lr=0.01)\n"
                    "rest = torch.nn.ModuleList([decoder, criterion])\n"
                    "second = torch.optim.Adam(rest.parameters(), lr=0.01)",
                ),
                (
                    "model=modules, optimizer=optimizer, config=config)\n",
                    "model=encoder, optimizer=optimizer, config=config)\n"
                    "other, *_ = deepspeed.initialize(model=rest, optimizer=second, config=config)\n",
                ),
                ("engine.step()", "engine.step(); other.step()"),
            ),
            "step 1: gradient norm",
        ),
        "a_function_left_as_it_was": (
            (("engine.backward(error)\n        engine.step()", "error.backward()\n        optimizer.step()"),),
            "before the first step: setup optimizer steps that an engine knows nothing of by 6 ",
        ),
    },
}  # fmt: skip
_FAST = ("plain_digits", "plain_accumulation", "joint")


@pytest.mark.parametrize(
    "name", [name if name in _FAST else pytest.param(name, marks=pytest.mark.slow) for name in FAULTS]
)
def test_wrong_conversions_are_caught_where_they_begin(
    name: str, proof: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    faults = FAULTS[name]
    conversions = {title: write(name, tmp_path / title, *changes) for title, (changes, _) in faults.items()}
    found = proof(name, {"right": write(name, tmp_path / "right"), **conversions})
    assert found.pop("right") == "same"
    assert not {title: found[title] for title, (_, first) in faults.items() if not re.match(first, found[title])}


SCRIPTS = {
    "plain_accumulation": "train.py",
    "plain_contrastive": "pretrain.py",
    "plain_ddp": "main.py",
    "plain_digits": "train.py",
    "plain_functions": "main.py",
    "plain_gan": "dcgan.py",
    "plain_language_model": "train.py",
    "plain_recurrent": "main.py",
    "plain_siamese": "siamese.py",
    "plain_trainer": "train.py",
}


SHARDED = ("plain_digits", "plain_functions", "plain_recurrent", "plain_siamese")
"""The others are converted to stage 0 anyway."""


@pytest.mark.parametrize(
    ("name", "zero"),
    [pytest.param(name, None, marks=[] if name == "plain_ddp" else pytest.mark.slow) for name in SCRIPTS]
    + [pytest.param(name, 0, marks=pytest.mark.slow) for name in SHARDED],
)
def test_what_the_tool_writes_trains_as_the_script_did(
    name: str, zero: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(FIXTURES / name / "before", tmp_path / name)
    monkeypatch.chdir(tmp_path / name)
    options = ["--plain", "--no-report", "--steps", "12", "--against", "converted"]
    found = main([*options, *([] if zero is None else ["--zero", str(zero)]), SCRIPTS[name]])
    assert found == SAME, capsys.readouterr().out
    assert "same: 12 steps with 1 and 2 ranks" in capsys.readouterr().out


OWN_OPTIMIZER = """\
import deepspeed
import torch
from torch.utils.data import DataLoader, TensorDataset

class Own(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            p -= 0.1 * p.own

torch.manual_seed(0)
deepspeed.init_distributed()
data = TensorDataset(torch.randn(64, 3), torch.randn(64, 1))
loader = DataLoader(data, batch_size=4, sampler=torch.utils.data.DistributedSampler(data))
net = torch.nn.Linear(3, 1)
optimizer = Own(net.parameters())
config = {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0.0}
engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
for x, y in loader:
    loss = (engine(x) - y).pow(2).mean()
    engine.backward(loss)
    for p in net.parameters():
        p.own = x.mean() * torch.ones_like(p)
    engine.step()
"""


@pytest.mark.slow
def test_ranks_that_part_are_a_difference_though_each_is_as_its_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = OWN_OPTIMIZER.replace("import deepspeed\n", "").replace("deepspeed.init_distributed()\n", "")
    original = original.replace("sampler=torch.utils.data.DistributedSampler(data)", "shuffle=True")
    original = re.sub(r"config = .*\n|engine, .*\n", "", original)
    original = original.replace("engine(x)", "net(x)").replace("engine.step", "optimizer.step")
    original = original.replace("    engine.backward(loss)\n", "    optimizer.zero_grad()\n    loss.backward()\n")
    for side, text in (("before", original), ("after", OWN_OPTIMIZER)):
        (tmp_path / side).mkdir()
        (tmp_path / side / "train.py").write_text(text)
    monkeypatch.chdir(tmp_path / "after")
    found = main(["--plain", "--no-report", "--steps", "4", "--original", "../before", "train.py"])
    printed = capsys.readouterr().out
    assert found == DIFFERENT, printed
    assert "with 2 ranks" in printed and "Linear.weight is not the same on all ranks" in printed


def test_the_command_proves_a_converted_script_and_leaves_the_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = write("plain_digits", tmp_path / "project")
    (project / "out").mkdir()
    (project / "out" / "net.pth").write_text("mine")
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    monkeypatch.chdir(project)
    original = str(FIXTURES / "plain_digits" / "before")
    report = tmp_path / "report.html"
    options = ["--plain", "--ranks", "1", "--steps", "18", "--report", str(report), "--original", original]
    assert main([*options, "--format", "json", "train.py"]) == SAME
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    schema = json.loads(Path(ds_verify.__file__).with_name("schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(found)
    assert (found["verdict"], found["trial"], found["batches"], found["unit"]) == ("same", "train.py", 18, "step")
    assert found["headline"].startswith("same: 18 steps with 1 rank")
    assert "run 1 of 3: original, 1 rank, 0 of 54 steps" in printed.err
    assert "over 18 steps" in report.read_text()
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == before


CLOSURE = """\
import torch

net = torch.nn.Linear(2, 1)
optimizer = torch.optim.LBFGS(net.parameters())
scaler = torch.amp.GradScaler()


def closure():
    optimizer.zero_grad()
    loss = net(torch.ones(1, 2)).sum()
    scaler.scale(loss).backward()
    return loss


optimizer.step(closure)
"""


def test_what_cannot_be_run_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--plain", "--format", "json", "missing.py"]) == NOT_RUN
    printed = capsys.readouterr()
    assert "there is no such script" in printed.err
    assert json.loads(printed.out)["headline"] == "missing.py: there is no such script"
    (tmp_path / "closure.py").write_text(CLOSURE)
    (tmp_path / "broken.py").write_text("def (\n")
    for name, reason in (("closure.py", "DSM651"), ("broken.py", "cannot be parsed")):
        assert main(["--plain", "--no-report", name]) == NOT_RUN
        assert reason in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--plain", "--ranks", "0", "closure.py"])
    (tmp_path / "script.py").write_text("import torch\n")
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "script.py").write_text("import torch\n")
    options = ["--plain", "--no-report", "--ranks", "1", "--original", "before"]
    assert main([*options, "script.py"]) == NOT_RUN
    assert "nothing was trained" in capsys.readouterr().out


OPTIONAL_RANKS = """\
import sys
import torch
import torch.distributed as dist

if "--many" in sys.argv:
    dist.init_process_group("gloo")
data = torch.utils.data.TensorDataset(torch.randn(16, 2), torch.randn(16, 1))
net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in torch.utils.data.DataLoader(data, batch_size=2):
    optimizer.zero_grad()
    (net(x) - y).square().mean().backward()
    optimizer.step()
"""


def test_a_script_that_starts_ranks_by_an_option_is_compared_on_one_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(OPTIONAL_RANKS)
    assert main(["--plain", "--no-report", "--steps", "3", "train.py"]) == SAME
    printed = " ".join(capsys.readouterr().out.split())
    assert "same: 3 steps with 1 rank (" in printed and "the world size is 1 by the script's own arguments" in printed
