"""Small names outside of the trial API do what Determined's did, and refuse with what to do instead."""

from __future__ import annotations

import datetime
import enum
import logging
import random
import re
import sys
import types
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trial_runtime
from trial_runtime import pytorch, util
from trial_runtime.common import check, set_logger
from trial_runtime.errors import InvalidExperimentException, NotProvidedError

theirs: Any = pytest.importorskip("determined.util")


class Blob:
    """A blob of which some downloads fail."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)

    def download_as_bytes(self) -> bytes:
        if self.failures:
            raise self.failures.pop(0)
        return b"content"

    download_as_string = download_as_bytes


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Have google-cloud-storage without a cloud, and no pauses; the pauses that would have been."""
    storage = types.ModuleType("google.cloud.storage")
    storage.Blob = Blob  # type: ignore[attr-defined]
    cloud = types.ModuleType("google.cloud")
    cloud.storage = storage  # type: ignore[attr-defined]
    for name, module in {"google.cloud": cloud, "google.cloud.storage": storage}.items():
        monkeypatch.setitem(sys.modules, name, module)
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    return slept


@pytest.mark.parametrize("package", [util, theirs], ids=["trial_runtime", "determined"])
def test_a_download_is_tried_again_after_growing_pauses_and_draws_no_random_numbers(
    package: Any, pauses: list[float]
) -> None:
    random.seed(3)
    expected = random.random()
    random.seed(3)
    blob = Blob(*[OSError("lost")] * 7)
    assert package.download_gcs_blob_with_backoff(blob, max_backoff=20) == b"content"
    assert random.random() == expected
    assert [int(pause) for pause in pauses] == [1, 2, 4, 8, 16, 20, 20]


@pytest.mark.parametrize("package", [util, theirs], ids=["trial_runtime", "determined"])
def test_a_download_gives_up_after_the_last_try(package: Any, pauses: list[float]) -> None:
    with pytest.raises(Exception, match=r"^Max retries exceeded for downloading blob\.$"):
        package.download_gcs_blob_with_backoff(Blob(*[OSError("lost")] * 9), n_retries=2)
    assert len(pauses) == 2


@pytest.mark.parametrize("package", [util, theirs], ids=["trial_runtime", "determined"])
@pytest.mark.usefixtures("pauses")
def test_a_download_takes_blobs_only(package: Any) -> None:
    with pytest.raises(Exception, match=r"^Called download_gcs_blob_with_backoff with object of type str$"):
        package.download_gcs_blob_with_backoff("gs://bucket/name")


def test_a_download_that_cannot_succeed_fails_at_once(pauses: list[float]) -> None:
    class NotFoundError(Exception):
        code = 404

    with pytest.raises(NotFoundError):
        util.download_gcs_blob_with_backoff(Blob(NotFoundError()))
    assert pauses == []


def test_without_its_package_a_download_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud", None)
    with pytest.raises(ModuleNotFoundError, match="pip install google-cloud-storage"):
        util.download_gcs_blob_with_backoff(Blob())


class Color(enum.Enum):
    RED = 1


class WithJson:
    def __json__(self) -> str:
        return "own"


