"""``model_hub.huggingface`` on models made from a config: its parts, and both base classes trained side by side."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_project
import numpy as np
import pytest
import torch
import toys
from distributed import run_ranks
from trial_runtime import pytorch
from trial_runtime.model_hub import huggingface as hf
from trial_runtime.model_hub import utils
from trial_runtime.model_hub.huggingface._adamw import AdamW

HPARAMS = {
    "model_mode": "sequence-classification",
    "use_pretrained_weights": False,
    "use_apex_amp": False,
    "num_training_steps": 12,
    "num_warmup_steps": 2,
    "learning_rate": 0.003,
    "weight_decay": 0.01,
    "max_grad_norm": 0.5,
}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def model_path(tmp_path: Path) -> str:
    pytest.importorskip("transformers")
    return str(huggingface_project.write_model(tmp_path / "tiny_bert"))


def kwargs(path: str) -> tuple[utils.AttrDict, utils.AttrDict, utils.AttrDict]:
    return hf.default_parse_config_tokenizer_model_kwargs({"pretrained_model_name_or_path": path})


def build(path: str, mode: str, use_pretrained_weights: bool = False) -> Any:
    config, tokenizer, model = kwargs(path)
    return hf.build_using_auto(config, tokenizer, mode, model, use_pretrained_weights)


# -- training ----------------------------------------------------------------------------------------------------------


class Rows:
    """Data of a trial, and its evaluation."""

    context: Any
    model: Any

    def rows(self, count: int) -> Any:
        words = torch.randint(5, 40, (count, 8), generator=torch.Generator().manual_seed(count))
        return [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row.sum() % 2} for row in words]

    def build_training_data_loader(self) -> Any:
        return pytorch.DataLoader(self.rows(32), batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader(self.rows(8), batch_size=self.context.get_per_slot_batch_size())

    def state(self) -> dict[str, torch.Tensor]:
        model = getattr(self.model, "module", self.model)
        return {name: value.clone() for name, value in model.state_dict().items()}


class PyTorchRows(Rows, hf.BaseTransformerTrial):
    def evaluate_batch(self, batch: Any) -> dict[str, Any]:  # type: ignore[override]
        return {"loss": self.model(**batch).loss}


class DeepSpeedRows(Rows, hf.BaseTransformerDeepSpeedTrial):
    def evaluate_batch(self, dataloader_iter: Any) -> dict[str, Any]:  # type: ignore[override]
        return {"loss": self.model(**self.context.to_device(next(dataloader_iter))).loss}


def train_both(path: str, k: int, more: dict[str, Any]) -> dict[str, Any]:
    """Return the differences between the two runs, and what the first one came to."""
    hparams = {**HPARAMS, "pretrained_model_name_or_path": path, "k": k, **more}
    one = toys.fit(PyTorchRows, hparams, max_length=pytorch.Batch(6))
    accumulation = {"overwrite_deepspeed_args": {"gradient_accumulation_steps": k}}
    other = toys.fit(DeepSpeedRows, {**hparams, **accumulation}, max_length=pytorch.Batch(6 // k))
    return {
        "weights": toys.difference(one.state, other.state),
        "losses": [abs(float(a["loss"]) - float(b["loss"])) for a, b in zip(one.training, other.training, strict=True)],
        "validation": [
            abs(a["loss"] - b["loss"]) for (_, a), (_, b) in zip(one.validation, other.validation, strict=True)
        ],
        "state": one.state,
    }


@pytest.mark.parametrize(
    ("k", "more"),
    [(1, {}), (2, {}), (1, {"max_grad_norm": 0.0, "lr_scheduler_type": "cosine"}), (1, {"adafactor": True})],
    ids=["clipped", "accumulated", "not clipped", "adafactor"],
)
def test_both_base_classes_train_the_same(model_path: str, k: int, more: dict[str, Any]) -> None:
    found = train_both(model_path, k, more)
    assert found["weights"] == 0.0 and set(found["losses"]) == {0.0} and found["validation"] == [0.0]
    assert len(found["losses"]) == 6


def test_both_base_classes_train_the_same_on_two_ranks(model_path: str) -> None:
    first, second = run_ranks(train_both, model_path, 1, {"weight_decay": 0.1})
    assert len(first["losses"]) == 6 and max(first["losses"] + first["validation"]) <= 1e-6
    assert max(first["weights"], second["weights"]) <= 1e-7
    assert toys.difference(first["state"], second["state"]) == 0.0


def test_what_the_engine_must_not_do_besides_the_trial_is_refused(model_path: str) -> None:
    hparams = {**HPARAMS, "pretrained_model_name_or_path": model_path}
    for config, name in (
        ({"zero_optimization": {"stage": 1}}, "zero_optimization.stage: 0"),
        ({"gradient_clipping": 1.0}, "gradient_clipping: 0.0"),
        ({"managed_gradient_accumulation": True}, "managed_gradient_accumulation: False"),
    ):
        with pytest.raises(ValueError, match=name):
            toys.fit(DeepSpeedRows, {**hparams, "deepspeed_config": config}, max_length=pytorch.Batch(1))


def test_a_subclass_keeps_the_settings_that_it_has_made(model_path: str) -> None:
    class Settings(PyTorchRows):
        def __init__(self, context: Any) -> None:
            self.hparams = {**HPARAMS, "pretrained_model_name_or_path": model_path, "num_labels": 3}
            self.data_config = "own"
            super().__init__(context)
            assert self.data_config == "own"
            assert isinstance(self.hparams, utils.AttrDict) and self.hparams.num_labels == 3
            assert self.model.num_labels == self.config.num_labels == 3
            assert self.tokenizer("w1 w2")["input_ids"] == [2, 6, 7, 3]
            assert self.grad_clip_fn is not None

    toys.fit(Settings, max_length=pytorch.Batch(1))


def test_settings_are_completed_and_checked(caplog: pytest.LogCaptureFixture) -> None:
    class Checked(PyTorchRows):
        def __init__(self, context: Any) -> None:
            self.context = context
            self.hparams = utils.AttrDict(use_apex_amp=False, model_mode="base")
            self.exp_config = {}
            self.check_hparams()

    context = types.SimpleNamespace(
        get_experiment_config=lambda: {"searcher": {"max_length": {"records": 100}}},
        get_global_batch_size=lambda: 8,
    )
    trial = Checked(context)
    assert trial.hparams.num_training_steps == 12
    assert trial.hparams.use_pretrained_weights is True
    assert "starts from pretrained weights" in caplog.text
    del trial.hparams["model_mode"]
    with pytest.raises(AssertionError, match="model_mode is a required hyperparameter"):
        trial.check_hparams()


# -- models, optimizers, schedules -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [m for m in hf.MODEL_MODES if m != "seq2seq-lm"])
def test_every_mode_builds_its_model(mode: str, model_path: str) -> None:
    transformers = pytest.importorskip("transformers")
    config, tokenizer, model = build(model_path, mode)
    assert isinstance(config, transformers.BertConfig) and tokenizer.mask_token == "[MASK]"
    kind = getattr(transformers, hf.MODEL_MODES[mode])
    assert type(model) is kind._model_mapping[type(config)]
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_pretrained_weights_are_loaded_in_float32(model_path: str) -> None:
    _, _, model = build(model_path, "sequence-classification")
    model.half().save_pretrained(model_path)
    _, _, loaded = build(model_path, "sequence-classification", use_pretrained_weights=True)
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}
    assert toys.difference(loaded.state_dict(), model.float().state_dict()) == 0.0


def test_an_unknown_mode_is_an_error_that_lists_them() -> None:
    with pytest.raises(ValueError, match="'detection'; there are base, pretraining, causal-lm"):
        hf.build_using_auto({}, {}, "detection", {})


def test_biases_and_norms_do_not_decay() -> None:
    model = torch.nn.Module()
    model.layer = torch.nn.Linear(2, 2)
    model.LayerNorm = torch.nn.LayerNorm(2)
    decaying, constant = hf.group_parameters_for_optimizer(model, 0.1)
    assert [p is model.layer.weight for p in decaying["params"]] == [True]
    assert len(constant["params"]) == 3
    assert (decaying["weight_decay"], constant["weight_decay"]) == (0.1, 0.0)


def test_adamw_follows_its_rule_and_not_torchs() -> None:
    """p -= lr * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps), then p -= lr * weight_decay * p."""
    gradients = torch.tensor([[0.5, -2.0], [0.1, 0.3], [-1.0, 0.0]], dtype=torch.float64)
    parameter = torch.nn.Parameter(torch.tensor([1.0, -3.0], dtype=torch.float64))
    other = torch.nn.Parameter(parameter.detach().clone())
    settings: dict[str, Any] = {"lr": 0.1, "betas": (0.8, 0.9), "eps": 0.01, "weight_decay": 0.2}
    ours, torchs = AdamW([parameter], **settings), torch.optim.AdamW([other], **settings)
    expected = parameter.detach().numpy().copy()
    first = second = np.zeros(2)
    for step, gradient in enumerate(gradients.numpy(), 1):
        first, second = 0.8 * first + 0.2 * gradient, 0.9 * second + 0.1 * gradient**2
        size = 0.1 * np.sqrt(1 - 0.9**step) / (1 - 0.8**step)
        expected = expected - size * first / (np.sqrt(second) + 0.01)
        expected = expected - 0.1 * 0.2 * expected
        parameter.grad = other.grad = torch.tensor(gradient)
        ours.step()
        torchs.step()
    np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-12)
    assert float((parameter - other).detach().abs().max()) > 1e-3


def test_adamw_skips_what_has_no_gradient_and_evaluates_a_closure() -> None:
    one, two = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    optimizer = AdamW([one, two], lr=0.1, weight_decay=0.5)

    def closure() -> torch.Tensor:
        loss = (one * 2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    assert float(two.detach()) == 1.0 and float(one.detach()) < 1.0


# -- arguments ---------------------------------------------------------------------------------------------------------


def test_hyperparameters_become_the_arguments_of_config_tokenizer_and_model() -> None:
    hparams = {"pretrained_model_name_or_path": "bert", "model_name": "own", "num_labels": 4, "cache_dir": "c", "x": 1}
    config, tokenizer, model = hf.default_parse_config_tokenizer_model_kwargs(hparams)
    common = {"cache_dir": "c", "revision": "main", "use_auth_token": False}
    assert config == {"num_labels": 4, "pretrained_model_name_or_path": "bert", **common}
    assert tokenizer == {"pretrained_model_name_or_path": "bert", "use_fast": True, **common}
    assert model == {"pretrained_model_name_or_path": "own", **common}
    with pytest.raises(AssertionError, match="the config has no name or path"):
        hf.default_parse_config_tokenizer_model_kwargs({"model_name": "own"})


def test_hyperparameters_become_the_arguments_of_optimizer_and_schedule() -> None:
    optimizer, schedule = hf.default_parse_optimizer_lr_scheduler_kwargs({"num_training_steps": 9, "weight_decay": 0.1})
    assert vars(optimizer) == {
        "weight_decay": 0.1, "adafactor": False, "learning_rate": 5e-5, "max_grad_norm": 1.0, "adam_beta1": 0.9,
        "adam_beta2": 0.999, "adam_epsilon": 1e-8, "scale_parameter": False, "relative_step": False,
    }  # fmt: skip
    assert vars(schedule) == {"num_training_steps": 9, "lr_scheduler_type": "linear", "num_warmup_steps": 0}
    with pytest.raises(TypeError, match="num_training_steps"):
        hf.default_parse_optimizer_lr_scheduler_kwargs({})


def test_own_dataclasses_are_filled_in_like_those_of_the_library() -> None:
    @dataclass
    class Own:
        task: str
        max_length: int = 8

    arguments = {"task": "t", "dataset_name": "d", "unknown": 1}
    own, data = hf.parse_dict_to_dataclasses((Own, hf.DatasetKwargs), arguments)
    assert own == Own("t") and data.dataset_name == "d" and data.train_file is None
    assert hf.parse_dict_to_dataclasses((Own,), arguments, as_dict=True) == ({"task": "t", "max_length": 8},)


def test_a_field_that_is_not_given_is_not_there() -> None:
    assert not hasattr(hf.ConfigKwargs(), "num_labels")
    assert hf.ConfigKwargs(num_labels=2).num_labels == 2
    assert repr(hf.TokenizerKwargs(use_fast=False)) == (
        "TokenizerKwargs(pretrained_model_name_or_path=None, cache_dir=None, revision=main, use_auth_token=False, "
        "use_fast=False)"
    )


# -- data --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Calls of ``datasets.load_dataset``, which returns training data alone."""
    calls: list[Any] = []

    def load_dataset(*args: Any, **options: Any) -> Any:
        calls.append((*args, options))
        return options.get("split", {"train": "all"})

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    yield calls


