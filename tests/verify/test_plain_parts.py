"""The parts of ``ds-verify --plain``: order of the data, names of weights, shared loaders, files that are written."""

from __future__ import annotations

import copy
import io
import json
import logging
import os
import pickle
import subprocess
import sys
import types
import uuid
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from distributed import run_ranks
from ds_verify.compare import compare
from ds_verify.job import Job, _Running
from ds_verify.plain import worker
from ds_verify.plain.cli import misplaced_options, python_path_in
from ds_verify.plain.data_order import can_share, one_order, share
from ds_verify.plain.evaluations import Evaluations
from ds_verify.plain.file_isolation import module_outside, open_folders
from ds_verify.plain.loaded_files import LoadedFiles
from ds_verify.plain.printed_lines import printed_lines, printed_otherwise
from ds_verify.plain.process_group import ProcessGroup
from ds_verify.plain.reference import RankGroup, average_gradients
from ds_verify.plain.report import largest_move
from ds_verify.plain.run_results import append_resumed, saved_by_several
from ds_verify.plain.runs import PlainJob, ScriptRuns, _share_files
from ds_verify.plain.saved_files import is_pickled_storage, name_of, values_in
from ds_verify.plain.script_start import folder_of_imports, module_of, started_script
from ds_verify.plain.step_options import StepOptions
from ds_verify.plain.training_loaders import Loaders, trains
from ds_verify.plain.weights import ModuleRegistry, norm
from ds_verify.record import Key, Record
from ds_verify.runs import TrainingRun
from ds_verify.tolerance import Limits
from ds_verify.working_copies import working_copy
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

NUMBERS = TensorDataset(torch.arange(10))


def batches(loader: DataLoader[Any]) -> list[list[int]]:
    return [batch.tolist() for (batch,) in loader]


class TestOrder:
    """Both sides read the data in one order, whichever sampler draws it."""

    def test_shards_of_all_ranks_are_the_batches_of_one(self) -> None:
        with one_order():
            whole = DataLoader(NUMBERS, batch_size=4, shuffle=True)
            samplers: list[DistributedSampler[Any]] = [DistributedSampler(NUMBERS, 2, rank) for rank in (0, 1)]
            shards = [DataLoader(NUMBERS, batch_size=2, sampler=sampler) for sampler in samplers]
            for epoch in (3, 4):
                for sampler in samplers:
                    sampler.set_epoch(epoch)
                parts = zip(*map(batches, shards), strict=True)
                assert [sorted(one + two) for one, two in parts] == [sorted(batch) for batch in batches(whole)]

    def test_a_sampler_whose_epoch_is_not_set_repeats_its_order(self) -> None:
        with one_order():
            whole = DataLoader(NUMBERS, batch_size=10, shuffle=True)
            shard = DataLoader(NUMBERS, batch_size=10, sampler=DistributedSampler(NUMBERS, 1, 0))
            first = batches(whole)
            assert batches(shard) == first == batches(shard)
            assert batches(whole) != first

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_a_shared_loader_reads_what_a_sampler_for_ranks_reads(self, shuffle: bool) -> None:
        with one_order():
            for rank in (0, 1):
                loader = DataLoader(NUMBERS, batch_size=2, shuffle=shuffle)
                assert can_share(loader)
                share(loader, 2, rank)
                sampler: DistributedSampler[Any] = DistributedSampler(NUMBERS, 2, rank, shuffle=shuffle)
                expected = DataLoader(NUMBERS, batch_size=2, sampler=sampler)
                assert len(loader) == len(expected) == 3
                for epoch in (0, 1):
                    sampler.set_epoch(epoch)
                    assert batches(loader) == batches(expected)

    def test_ranks_share_what_a_sampler_of_another_kind_draws(self) -> None:
        def weighted() -> DataLoader[Any]:
            torch.manual_seed(0)
            sampler = WeightedRandomSampler([1.0] * 10, 5)
            return DataLoader(NUMBERS, batch_size=2, sampler=sampler)

        drawn = [number for batch in batches(weighted()) for number in batch]
        shares = []
        for rank in (0, 1):
            loader = weighted()
            assert can_share(loader)
            share(loader, 2, rank)
            assert len(loader) == 2
            shares.append([number for batch in batches(loader) for number in batch])
        assert shares == [drawn[0::2], [*drawn[1::2], drawn[0]]]

    def test_ranks_share_the_batches_of_a_batch_sampler(self) -> None:
        loader = DataLoader(NUMBERS, batch_sampler=[[0, 1], [2], [3, 4]])
        assert can_share(loader)
        share(loader, 2, 1)
        assert batches(loader) == [[2], [0, 1]]

    def test_a_stream_cannot_be_shared(self) -> None:
        class Stream(IterableDataset[int]):
            def __iter__(self) -> Any:
                return iter(range(3))

        assert not can_share(DataLoader(Stream()))

    @pytest.mark.parametrize("grouped", [False, True])
    def test_a_share_is_taken_back(self, grouped: bool) -> None:
        groups: Any = [[0, 1], [2, 3], [4]]
        loader = DataLoader(NUMBERS, batch_sampler=groups) if grouped else DataLoader(NUMBERS, batch_size=2)
        whole = [batch[0].tolist() for batch in loader]
        take_back = share(loader, ranks=2, rank=1)
        assert [batch[0].tolist() for batch in loader] != whole
        take_back()
        assert [batch[0].tolist() for batch in loader] == whole

    def test_a_share_keeps_what_the_sampler_of_a_program_has(self) -> None:
        class Curriculum(SequentialSampler):
            epoch = 0

            def set_epoch(self, epoch: int) -> None:
                self.epoch = epoch

        loader = DataLoader(NUMBERS, batch_size=2, sampler=Curriculum(NUMBERS))
        share(loader, ranks=2, rank=1)
        sampler: Any = loader.sampler
        sampler.set_epoch(3)
        assert sampler.epoch == 3


