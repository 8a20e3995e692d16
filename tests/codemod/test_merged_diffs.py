"""What a maintainer looks at in a diff: the order of imports, the width of lines, needless lines and findings."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import examples
import pytest
from ds_migrate.findings import Severity
from ds_migrate.syntax.import_order import sort_like
from idiom_case import Idiom

ALPHABETICAL = """\
import logging

import determined.pytorch as det_torch
import torch
from torch import nn


class MyTrial(det_torch.PyTorchTrial):
"""
BY_MODULE = ALPHABETICAL.replace("import torch\nfrom", "from attr import define\nimport torch\nfrom").replace(
    "import determined.pytorch as det_torch\nfrom attr import define",
    "from attr import define\nimport determined.pytorch as det_torch",
)
UNSORTED = ALPHABETICAL.replace("import torch\n", "import yaml\nimport torch\n")


def trial(header: str) -> str:
    text = examples.module(header=header)
    for name in ("PyTorchTrialContext", "TorchData", "DataLoader("):
        text = text.replace(name, f"det_torch.{name}")
    return text


@pytest.mark.parametrize(("header", "wanted"), [
    (ALPHABETICAL, ["import deepspeed", "import torch", "import trial_runtime.pytorch as det_torch",
                    "from torch import nn", "from trial_runtime.pytorch import deepspeed as det_ds"]),
    (BY_MODULE, ["from attr import define", "import deepspeed", "import torch", "from torch import nn",
                 "import trial_runtime.pytorch as det_torch", "from trial_runtime.pytorch import deepspeed as det_ds"]),
    (UNSORTED, ["import deepspeed", "import trial_runtime.pytorch as det_torch",
                "from trial_runtime.pytorch import deepspeed as det_ds", "import yaml", "import torch",
                "from torch import nn"]),
], ids=["plain imports first", "by module", "not sorted"])  # fmt: skip
def test_imports_are_in_the_order_that_their_block_had(header: str, wanted: list[str], tmp_path: Path) -> None:
    after = (examples.convert(tmp_path, trial(header)).after or b"").decode()
    [block] = [part for part in after.split("\n\n") if "import torch" in part]
    assert block.strip().split("\n") == wanted


LOADER = (
    "return DataLoader(make(), batch_size=self.context.get_per_slot_batch_size(), shuffle=True, num_workers=4{more})"
)
FOLDED = """\
        return DataLoader(
            make(), batch_size=self.context.get_train_micro_batch_size_per_gpu(), shuffle=True, num_workers=4{more}
        )
"""


def test_a_line_that_became_too_long_is_folded(tmp_path: Path) -> None:
    block = f"def build_training_data_loader(self):\n    {LOADER.format(more='')}\n"
    after = (examples.convert(tmp_path, examples.module(block)).after or b"").decode()
    assert FOLDED.format(more="") in after


def test_a_line_of_a_file_with_longer_ones_stays_a_line(tmp_path: Path) -> None:
    block = f"def build_training_data_loader(self):\n    {LOADER.format(more='')}\n"
    text = examples.module(block) + f"\n\n# {'long ' * 40}\n"
    assert FOLDED.format(more="") not in (examples.convert(tmp_path, text).after or b"").decode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("DataLoader(\n    make(1, 2), batch_size=SIZE, shuffle=True, collate_fn=functools.partial(collate, 1)\n)",
         "DataLoader(\n    make(1, 2),\n    batch_size=NEW,\n    shuffle=True,\n"
         "    collate_fn=functools.partial(collate, 1),\n)"),
        ("DataLoader(make(1, 2),\n           batch_size=SIZE, shuffle=True, drop_last=True, pin_memory=False)",
         "DataLoader(make(1, 2),\n           batch_size=NEW, shuffle=True, drop_last=True,\n"
         "           pin_memory=False)"),
    ],
    ids=["one element a line", "as many as fit"],
)  # fmt: skip
def test_a_line_inside_brackets_is_divided_at_its_own_commas(before: str, after: str, tmp_path: Path) -> None:
    sizes = ("self.context.get_per_slot_batch_size()", "self.context.get_train_micro_batch_size_per_gpu()")
    method = f"def build_training_data_loader(self):\n    return {before.replace(chr(10), chr(10) + '    ')}\n"
    result = (examples.convert(tmp_path, examples.module(method.replace("SIZE", sizes[0]))).after or b"").decode()
    assert max(map(len, result.splitlines())) <= 120
    assert textwrap.indent(f"return {after.replace('NEW', sizes[1])}", " " * 8) in result


HEAD = """\
def train_batch(
    self, batch: TorchData, epoch_idx: int, batch_idx: int
) -> Dict[str, Any]:
    inputs, targets = batch
    loss = self.criterion(self.model(inputs), targets)
    self.context.backward(loss)
    self.context.step_optimizer(self.optimizer)
    return {"loss": loss}