def test_a_named_data_set_without_validation_is_split(loads: list[Any]) -> None:
    config = {"dataset_name": "wikitext", "dataset_config_name": "raw", "validation_split_percentage": 5}
    assert hf.default_load_dataset(config) == {"train": "train[5%:]", "validation": "train[:5%]"}
    assert loads[0] == ("wikitext", "raw", {})
    with pytest.raises(ValueError, match="wikitext has no validation data: set validation_split_percentage"):
        hf.default_load_dataset({"dataset_name": "wikitext"})


def test_files_are_read_by_their_extension(loads: list[Any]) -> None:
    hf.default_load_dataset({"train_file": "a.b/train.txt", "validation_file": "v.txt"})
    hf.default_load_dataset({"train_file": "t.json"})
    assert loads == [
        ("text", {"data_files": {"train": "a.b/train.txt", "validation": "v.txt"}}),
        ("json", {"data_files": {"train": "t.json"}}),
    ]
    with pytest.raises(ValueError, match="neither a dataset_name nor a train_file"):
        hf.default_load_dataset({})


def test_columns_that_the_model_does_not_take_are_left_out() -> None:
    class Dataset:
        column_names = ("text", "words", "label", "idx")
        format = {"type": "torch"}  # noqa: RUF012

        def set_format(self, **given: Any) -> None:
            self.given = given

    class Model(torch.nn.Module):
        def forward(self, words: Any, mask: Any = None) -> None: ...

    for model in (Model(), torch.nn.Sequential()):
        if not isinstance(model, Model):
            model.module = Model()  # a wrapper, such as DistributedDataParallel
        dataset = Dataset()
        hf.remove_unused_columns(model, dataset)
        assert dataset.given == {"type": "torch", "columns": ["words", "label"]}