class TestTrainingLoaders:
    def test_a_loader_is_reported_before_it_is_read(self) -> None:
        begun: list[int | None] = []
        loaders = Loaders(str(Path(__file__).parent), on_begin=begun.append)
        with loaders.watched():
            first, _, third = (DataLoader(NUMBERS, batch_size=2) for _ in range(3))
            iter(third)
            list(first)
        assert begun == [2, 0] and len(loaders.read_sites) == 1

    def test_a_loader_trains_when_a_backward_follows_its_batches(self) -> None:
        loaders = Loaders(str(Path(__file__).parent))
        with loaders.watched():
            train, validate, once = (DataLoader(NUMBERS, batch_size=2) for _ in range(3))
            next(iter(once))
            for _ in range(2):
                for _ in train:
                    loaders.trained()
                for _ in validate:
                    pass
        assert [trained for _, trained in loaders.training()] == [True, False, False]
        sites = [site for site, _ in loaders.training()]
        assert all(site.startswith("test_plain_parts.py:") for site in sites)

    def test_passes_over_the_data_of_workers_that_stay_are_counted(self) -> None:
        """Where none is a second one, the verdict has a note: the order of later passes was not compared."""
        loaders = Loaders(str(Path(__file__).parent))
        with loaders.watched():
            loader = DataLoader(NUMBERS, batch_size=5, num_workers=1, persistent_workers=True)
            for expected in (1, 2):
                for _ in loader:
                    loaders.trained()
                assert loaders.passes == expected

    def test_a_loader_whose_one_batch_is_the_data_of_another_does_not_train(self) -> None:
        loaders = Loaders(str(Path(__file__).parent))
        with loaders.watched():
            (numbers,) = next(iter(DataLoader(NUMBERS, batch_size=5)))
            for _ in DataLoader(TensorDataset(numbers), batch_size=2):
                loaders.trained()
        assert [trained for _, trained in loaders.training()] == [False, True]

    def test_a_batch_that_is_read_ahead_of_the_first_step_shows_no_training(self) -> None:
        loaders = Loaders(str(Path(__file__).parent))
        with loaders.watched():
            train, test = DataLoader(NUMBERS, batch_size=1), DataLoader(NUMBERS, batch_size=5)
            next(iter(train)), next(iter(test))  # as an object that prefetches batches does when it is made
            for _ in range(2):
                for _ in train:
                    loaders.trained()
                list(test)
        assert [trained for _, trained in loaders.training()] == [True, False]

    def test_a_loader_whose_first_batches_alone_are_read_ahead_of_training_does_not_train(self) -> None:
        """StarGAN v2 draws two batches to look at; on 2 ranks its reference was another one."""
        loaders = Loaders(str(Path(__file__).parent))
        with loaders.watched():
            train, shown = DataLoader(NUMBERS, batch_size=1), DataLoader(NUMBERS, batch_size=5)
            batches = iter(shown)
            next(batches), next(batches)
            for _ in train:
                loaders.trained()
        assert [trained for _, trained in loaders.training()] == [True, False]

    @pytest.mark.parametrize("evaluates", ["without gradients", "in eval()"])
    def test_a_loader_that_evaluations_draw_from_between_steps_does_not_train(self, evaluates: str) -> None:
        loaders, model = Loaders(str(Path(__file__).parent)), torch.nn.Linear(1, 1)
        with loaders.watched():
            train, test = DataLoader(NUMBERS, batch_size=1), DataLoader(NUMBERS, batch_size=5)
            for (batch,) in train:
                model.train()(batch[:, None].float())
                loaders.trained()
                with torch.set_grad_enabled(evaluates == "in eval()"):
                    (held_out,) = next(iter(test))
                    model.eval()(held_out[:, None].float())
        assert [trained for _, trained in loaders.training()] == [True, False]

    @pytest.mark.parametrize("steps", [2, 6])
    def test_a_loader_that_trains_may_be_evaluated_on_after_each_epoch(self, steps: int) -> None:
        """MixMatch counts the accuracy on its labelled data; on 2 ranks its reference was another one."""
        loaders, model = Loaders(str(Path(__file__).parent)), torch.nn.Linear(1, 1)
        with loaders.watched():
            train = DataLoader(NUMBERS, batch_size=2)
            for step in range(steps):
                if step % 2 == 0:
                    with torch.no_grad():
                        for _ in train:
                            model.eval()(torch.ones(1, 1))
                    batches = iter(train)
                next(batches)
                model.train()(torch.ones(1, 1))
                loaders.trained()
        assert [trained for _, trained in loaders.training()] == [True]

    def test_loaders_that_were_not_read_or_only_once_are_known(self) -> None:
        """StarGAN v2 reads a batch to show ahead of its first step: a run of few steps took that for training."""
        loaders = Loaders(str(Path(__file__).parent))
        with loaders.watched():
            first = DataLoader(NUMBERS)
            second = DataLoader(NUMBERS)
            DataLoader(NUMBERS)
            next(iter(second))
            for _ in range(2):
                next(iter(first))
                loaders.trained()
        assert [line.split(":")[0] for line in (*loaders.guessed, *loaders.unread)] == [Path(__file__).name] * 2

    def test_a_loader_that_is_made_for_one_batch_of_a_task_is_not_shared(self) -> None:
        """A share of it would be another task; Relation Net's original did not train on 2 ranks."""
        loaders = Loaders(str(Path(__file__).parent))
        with loaders.watched():
            for _ in range(3):
                next(iter(DataLoader(NUMBERS, batch_size=10)))
                loaders.trained()
            for _ in range(3):
                for _ in DataLoader(NUMBERS, batch_size=10):
                    loaders.trained()
        assert [trained for _, trained in loaders.training()] == [False] * 3 + [True] * 3

    def test_a_loader_of_a_script_that_trains_in_eval_trains(self) -> None:
        loaders, model = Loaders(str(Path(__file__).parent)), torch.nn.Linear(1, 1).eval()
        with loaders.watched():
            for (batch,) in DataLoader(NUMBERS, batch_size=1):
                model(batch[:, None].float())
                loaders.trained()
        assert [trained for _, trained in loaders.training()] == [True]

    def test_a_loader_whose_first_batch_ends_the_run_trains_like_those_of_other_calls_of_its_function(self) -> None:
        loaders = Loaders(str(Path(__file__).parent))

        def make() -> DataLoader[Any]:
            return DataLoader(NUMBERS, batch_size=2)

        with loaders.watched():
            for _ in make():
                loaders.trained()
            for _ in DataLoader(NUMBERS, batch_size=2):
                pass
            next(iter(make()))  # in the second round of active learning
        assert [trained for _, trained in loaders.training()] == [True, False, True]

    def test_a_loader_whose_first_batch_ends_the_run_trains_like_the_others_of_its_site(self) -> None:
        loaders = Loaders(str(Path(__file__).parent))
        with loaders.watched():
            for last in (False, True):  # as the clients of a federated training
                for _ in DataLoader(NUMBERS, batch_size=2):
                    if last:
                        break
                    loaders.trained()
            next(iter(DataLoader(NUMBERS, batch_size=2)))
        assert [trained for _, trained in loaders.training()] == [True, True, False]

    def test_a_later_loader_is_known_by_where_it_is_made(self) -> None:
        known = [("train.py:3", True), ("train.py:9", False), ("train.py:3", True)]
        assert trains(0, "train.py:3", known) and not trains(1, "train.py:9", known)
        assert trains(7, "train.py:3", known) and not trains(7, "train.py:9", known)
        phases = [("train.py:3", True), ("train.py:3", False)]
        assert [trains(n, "train.py:3", phases * 2, n) for n in range(7)] == [True, False] * 3 + [True]
        assert not trains(0, "other.py:1", known)

    def test_a_function_that_makes_several_loaders_is_known_by_its_calls(self) -> None:
        known = [("data.py:3 < train.py:8", True), ("data.py:3 < train.py:9", False)]
        assert trains(5, "data.py:3 < train.py:8", known) and not trains(6, "data.py:3 < train.py:9", known)
        known = [("data.py:3 < train.py:8 < run.py:1", True), ("data.py:3 < train.py:9 < run.py:1", False)]
        assert trains(5, "data.py:3 < train.py:8 < run.py:2", known)
        assert not trains(5, "data.py:3 < other.py:1", known)