def evaluate_batch(self, batch: TorchData, batch_idx: int) -> Dict[str, Any]:
    inputs, targets = batch
    return {"loss": self.criterion(self.model(inputs), targets)}
"""
# Lines of at most 88 columns.
SHORT_HEADER = examples.HEADER.replace(
    "from determined.pytorch import DataLoader, LRScheduler, PyTorchTrial, PyTorchTrialContext, TorchData",
    "from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext, TorchData",
)
SHORT_INIT = examples.METHODS["__init__"].replace(
    "    self.optimizer = self.context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))",
    "    sgd = torch.optim.SGD(self.model.parameters(), lr=0.1)\n    self.optimizer = self.context.wrap_optimizer(sgd)",
)


def test_generated_lines_keep_the_width_at_which_the_file_wraps_its_own(tmp_path: Path) -> None:
    wrapped = """\
def build_training_data_loader(self):
    return DataLoader(
        make_data(), self.context.get_per_slot_batch_size(), num_workers=20
    )

def build_validation_data_loader(self):
    size = self.context.get_per_slot_batch_size()
    return DataLoader(make_data(), batch_size=size)
"""
    batches = HEAD.replace(
        "(\n    self, batch: TorchData, epoch_idx: int, batch_idx: int\n)", "(self, batch, epoch_idx, batch_idx)"
    )
    batches = batches.replace("batch: TorchData, batch_idx: int", "batch")
    text = examples.module(wrapped + SHORT_INIT + batches, header=SHORT_HEADER)
    assert max(map(len, text.splitlines())) <= 88
    after = (examples.convert(tmp_path, text).after or b"").decode()
    [undivided] = [line for line in after.splitlines() if len(line) > 88]
    assert undivided.strip() == '"train_micro_batch_size_per_gpu": self.context.get_per_slot_batch_size(),'


def test_heads_of_functions_are_wrapped_where_the_file_wraps_them(tmp_path: Path) -> None:
    loaders = "".join(
        examples.METHODS[name].replace("self.context.get_per_slot_batch_size()", "4")
        for name in ("build_training_data_loader", "build_validation_data_loader")
    )
    text = examples.module(SHORT_INIT + HEAD + loaders, header=SHORT_HEADER)
    assert max(map(len, text.splitlines())) <= 88
    after = (examples.convert(tmp_path, text).after or b"").decode()
    wrapped = (
        "    def evaluate_batch(\n        self, dataloader_iter: Iterator[TorchData], batch_idx: int\n    ) -> Dict"
    )
    assert wrapped in after


CLIPPED = """\
def train_batch(self, batch, epoch_idx, batch_idx):
    inputs, targets = batch
    loss = self.criterion(self.model(inputs), targets)
    self.context.backward(loss)
    self.context.step_optimizer(self.optimizer, clip_grads=lambda p: torch.nn.utils.clip_grad_norm_(p, {norm}))
    return {{"loss": loss}}