def test_a_missing_package_is_one_line_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"needs transformers, .*: pip install transformers$"):
        hf.build_using_auto({}, {}, "base", {})


# -- utils -------------------------------------------------------------------------------------------------------------


def test_arrays_are_stacked_and_padded() -> None:
    made = utils.expand_like([np.ones((2, 3)), np.full((1, 2), 4.0)])
    assert made.tolist() == [[1, 1, 1], [1, 1, 1], [4, 4, -100]]
    assert utils.expand_like([np.arange(2), np.arange(1)]).tolist() == [0, 1, 0]
    assert utils.expand_like([np.ones((1, 1, 2))], fill=0.5).shape == (1, 1, 2)


def test_lists_and_tensors_become_arrays() -> None:
    array = np.ones(2)
    assert utils.numpify(array) is array
    assert utils.numpify([1, 2]).tolist() == utils.numpify(torch.tensor([1, 2])).tolist() == [1, 2]
    with pytest.raises(TypeError, match="got str"):
        utils.numpify("x")  # type: ignore[arg-type]


@pytest.mark.parametrize(("length", "steps"), [({"batches": 50}, 50), ({"records": 100}, 12), ({"epochs": 3}, 3 * 6)])
def test_the_length_of_a_run_is_counted_in_batches(length: dict[str, int], steps: int) -> None:
    assert utils.compute_num_training_steps({"searcher": {"max_length": length}, "records_per_epoch": 50}, 8) == steps