class TestWeights:
    def test_names_do_not_depend_on_what_wraps_the_modules(self) -> None:
        def build(wrapped: bool) -> list[str]:
            registry = ModuleRegistry()
            with registry.watched():
                net, other = torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
                average = copy.deepcopy(other)
                scale = torch.nn.Parameter(torch.ones(()))
                torch.optim.SGD([*net.parameters(), scale], lr=1.0)
                if wrapped:
                    torch.nn.ModuleList([net, torch.nn.DataParallel(other), average])
            return list(registry.tensors())

        names = build(wrapped=False)
        assert names == build(wrapped=True)
        assert {"Linear.weight", "Sequential.1.running_mean", "Sequential#2.0.bias"} < {*names}
        assert "parameter 1 of no module" in names

    def test_parameters_beside_those_of_an_optimizer_may_be_trained_by_hand(self) -> None:
        registry = ModuleRegistry()
        with registry.watched():
            model, other = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)), torch.nn.Linear(1, 1)
            torch.optim.SGD(model[1].parameters(), lr=0.1)
        trained = registry.trained()
        assert {id(p) for p in trained} == {id(p) for p in (*model.parameters(), *other.parameters())}
        assert trained[0] is model[1].weight and "Linear.weight" not in registry.optimized_names()

    def test_what_is_optimized_for_one_batch_is_of_its_rank(self) -> None:
        registry = ModuleRegistry()
        with registry.watched():
            model, scale = torch.nn.Linear(2, 2), torch.nn.Parameter(torch.ones(()))
            torch.optim.SGD([scale], lr=0.1)
            registry.has_batches = lambda: True
            torch.optim.SGD(model.parameters(), lr=0.1)
            torch.optim.SGD([torch.zeros(4, 2, requires_grad=True)], lr=0.1)
        assert {id(p) for p in registry.trained()} == {id(p) for p in (scale, *model.parameters())}
        assert registry.optimized_names() == ["Linear.weight", "Linear.bias", "parameter 1 of no module"]
        assert "parameter 2 of no module" in registry.tensors()

    def test_a_module_may_give_its_parameters_in_a_list(self) -> None:
        class Listed(torch.nn.Linear):
            def parameters(self, recurse: bool = True) -> Any:
                return list(super().parameters(recurse))

        registry, x = ModuleRegistry(), torch.ones(1, 2)
        with registry.watched():
            model = Listed(2, 2)
        before = model.weight.detach().clone()
        with worker.nudged(registry):
            model(x)
        assert not torch.equal(model.weight, before) and "Listed.weight" in registry.tensors()

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_weights_are_not_moved_while_a_graph_is_traced(self) -> None:
        registry, x = ModuleRegistry(), torch.ones(1, 2)
        with registry.watched():
            model = torch.nn.Linear(2, 2)
        before = model.weight.detach().clone()
        with worker.nudged(registry):
            torch.jit.trace(model, x)
            assert torch.equal(model.weight, before)
            model(x)
        assert not torch.equal(model.weight, before)

    def test_a_list_inside_a_model_is_a_part_of_it(self) -> None:
        class Net(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = torch.nn.ModuleList([torch.nn.ModuleList([torch.nn.Linear(1, 1)])])

        registry = ModuleRegistry()
        with registry.watched():
            Net()
        assert list(registry.tensors()) == ["Net.layers.0.0.weight", "Net.layers.0.0.bias"]

    def test_a_wrapper_inside_a_model_changes_no_names(self) -> None:
        registry = ModuleRegistry()
        with registry.watched():
            torch.nn.Sequential(torch.nn.DataParallel(torch.nn.Linear(1, 1)))
        assert list(registry.tensors()) == ["Sequential.0.weight", "Sequential.0.bias"]


class TestWhatStepsNeedNotShow:
    """What differs in no loss and no weight of the observed steps is recorded by value."""

    def test_evaluations_are_the_forward_passes_without_gradients(self) -> None:
        registry = ModuleRegistry()
        with registry.watched():
            net = torch.nn.Sequential(torch.nn.Linear(2, 2))
        evaluations, record = Evaluations(registry), Record()
        with evaluations.watched():
            net(torch.ones(1, 2))
            with torch.no_grad():
                total = sum(float(net(torch.ones(1, 2)).norm()) ** 2 for _ in range(3))
            net.eval()(torch.ones(1, 2))
        evaluations.add_to(record, 4)
        found = {key.name: float(value) for key, value in record.values.items()}
        with evaluations.watched():
            net(torch.ones(1, 2))
        evaluations.add_to(record, 4)  # as where a backward pass that no step uses has ended the step before
        assert {key.step for key in record.values} == {4, 5}
        assert found.pop("calls of Sequential in evaluations") == 4
        assert found.pop("outputs of Sequential in evaluations") == pytest.approx((total * 4 / 3) ** 0.5)
        assert not found

    def test_what_is_saved_is_its_keys_and_what_lies_under_them(self) -> None:
        net = torch.nn.Linear(2, 1)
        saved = {"model": net.state_dict(), "epoch": 3, "args": {"lr": 0.1, "local_rank": 0}, "note": "x", "all": [net]}
        found = dict(values_in(saved))
        assert list(found) == [
            "model.weight", "model.bias", "epoch", "args.lr", "note", "all[0].weight", "all[0].bias"
        ]  # fmt: skip
        assert found["epoch"] == 3 and found["args.lr"] == 0.1
        turned = dict(values_in({"w": net.weight.detach().flip(1)}))["w"]
        assert turned[0] == pytest.approx(found["model.weight"][0]) and turned[1] != found["model.weight"][1]
        assert dict(values_in({"w": net.weight.half()}))["w"][2] == 2
        assert dict(values_in({"w": torch.tensor([3 + 4j])}))["w"][0] == norm([torch.tensor([3 + 4j])]) == 5
        assert name_of(Path("out/net_12_0.93.pt")) == "net_#_#.#.pt"

    def test_a_file_that_a_uuid_names_is_the_same_in_each_run(self) -> None:
        names = {name_of(f"out/20261123-{drawn}.mdl") for drawn in (str(uuid.uuid4())[:8], uuid.uuid4(), "deadbeef")}
        assert len(names) == 1
        assert name_of("decoded_facade.pt") == "decoded_facade.pt"

    def test_a_tensor_that_is_pickled_is_not_saved(self) -> None:
        with mock.patch.object(torch, "save", wraps=torch.save) as save:
            pickle.dumps([torch.ones(2)])
        assert save.call_args_list
        assert all(is_pickled_storage(call.args[0]) for call in save.call_args_list)

    def test_a_saved_duration_is_no_difference(self) -> None:
        key = Key("saved", 3, "last.pt: seconds")
        original, control, converted = (Record({key: np.array(value)}) for value in (1.0, 1.2, 9.0))
        assert not compare(original, converted, Limits.measured(original, control, 1e-6))
        assert compare(original, converted, Limits.measured(original, original, 1e-6))

    def test_options_that_do_not_act_yet_are_recorded(self) -> None:
        net = torch.nn.Linear(2, 1)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, betas=(0.8, 0.9), weight_decay=1e-9)
        options, record = StepOptions(), Record()
        with options.watched():
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100)
            options.add_to(Record(), 0, 0)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 7.0)  # there are no gradients yet
            net(torch.ones(1, 2)).sum().backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=1e9)
            torch.nn.utils.clip_grad_value_(parameters=net.parameters(), clip_value=1e8)
            torch.nn.utils.clip_grad_norm_(net.parameters(), float("inf"))
            optimizer.step()
            options.add_optimizer(optimizer)
            schedule.step()
            options.add_to(record, 1, 0)
        assert {key.name: value.tolist() for key, value in record.values.items() if key.kind == "lr"} == {
            "steps of schedules": 1, "limits of clip_grad_norm_": [1e9], "limits of clip_grad_value_": [1e8],
            "learning rates": [0.1],
            "betas[0]": [0.8], "betas[1]": [0.9], "eps": [1e-8], "weight_decay": [1e-9],
            "amsgrad": [0], "maximize": [0], "decoupled_weight_decay": [1],
            "step_size of StepLR": [100], "gamma of StepLR": [0.1], "total steps of StepLR": [1],
        }  # fmt: skip

    def test_options_of_schedules_that_do_not_act_yet_are_recorded(self) -> None:
        optimizer, record, options = torch.optim.SGD([torch.zeros(1)], lr=0.1), Record(), StepOptions()
        with options.watched():
            torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=3).step(0.5)
            torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 7])
        options.add_to(record, 1, 0)
        found = {key.name: value.tolist() for key, value in record.values.items()}
        assert found["patience of ReduceLROnPlateau"] == [3] and found["mode 'min' of ReduceLROnPlateau"] == [1]
        assert (found["milestones[0] of MultiStepLR"], found["milestones[1] of MultiStepLR"]) == ([2], [7])
        assert options.unreached == ["MultiStepLR"]

    def test_an_option_below_the_floor_of_weights_is_another_one(self) -> None:
        """An eps of 1e-9 was the same as one of 1e-8."""
        one, other = (Record({Key("lr", 1, "eps"): np.array([value])}) for value in (1e-9, 1e-8))
        assert compare(one, other, Limits.measured(one, one, 1e-6))
        assert not compare(one, one, Limits.measured(one, one, 1e-6))

    def test_the_group_of_each_parameter_is_recorded(self) -> None:
        net, record = torch.nn.Linear(2, 1), Record()
        groups: list[dict[str, Any]] = [{"params": [net.weight]}, {"params": [net.bias], "weight_decay": 0.0}]
        options, optimizer = StepOptions(), torch.optim.SGD(groups, lr=0.1, weight_decay=0.5)
        for step in (1, 2):
            options.add_optimizer(optimizer, [["weight"], ["bias"]])
            options.add_to(record, step, 0)
        found = {(key.step, key.name): float(value) for key, value in record.values.items() if " of " in key.name}
        assert found == {(1, "weight_decay of weight"): 0.5, (1, "weight_decay of bias"): 0.0,
                         (1, "steps of schedules"): 0, (2, "steps of schedules"): 0}  # fmt: skip

    def test_clipping_before_the_average_shows_where_no_gradient_reaches_the_limit(self) -> None:
        parameter, record, options = torch.nn.Parameter(torch.zeros(2)), Record(), StepOptions()
        parameter.grad = torch.tensor([3.0, 4.0])
        with options.watched():
            torch.nn.utils.clip_grad_norm_([parameter], 100.0)
        options.add_to(record, 1, 0)
        key = Key("norm", 1, "1 gradients before clip_grad_norm_")
        assert record.values[key] == 5
        assert not compare(record, Record({other: value for other, value in record.values.items() if other != key}))

    def test_the_metric_of_a_schedule_is_recorded(self) -> None:
        optimizer, record, options = torch.optim.SGD([torch.zeros(1)], lr=0.1), Record(), StepOptions()
        with options.watched():
            torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer).step(metrics=torch.tensor(0.5))
        options.add_to(record, 1, 0)
        assert record.values[Key("validation", 1, "metrics of ReduceLROnPlateau")].tolist() == [0.5]