"""


@pytest.mark.parametrize(("norm", "written"), [("0.5", 0.5), ("self.context.get_hparam('clip')", None)])
def test_a_norm_that_the_code_gives_is_not_in_the_config_too(norm: str, written: float | None, tmp_path: Path) -> None:
    (tmp_path / "model_def.py").write_text(examples.module(CLIPPED.format(norm=norm)))
    report = examples.run(tmp_path)
    after = {file.path.name: file.after or b"" for file in report.files}
    assert json.loads(after["ds_config.json"]).get("gradient_clipping") == written
    assert (b'"gradient_clipping": self.context' in after["model_def.py"]) == (written is None)


def test_mixed_precision_is_one_finding_that_names_its_lines(tmp_path: Path) -> None:
    text = examples.module(
        textwrap.dedent("""\
        def __init__(self, context: PyTorchTrialContext) -> None:
            self.context = context
            self.scaler = self.context.wrap_scaler(torch.cuda.amp.GradScaler())
            self.model = self.context.wrap_model(Net())
            self.optimizer = self.context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
            self.criterion = nn.MSELoss()

        def train_batch(self, batch, epoch_idx, batch_idx):
            inputs, targets = batch
            with torch.cuda.amp.autocast():
                loss = self.criterion(self.model(inputs), targets)
            self.context.backward(self.scaler.scale(loss))
            self.context.step_optimizer(self.optimizer, scaler=self.scaler)
            self.scaler.update()
            return {"loss": loss}

        def evaluate_batch(self, batch):
            inputs, targets = batch
            with torch.cuda.amp.autocast():
                return {"loss": self.criterion(self.model(inputs), targets)}
        """)
    )
    [found] = [f for f in examples.convert(tmp_path, text).findings if f.severity is Severity.REVIEW]
    lines = [n for n, line in enumerate(text.split("\n"), 1) if "autocast()" in line]
    assert found.message.startswith(f"GradScaler (line {found.line}), autocast (lines {lines[0]}, {lines[1]}): ")


FROZEN = """\
def __init__(self, context: PyTorchTrialContext) -> None:
    self.context = context
    self.model = self.context.wrap_model(Net())
    {setup}
    self.optimizer = self.context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
    self.criterion = nn.MSELoss()

def train_batch(self, batch, epoch_idx, batch_idx):
    inputs, targets = batch
    {training}
    loss = self.criterion(self.model(inputs), targets)
    self.context.backward(loss)
    self.context.step_optimizer(self.optimizer)
    return {{"loss": loss}}
"""
TEACHER = "self.teacher = copy.deepcopy(self.model)\n    self.teacher.requires_grad_(False)"


@pytest.mark.parametrize(("setup", "training", "reviews"), [
    ("self.model.encoder.requires_grad_(False)", "self.model.encoder.requires_grad_(True)", 1),
    ("for p in self.model.parameters():\n        p.requires_grad = False",
     "for p in self.model.head.parameters():\n        p.requires_grad = True", 1),
    ("self.model.encoder.requires_grad_(False)", "inputs.requires_grad_(True)", 0),
    ("self.model.encoder.requires_grad_(False)", "mixed = (inputs + targets).requires_grad_(True)", 0),
    (TEACHER, "for p in self.model.parameters():\n        p.requires_grad = True", 0),
], ids=["a part", "a loop", "an input", "an expression", "a teacher"])  # fmt: skip
def test_a_thawed_model_is_reported_for_the_model_that_was_frozen(
    setup: str, training: str, reviews: int, tmp_path: Path
) -> None:
    text = examples.module(FROZEN.format(setup=setup, training=training))
    found = [f for f in examples.convert(tmp_path, text).findings if "learn later" in f.message]
    assert len(found) == reviews
    assert all("requires_grad" in text.split("\n")[f.line - 1] for f in found)


MANUAL = """\
def train_batch(self, batch, epoch_idx, batch_idx):
    inputs, targets = batch
    {before}
    loss = self.criterion(self.model(inputs), targets)
    {between}
    self.context.backward(loss)
    self.context.step_optimizer(self.optimizer, auto_zero_grads=False)
    return {{"loss": loss}}