@pytest.mark.parametrize("length", [{"epochs": 3}, 3, None])
def test_a_length_that_gives_no_number_of_batches_is_an_error(length: Any) -> None:
    with pytest.raises(ValueError, match="num_training_steps"):
        utils.compute_num_training_steps({"searcher": {"max_length": length}}, 8)


def test_keys_are_attributes() -> None:
    found = utils.AttrDict({"a": {"b": 1}}, c=2)
    found.d = 3
    assert (found.a.b, found["c"], found.d, found["d"]) == (1, 2, 3, 3)
    assert not hasattr(found, "e")
    del found.d
    with pytest.raises(AttributeError, match="no 'd' among a, c"):
        del found.d


def test_a_file_is_downloaded_once(tmp_path: Path) -> None:
    source = tmp_path / "words.txt"
    source.write_text("one")
    path = utils.download_url(str(tmp_path / "data"), source.as_uri())
    assert path == str(tmp_path / "data/words.txt") and Path(path).read_text() == "one"
    source.unlink()
    assert utils.download_url(str(tmp_path / "data"), source.as_uri()) == path


def test_a_download_that_fails_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        utils.download_url(str(tmp_path / "data"), (tmp_path / "missing").as_uri())
    assert not (tmp_path / "data/missing").exists()


@pytest.mark.parametrize("url", ["https://host/data/..", "https://host/", "https://host", "https://host/a/."])
def test_a_url_that_names_no_file_writes_nothing(url: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not end with the name of a file"):
        utils.download_url(str(tmp_path / "data"), url)
    assert list(tmp_path.iterdir()) == []