class TestResume:
    """A checkpoint in the middle, from which both sides are started again."""

    def test_a_run_that_was_stopped_with_the_original_is_no_error(self) -> None:
        training = TrainingRun("converted", figures={"steps": 3})
        append_resumed(training, TrainingRun("converted-resumed"))
        assert training.figures == {"steps": 3} and training.failure is None

    def test_ranks_without_a_process_group_resume_from_the_first_ones_files(self, tmp_path: Path) -> None:
        """A conversion saves no others; buffers of the original's other ranks were a difference."""
        for name in ("run", "run-rank1"):
            tmp_path.joinpath(name).mkdir()
            tmp_path.joinpath(name, "last.pt").write_text(name)
        job = PlainJob(
            name="run", context=str(tmp_path / "run"), kind="plain", target="train.py", args=[], info={}, ranks=2,
            threads=1, steps=2, is_parted=True,
        )  # fmt: skip
        _share_files(job)
        assert tmp_path.joinpath("run-rank1", "last.pt").read_text() == "run"


def test_a_printed_mean_that_is_another_one_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    with printed_lines(lines, Path(__file__).parent):
        print("epoch", 1, "loss 0.5000", sep=" ")
        print("to a file", file=io.StringIO())
        print("2.31 s\n")
        logging.getLogger(__name__).warning("in %s", Path(__file__).parent)
    assert lines.pop() == "in ."
    assert lines == ["epoch 1 loss 0.5000", "2.31 s"] and capsys.readouterr().out.startswith("epoch 1")
    again, longer = ["epoch 1 loss 0.5001", "2.48 s"], ["epoch 1 loss 0.5000", "9.99 s"]
    assert not printed_otherwise(lines, again, longer)
    halved = printed_otherwise(lines, again, ["epoch 1 loss 0.2500", "2.31 s"])
    assert halved == "'epoch 1 loss 0.5000' became 'epoch 1 loss 0.2500'"
    assert printed_otherwise(lines, again, ["2.31 s"]) == "'epoch 1 loss 0.5000' became '2.31 s'"
    assert printed_otherwise(lines, again, lines[:1]) == "2 lines became 1"
    assert not printed_otherwise(lines, ["seed 7"], ["seed 8"])