VALUES = [
    0, 1.5, True, None, "text", float("nan"), float("inf"), -float("inf"), np.int64(4), np.float32(0.5),
    np.float64("nan"), np.array([[1.0, np.inf], [2.0, 3.0]]), np.array(7), b"bytes", [1, (2, 3)],
    {"a": {"b": np.int8(1)}}, Color.RED, datetime.datetime(2020, 1, 2, 3, 4, 5), uuid.UUID(int=5), WithJson(),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_are_written_as_json_as_determined_writes_them(value: Any) -> None:
    assert util.json_encode({"value": value}, indent="\t", sort_keys=True) == theirs.json_encode(
        {"value": value}, indent="\t", sort_keys=True
    )


def test_what_has_no_form_in_json_is_a_type_error() -> None:
    for package in (util, theirs):
        with pytest.raises(TypeError, match=r"Unserializable object .* of type"):
            package.json_encode([object()])


@pytest.mark.parametrize(
    "value", [*VALUES, np.bool_(True), np.array(True), torch.tensor(1.0), "1"], ids=lambda value: type(value).__name__
)
def test_the_same_values_are_numerical_scalars(value: Any) -> None:
    assert util.is_numerical_scalar(value) == theirs.is_numerical_scalar(value)


@pytest.mark.parametrize("value", [0.0, 1.23456789, -1234.56789, 98765.4321, 1e-7, 3.0, float("inf"), 12345678.9])
def test_numbers_are_rounded_alike(value: float) -> None:
    assert util.humanize_float(value) == theirs.humanize_float(value)


def test_dicts_are_merged_alike_and_left_as_they_were() -> None:
    base, source = {"a": {"b": 1, "c": [1]}, "d": 2}, {"a": {"b": 3}, "d": {"e": 4}, "f": 5}
    with pytest.raises(TypeError):
        theirs.merge_dicts(base, source)  # a dict into a number
    with pytest.raises(TypeError):
        util.merge_dicts(base, source)
    del source["d"]
    assert util.merge_dicts(base, source) == theirs.merge_dicts(base, source)
    assert base == {"a": {"b": 1, "c": [1]}, "d": 2}


@pytest.mark.parametrize("items", [[], [1], [3, 1, 3, 2, 1, 3], ["a", "b", "a"]], ids=repr)
def test_duplicates_are_the_same(items: list[Any]) -> None:
    assert util.filter_duplicates(items) == theirs.filter_duplicates(items)


def example(self: Any, batch: Any, epoch_idx: int = 0, *args: Any, key: int = 1, **kwargs: Any) -> None:
    del self, batch, epoch_idx, args, key, kwargs


@pytest.mark.parametrize(("name", "position"), [("batch", None), ("key", None), ("x", None), ("x", 2), ("x", 3)])
def test_parameters_are_found_alike(name: str, position: int | None) -> None:
    assert util.has_param(example, name, position) == theirs.has_param(example, name, position)


def test_methods_are_found_alike() -> None:
    class Base:
        value = 3

        def method(self) -> None: ...

    class Derived(Base):
        def method(self) -> None: ...

    for thing in (Base(), Derived()):
        for name in ("method", "value", "missing"):
            assert (util.get_member_func(thing, name) is None) == (theirs.get_member_func(thing, name) is None)
        for method in (thing.method, thing.value):
            assert util.is_overridden(method, Base) == theirs.is_overridden(method, Base)


@pytest.mark.parametrize("kind", ["nothing", "link", "file", "folder"])
def test_a_link_takes_the_place_of_anything(kind: str, tmp_path: Path) -> None:
    for package in (util, theirs):
        target, link = tmp_path / package.__name__ / "target", tmp_path / package.__name__ / "link"
        link.parent.mkdir()
        if kind == "link":
            link.symlink_to(tmp_path)
        elif kind == "file":
            link.write_text("x")
        elif kind == "folder":
            (link / "inner").mkdir(parents=True)
        package.force_create_symlink(str(target), str(link))
        assert link.is_symlink() and link.resolve() == target.resolve() and target.is_dir()


@pytest.mark.parametrize(("size", "slots"), [(64, 4), (65, 4), (8, 0), (3, 3)])
def test_batch_sizes_are_the_same(size: int, slots: int) -> None:
    hparams = {"global_batch_size": size}
    assert util.calculate_batch_sizes(hparams, slots, "X") == theirs.calculate_batch_sizes(hparams, slots, "X")


@pytest.mark.parametrize("hparams", [{}, {"global_batch_size": 1.0}, {"global_batch_size": 3}], ids=repr)
def test_wrong_batch_sizes_are_the_same_errors(hparams: dict[str, Any]) -> None:
    from determined.errors import InvalidExperimentException as Theirs

    with pytest.raises(Theirs, match="global_batch_size"):
        theirs.calculate_batch_sizes(hparams, 4, "X")
    with pytest.raises(InvalidExperimentException, match="global_batch_size"):
        util.calculate_batch_sizes(hparams, 4, "X")


CHECKS: dict[str, list[tuple[Any, ...]]] = {
    "true": [(True,), (0,)],
    "false": [(False,), ("x",)],
    "is_none": [(None,), (1,)],
    "is_not_none": [(1,), (None,)],
    "eq": [(1, 1), (1, 2)],
    "not_eq": [(1, 2), (1, 1)],
    "gt": [(2, 1), (1, 1)],
    "gt_eq": [(1, 1), (0, 1)],
    "lt": [(1, 2), (1, 1)],
    "lt_eq": [(1, 1), (2, 1)],
    "equal_lengths": [([1], [2]), ([1], [])],
    "len_eq": [([1], 1), ([1], 2)],
    "is_in": [(1, [1]), (2, [1]), (2, {1: 2})],
    "not_in": [(2, [1]), (1, [1])],
    "is_type": [(1, int), (True, int)],
    "is_instance": [(True, int), (1, (str, float))],
    "is_not_instance": [(1, str), (1, int)],
    "is_subclass": [(bool, int), (str, int)],
}
SPELLINGS = {
    "is_none": "none", "is_not_none": "not_none", "equal_lengths": "eq_len", "len_eq": "len", "is_in": "in",
    "is_type": "type", "is_instance": "isinstance", "is_not_instance": "not_isinstance", "is_subclass": "issubclass",
}  # fmt: skip


def outcome(function: Callable[..., Any], *args: Any) -> tuple[str, str]:
    try:
        return "", str(function(*args))
    except Exception as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_passes_and_fails_as_determineds_does(name: str) -> None:
    import determined.common.check as their_check

    other = f"check_{SPELLINGS.get(name, name)}"
    for args in CHECKS[name]:
        for given in (args, (*args, "the reason")):
            expected = outcome(getattr(their_check, name), *given)
            assert outcome(getattr(check, name), *given) == expected
            assert outcome(getattr(check, other), *given) == expected
    assert len({outcome(getattr(check, name), *args) for args in CHECKS[name]}) > 1


def test_every_check_is_among_those() -> None:
    import determined.common.check as their_check

    public = {name for name in vars(their_check) if name[0].islower()}
    assert public == set(CHECKS) | {f"check_{SPELLINGS.get(name, name)}" for name in CHECKS}


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield root
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.mark.parametrize(("debug", "level"), [(True, logging.DEBUG), (False, logging.INFO)])
def test_the_logger_is_set_as_determined_sets_it(debug: bool, level: int, root_logger: logging.Logger) -> None:
    import determined.common

    for package in (determined.common.set_logger, set_logger):
        root_logger.handlers.clear()
        package(debug)
        (handler,) = root_logger.handlers
        assert (root_logger.level, isinstance(handler, logging.StreamHandler)) == (level, True)
        assert handler.formatter is not None and handler.formatter._fmt == trial_runtime.LOG_FORMAT


def test_search_spaces_are_those_of_a_config() -> None:
    from trial_runtime.train.config import hparams
    from trial_runtime.train.config.errors import Problems

    spaces = {
        "a": trial_runtime.Constant(3),
        "b": trial_runtime.Integer(1, 4),
        "c": trial_runtime.Double(0.0, 1.0),
        "d": trial_runtime.Categorical(["x", "y"]),
        "e": trial_runtime.Log(-4, -2),
    }
    assert spaces["e"] == {"type": "log", "minval": -4, "maxval": -2, "base": 10}
    picks = {"b": 2, "c": 0.5, "d": "y", "e": 0.001}
    problems = Problems()
    values = hparams.resolve(spaces, picks, problems)
    problems.raise_any("config")
    assert values == {"a": 3, "b": 2, "c": 0.5, "d": "y", "e": 0.001}


def test_parameters_are_drawn_again_in_the_order_of_the_modules() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Sequential(torch.nn.Linear(4, 2)))
    torch.manual_seed(5)
    fresh = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Sequential(torch.nn.Linear(4, 2)))
    torch.manual_seed(5)
    pytorch.reset_parameters(model)
    for one, other in zip(model.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("reducer", list(pytorch.Reducer))
def test_values_are_reduced_as_determined_reduces_them(reducer: pytorch.Reducer) -> None:
    import determined.pytorch as their_pytorch

    values, their_reducer = np.array([1.0, 4.0, 2.0]), their_pytorch.Reducer[reducer.name]
    for weights in (None, [1, 2, 3]):
        expected = their_pytorch._simple_reduce_metrics(their_reducer, values, weights)
        assert pytorch._simple_reduce_metrics(reducer, values, weights) == expected
        assert pytorch._reduce_metrics(reducer=reducer, metrics=values, num_batches=weights) == expected
    with pytest.raises(RuntimeError, match="Lengths of metrics and num_batches are not equal: 3 != 2"):
        pytorch._simple_reduce_metrics(pytorch.Reducer.AVG, values, [1, 2])


def test_a_simple_reducer_reduces_as_determineds_does() -> None:
    import determined.pytorch as their_pytorch

    results = []
    for package in (pytorch, their_pytorch):
        reducers = [package._SimpleReducer(lambda values: values) for _ in range(2)]
        for index in range(5):
            reducers[index % 2].update(index)
        results.append(reducers[0].cross_slot_reduce([reducer.per_slot_reduce() for reducer in reducers]))
    assert results[0] == results[1] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["AvgMetricReducer", "SumMetricReducer", "MaxMetricReducer", "MinMetricReducer"])
def test_a_reducer_of_no_release_is_refused_with_what_to_use(name: str) -> None:
    message = f"determined.pytorch.{name} is not provided: use Reducer.AVG, SUM, MAX or MIN"
    with pytest.raises(NotProvidedError, match=re.escape(message)):
        getattr(pytorch, name)()