"""
CLEAR = "self.optimizer.zero_grad()"
REFUSED = ("DSM302", "auto_zero_grads=False keeps gradients across steps")


@pytest.mark.parametrize("idiom", [
    Idiom(MANUAL.format(before=CLEAR, between="pass"), has=("self.model.backward(loss)", "self.model.step()")),
    Idiom(MANUAL.format(before="pass", between=CLEAR), has=("self.model.backward(loss)", "self.model.step()")),
    Idiom(MANUAL.format(before=f"if batch_idx:\n        {CLEAR}", between="pass"), blocked=REFUSED),
    Idiom(MANUAL.format(before="pass", between="pass"), blocked=REFUSED),
], ids=["first", "before the backward", "sometimes", "never"])  # fmt: skip
def test_gradients_that_the_trial_clears_itself_are_cleared_by_the_engine(idiom: Idiom, tmp_path: Path) -> None:
    idiom.check(tmp_path)


OWN_SIZE = """\
def __init__(self, context: PyTorchTrialContext) -> None:
    self.context = context
    self.hparams = context.get_hparams()
    self.model = self.context.wrap_model(Net())
    {set}
    self.optimizer = self.context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9))
    {later}
    self.criterion = nn.MSELoss()

def build_training_data_loader(self):
    return DataLoader(make(), batch_size={size})

def build_validation_data_loader(self):
    return DataLoader(make(), batch_size=4)
"""
SET = "self.size = self.hparams['size']"


@pytest.mark.parametrize(("size", "set_above", "later", "wanted"), [
    ("16", "pass", "pass", "16"),
    ("self.size", SET, "pass", "self.size"),
    ("self.size", "pass", SET, "1"),
    ("self.size", SET, SET.replace("size = ", "size = 2 * "), "1"),
    ("self.hparams['size']", "pass", "pass", "self.hparams['size']"),
    ("self.context.get_hparam('size')", "pass", "pass", "self.context.get_hparam('size')"),
    ("self.context.get_hparams()['size']", "pass", "pass", "self.context.get_hparams()['size']"),
    ("self.find_size()", "pass", "pass", "1"),
    ("size", "pass", "pass", "1"),
])  # fmt: skip
def test_the_size_that_the_loader_is_given_is_the_micro_batch_size(
    size: str, set_above: str, later: str, wanted: str, tmp_path: Path
) -> None:
    text = examples.module(OWN_SIZE.format(set=set_above, later=later, size=size))
    after = (examples.convert(tmp_path, text).after or b"").decode()
    assert f'"train_micro_batch_size_per_gpu": {wanted},' in after


def test_comments_about_calls_that_are_gone_are_one_finding_of_their_file(tmp_path: Path) -> None:
    block = examples.METHODS["__init__"].replace(
        "    self.context = context\n",
        '    """Wrap with ``context.wrap_model``."""\n    self.context = context\n    # wrap_optimizer takes Adam\n',
    )
    text = examples.module(block)
    [found] = [f for f in examples.convert(tmp_path, text).findings if f.severity is Severity.REVIEW]
    first = next(n for n, line in enumerate(text.split("\n"), 1) if '"""' in line)
    assert (found.code, found.line) == ("DSM201", first)
    assert found.message == f"comments still describe wrap_model, wrap_optimizer (lines {first}, {first + 2})"


def test_a_string_between_imports_stays_where_it_is() -> None:
    before = b'import attr\n"""Between."""\nimport determined\nimport torch\n'
    after = before.replace(b"determined", b"zarr")
    assert sort_like(before, after) == b'import attr\n"""Between."""\nimport torch\nimport zarr\n'


def test_future_imports_stay_first_when_imports_are_sorted() -> None:
    before = b"from __future__ import annotations\n\nimport torch\nfrom tqdm import tqdm\n"
    after = before.replace(b"\n\n", b"\nimport os\n\n")
    assert sort_like(before, after) == after


def test_what_a_wrap_held_moves_left_also_where_it_goes_to_the_device(tmp_path: Path) -> None:
    init = examples.METHODS["__init__"].replace(
        "    self.model = self.context.wrap_model(Net())\n",
        "    self.model = self.context.wrap_model(\n        nn.Sequential(\n            nn.Linear(1, 1),\n"
        "            Net(),\n        )\n    )\n    self.summary = describe(self.model)\n",
    )
    after = (examples.convert(tmp_path, examples.module(init)).after or b"").decode()
    moved = "nn.Sequential(\n    nn.Linear(1, 1),\n    Net(),\n).to(self.context.device)\n"
    assert textwrap.indent(f"self.model = {moved}", " " * 8) in after