@pytest.mark.parametrize(
    ("before", "after"),
    [("Namespace(lr=0.1)", "Namespace(local_rank=-1, lr=0.1)"), ("{'lr': 0.1}", "{'lr': 0.1, 'local_rank': -1}")],
)
def test_the_argument_of_the_launcher_is_no_other_text(before: str, after: str) -> None:
    assert not printed_otherwise([before], [before], [after])


def test_a_printed_sum_over_ranks_in_place_of_their_mean_is_noted() -> None:
    """Text of several ranks was not compared where the original has them too."""
    runs = ScriptRuns.__new__(ScriptRuns)
    runs.notes = []
    for is_distributed in (False, True):
        before, after = (
            TrainingRun("run", figures={"steps": 1, "is_distributed": is_distributed, "printed": [line]})
            for line in ("accuracy 0.250", "accuracy 0.500")
        )
        runs._note_printed(2, before, before, after)
    (note,) = runs.notes
    assert note == "the conversion prints otherwise with 2 ranks: 'accuracy 0.250' became 'accuracy 0.500'"


def test_progress_that_is_being_written_is_no_step_back(tmp_path: Path) -> None:
    """The bar of a verification went back to the beginning of a run now and then."""
    running = _Running.__new__(_Running)
    running.job, running._records, running._seen = Job("run", "", "plain", "", [], {}), tmp_path, -1
    assert running._step() == 0
    (tmp_path / "run.rank0.progress").write_text("7")
    running._seen = running._step()
    (tmp_path / "run.rank0.progress").write_text("")
    assert running._step() == 7


def test_how_far_a_run_moves_its_weights_is_known() -> None:
    """At a rate of 1e-9 any step is the same."""
    values = {Key("initial", 0, "w"): [1.0, 2.0], Key("state", 3, "w"): [1.0, 2.25], Key("state", 3, "buffer"): [9.0]}
    record = Record({key: np.array(value) for key, value in values.items()})
    assert largest_move(TrainingRun("run", record, {"steps": 3, "optimized": ["w"]})) == 0.25
    assert largest_move(TrainingRun("run", Record(), {"steps": 3, "optimized": ["w"]})) == float("inf")


def test_of_a_long_line_what_differs_is_shown() -> None:
    before, after = "x" * 300 + "a" + "y" * 300, "x" * 300 + "b" + "y" * 300
    found = printed_otherwise([before], [before], [after])
    assert len(found) < 200 and "xa" in found and "xb" in found


def test_a_file_that_several_ranks_save_is_found(tmp_path: Path) -> None:
    """A conversion whose torch.save() had lost its condition was the same."""
    records = [tmp_path / f"run.rank{rank}.values" for rank in range(2)]
    for rank, path in enumerate(records):
        path.with_suffix(".json").write_text(json.dumps({"paths": [f"/run/own{rank}.pt", "/run/last.pt"]}))
    assert saved_by_several(records) == "/run/last.pt"
    assert saved_by_several(records[:1]) == ""


def test_a_file_in_the_copies_of_the_ranks_of_a_script_that_starts_them_is_one_of_several(tmp_path: Path) -> None:
    """ImageNet's example saves on each rank of torchrun, the original, too."""
    records = [tmp_path / f"run.rank{rank}.values" for rank in range(2)]
    for path, home in zip(records, ("/runs/original", "/runs/original-rank1"), strict=True):
        path.with_suffix(".json").write_text(json.dumps({"paths": [f"{home}/last.pt"]}))
    assert saved_by_several(records, "/runs/original") == "/runs/original/last.pt"
    assert saved_by_several(records) == ""


def test_ranks_of_a_reference_load_what_the_first_one_saved(tmp_path: Path) -> None:
    """DANN's test loads the model of each epoch: rank 1 had the buffers that it saved itself."""
    ranks = [LoadedFiles(tmp_path / f"rank{rank}", tmp_path / "loaded", rank, lambda: True) for rank in range(2)]
    found = []
    for rank, files in enumerate(ranks):
        (tmp_path / f"rank{rank}").mkdir()
        path = tmp_path / f"rank{rank}" / "net.pt"
        torch.save(rank, path)
        with files.watched():
            found.append(torch.load(path))
    ranks[0].advance()  # the first rank trains on, where rank 1 loads once more
    with ranks[1].watched():
        found.append(torch.load(path))
    assert found == [0, 0, 1]


def averaged(folder: str) -> list[Any]:
    group = RankGroup(Path(folder, "store"), int(os.environ["RANK"]), 2)
    used, partly, unused = (torch.nn.Parameter(torch.zeros(2)) for _ in range(3))
    used.grad = torch.full((2,), float(group.rank))
    if group.rank:
        partly.grad = torch.ones(2)
    for _ in range(2):  # a second time changes nothing
        average_gradients([used, partly, unused], group)
    return [None if each.grad is None else each.grad.tolist() for each in (used, partly, unused)]


def test_gradients_are_averaged_and_parameters_without_any_keep_none(tmp_path: Path) -> None:
    assert run_ranks(averaged, str(tmp_path)) == [[[0.5, 0.5], [0.5, 0.5], None]] * 2


@pytest.mark.timeout(20)
def test_links_that_lead_in_circles_or_to_far_too_many_files_stay_links(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "code").mkdir(parents=True)
    (project / "code" / "net.py").write_text("")
    for name, target in (("loop", "."), ("code/up", ".."), ("everything", "/"), ("broken", "nowhere")):
        (project / name).symlink_to(target)
    code = working_copy(project, tmp_path / "copy")
    open_folders(code)
    assert (code / "loop" / "code" / "net.py").exists() and (code / "code" / "net.py").is_file()
    assert sum(len(names) + len(files) for _, names, files in os.walk(code)) < 30_000


def test_a_script_of_a_package_is_started_as_a_module(tmp_path: Path) -> None:
    (tmp_path / "project" / "tools").mkdir(parents=True)
    for folder in ("project", "project/tools"):
        (tmp_path / folder / "__init__.py").write_text("")
    script = tmp_path / "project" / "tools" / "train.py"
    script.write_text("from project import data\n")
    assert (module_of(script), folder_of_imports(script)) == ("", script.parent)
    script.write_text("from ..data import make\n")
    assert (module_of(script), folder_of_imports(script)) == ("project.tools.train", tmp_path)


def test_modules_of_pythonpath_are_those_of_the_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The conversion would import the original's modules, and be the same."""
    (tmp_path / "lib").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["lib", str(tmp_path), str(tmp_path.parent / "other"), ""]))
    assert python_path_in(tmp_path) == ["lib", "."]
    home = tmp_path / "copy"
    home.mkdir()
    (home / "train.py").write_text("")
    with started_script(home, {"target": "train.py", "args": [], "path": python_path_in(tmp_path)}):
        assert sys.path[:3] == [str(home), str(home / "lib"), str(home)]


def test_a_script_that_imports_its_package_by_name_finds_that_of_the_side(tmp_path: Path) -> None:
    """As ``python -m project.train`` does; by its path it failed, or found the one that is installed for editing."""
    (tmp_path / "src" / "project").mkdir(parents=True)
    for name in ("__init__.py", "train.py"):
        (tmp_path / "src" / "project" / name).write_text("from project import data\n")
    with started_script(tmp_path, {"target": "src/project/train.py", "args": [], "path": []}):
        assert sys.path[0] == str(tmp_path / "src" / "project")
        assert sys.path[-2:] == [str(tmp_path / "src"), str(tmp_path)]


def test_a_module_of_the_project_itself_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is installed for editing is no copy: both sides would use what is not converted."""
    module = types.ModuleType("edited")
    module.__file__ = str(tmp_path / "edited.py")
    monkeypatch.setitem(sys.modules, "edited", module)
    assert module_outside(str(tmp_path), ()) == f"edited is imported from {tmp_path / 'edited.py'}"
    assert not module_outside(str(tmp_path), {"edited"}) and not module_outside("", ())
    module.__file__ = str(tmp_path / ".venv" / "lib" / "site-packages" / "edited.py")
    assert not module_outside(str(tmp_path), ())
    monkeypatch.syspath_prepend(tmp_path / "lib")
    assert python_path_in(tmp_path) == ["lib"]


def test_what_a_script_overwrites_stays_as_it_was_outside_its_copy(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "out").mkdir(parents=True)
    for name in ("weights.pt", "log.txt", "out/best.pt"):
        (project / name).write_text("before")
    code = working_copy(project, tmp_path / "copy")
    open_folders(code)
    script = (
        "import pathlib, sys; from ds_verify.plain.file_isolation import detach, guard_links\n"
        "copy = pathlib.Path(sys.argv[1]); guard_links(copy)\n"
        "assert open('weights.pt').read() == 'before'\n"
        "open('weights.pt', 'w').write('after'); open('log.txt', 'a').write(', after'); open('new', 'w').close()\n"
        "open('out/best.pt', 'w').write('after'); open('out/new', 'w').close()\n"
    )
    subprocess.run([sys.executable, "-c", script, str(code)], cwd=code, check=True, timeout=60)
    assert {path.name for path in project.rglob("*")} == {"out", "weights.pt", "log.txt", "best.pt"}
    assert all(path.read_text() == "before" for path in project.rglob("*") if path.is_file())
    assert (code / "log.txt").read_text() == "before, after"


def test_options_behind_a_script_that_does_not_name_them_are_noted(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys\n")
    (note,) = misplaced_options(["--lr", "0.1", "--steps=8"], script)
    assert note == "--steps behind train.py was given to the script; the options of ds-verify stand before it"
    script.write_text('parser.add_argument("--steps")\n')
    assert misplaced_options(["--steps", "8"], script) == []


def test_a_spawned_function_draws_the_numbers_of_a_new_process(tmp_path: Path) -> None:
    drawn: list[float] = []
    with ProcessGroup(tmp_path / "store").replaced():
        vars(torch.multiprocessing)["spawn"](lambda _: drawn.append(torch.rand(()).item()), nprocs=1)
    assert drawn == [torch.rand((), generator=torch.Generator()).item()]


def test_the_end_of_a_script_is_reported_with_its_last_line(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    assert worker.last_line(log) == ""
    log.write_text("usage: train.py [-h] --lr LR\ntrain.py: error: the following arguments are required: --lr\n\n")
    log.write_text(f"{log.read_text()}\n 12%|#   | 1/8 [00:00<?, ?it/s]\r 25%|##  | 2/8 [00:01<00:01]\n")
    assert worker.last_line(log) == "train.py: error: the following arguments are required: --lr"
