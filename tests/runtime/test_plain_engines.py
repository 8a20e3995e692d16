"""``trial_runtime.plain.match_torch``: an engine that trains as torch does, where DeepSpeed alone is silently wrong."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from distributed import run_ranks

STEPS = 3


class Halves(torch.nn.Module):
    """Two layers, of which a forward uses one, and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        self.norm = torch.nn.BatchNorm1d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.used(x)).pow(2).sum(1).mean()  # type: ignore[no-any-return]


def make_engine(model: torch.nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any]) -> Any:
    import deepspeed
    from trial_runtime.pytorch.deepspeed._patches import shared_memory_comm

    with shared_memory_comm.apply():
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine


def train(matched: bool, broadcast_buffers: bool = False) -> dict[str, list[float]]:
    """Return the state of an engine's module after some steps."""
    import torch.distributed as dist
    from trial_runtime.plain import match_torch

    torch.manual_seed(0)
    model = Halves()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 0.0,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 0},
    }
    engine = make_engine(model, optimizer, config)
    if matched:
        assert match_torch(engine, broadcast_buffers=broadcast_buffers) is engine
    torch.manual_seed(dist.get_rank())
    for _ in range(2 * STEPS):
        loss = engine(torch.randn(4, 2))
        returned = engine.backward(loss)
        assert torch.equal(returned, loss) is matched
        engine.step()
    return {name: value.flatten().tolist() for name, value in model.state_dict().items()}


def engines_of_optimizers(stage: int) -> str:
    import copy
    import pickle

    from trial_runtime.errors import InvalidExperimentException
    from trial_runtime.plain import engine_of, match_torch

    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    optimizers: list[torch.optim.Optimizer] = []
    for _ in range(2):
        model = Halves()
        optimizers.append(torch.optim.SGD(model.parameters(), lr=0.1))
        match_torch(make_engine(model, optimizers[-1], config))
    engines = [engine_of(optimizer) for optimizer in optimizers]
    assert engines[0] is not engines[1]
    assert all(e.basic_optimizer is optimizer for e, optimizer in zip(engines, optimizers, strict=True))
    copied = copy.deepcopy(optimizers[0]), pickle.loads(pickle.dumps(optimizers[0]))
    try:
        engine_of(copied[0])
    except InvalidExperimentException as error:
        return str(error)
    return ""


@pytest.mark.parametrize("stage", [0, 1])
def test_an_optimizer_leads_to_its_engine_and_a_copy_to_none(stage: int) -> None:
    assert run_ranks(engines_of_optimizers, stage)[0].startswith("no engine steps this SGD: give it to")


def test_parameters_without_a_gradient_and_buffers_are_as_under_torch() -> None:
    torch.manual_seed(0)
    unused = Halves().unused.weight.flatten().tolist()
    bare, matched, synced = (run_ranks(train, *flags) for flags in ((False,), (True,), (True, True)))
    assert bare[0]["unused.weight"] != unused  # or the helper is of no use any more
    for ranks in (matched, synced):
        assert all(state["unused.weight"] == unused for state in ranks)
        assert ranks[0]["used.weight"] == ranks[1]["used.weight"] == bare[0]["used.weight"]
    assert bare[0]["norm.running_mean"] != bare[1]["norm.running_mean"]
    assert matched[0]["norm.running_mean"] == bare[0]["norm.running_mean"] != matched[1]["norm.running_mean"]


def buffers_before_each_forward(are_parts: bool) -> list[list[float]]:
    import torch.distributed as dist
    from trial_runtime.plain import match_torch

    torch.manual_seed(0)
    model = Halves()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    module = torch.nn.ModuleList(model.children()) if are_parts else model
    engine = make_engine(module, optimizer, {"train_micro_batch_size_per_gpu": 4})
    match_torch(engine, broadcast_buffers=True)
    torch.manual_seed(dist.get_rank())
    seen = []
    model.norm.register_forward_pre_hook(lambda norm, _: seen.append(norm.running_mean.tolist()))
    for _ in range(STEPS):
        engine.backward((model if are_parts else engine)(torch.randn(4, 2)))
        engine.step()
    return seen


@pytest.mark.parametrize("are_parts", [False, True])  # in an engine's ModuleList, which has no forward
def test_buffers_are_rank_0s_before_each_forward_where_that_is_asked_for(are_parts: bool) -> None:
    one, other = run_ranks(buffers_before_each_forward, are_parts)
    assert one == other and one[0] != one[-1]


def second_backward(matched: bool) -> None:
    from trial_runtime.plain import match_torch

    model = Halves()
    optimizer = torch.optim.AdamW(model.parameters())
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}}
    engine = make_engine(model, optimizer, config)
    if matched:
        match_torch(engine)
    for _ in range(2):
        engine.backward(engine(torch.randn(4, 2)))
    engine.step()


def test_a_second_backward_that_would_lose_gradients_is_refused() -> None:
    run_ranks(second_backward, False, size=1)
    with pytest.raises(AssertionError, match=r"backward\(\) was called 2 times before step\(\), at ZeRO stage 1"):
        run_ranks(second_backward, True, size=1)


def train_scaled(is_engine: bool, is_managed: bool, updates: bool = False) -> list[float]:
    """Return losses, scales and the weights of a training in float16 whose first steps overflow."""
    import torch.distributed as dist
    from trial_runtime.plain import match_torch, use_scaler

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=2)
    net: Any = model
    if is_engine:
        config = {
            "train_micro_batch_size_per_gpu": 4,
            "managed_gradient_accumulation": is_managed,
            "gradient_clipping": 0.5,
            "zero_optimization": {"stage": 0},
        }
        engine = match_torch(make_engine(model, optimizer, config))
        use_scaler(engine, scaler, update=not updates)
    else:
        net = torch.nn.parallel.DistributedDataParallel(model)
    torch.manual_seed(dist.get_rank())
    figures = []
    passes = 1 if is_managed else 2
    for _ in range(6):
        for _ in range(passes):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = net(torch.randn(4, 4)).pow(2).mean() / passes
            if is_engine:
                engine.backward(loss, scale_wrt_gas=is_managed)
            else:
                scaler.scale(loss).backward()
        if is_engine:
            engine.step()
            if updates:
                scaler.update()
        else:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        figures += [loss.item(), scaler.state_dict()["scale"]]
    return figures + model.weight.flatten().tolist()


@pytest.mark.parametrize(("is_managed", "updates"), [(True, False), (False, False), (False, True)])
def test_an_engine_scales_losses_with_the_scaler_of_the_script(is_managed: bool, updates: bool) -> None:
    before, after = (run_ranks(train_scaled, is_engine, is_managed, updates) for is_engine in (False, True))
    assert 2.0**17 in before[0]  # an overflow was skipped
    for rank, figures in enumerate(after):
        assert figures == pytest.approx(before[rank], rel=1e-6)


def count_averages() -> list[int]:
    """Return how often gradients were averaged by two backward passes, on request, and by the step."""
    from trial_runtime.plain import match_torch

    model = torch.nn.Linear(4, 1)
    config = {"train_micro_batch_size_per_gpu": 4, "managed_gradient_accumulation": False}
    engine: Any = match_torch(make_engine(model, torch.optim.SGD(model.parameters(), lr=0.1), config))
    average, counts = engine.buffered_allreduce_fallback, [0]

    def count_and_average(*args: Any, **kwargs: Any) -> None:
        counts[-1] += 1
        average(*args, **kwargs)

    engine.buffered_allreduce_fallback = count_and_average
    for _ in range(2):
        engine.backward(engine(torch.ones(4, 4)).sum(), scale_wrt_gas=False)
    counts.append(0)
    engine.allreduce_gradients()
    counts.append(0)
    engine.step()
    return counts


def test_several_backward_passes_are_averaged_in_the_step_or_on_request() -> None:
    assert run_ranks(count_averages, size=1) == [[0, 1, 1]]


def step_with_closure(is_engine: bool) -> list[float]:
    """Return weights that LBFGS has moved by the loss of one batch, of which each of two ranks has a half."""
    import torch.distributed as dist
    from trial_runtime.plain import match_torch, step_with

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    batch, target = torch.randn(8, 3), torch.randn(8, 1)
    if is_engine:
        config = {"train_micro_batch_size_per_gpu": 4, "managed_gradient_accumulation": False, "gradient_clipping": 0.0}
        engine = match_torch(make_engine(model, optimizer, {**config, "zero_optimization": {"stage": 0}}))
        own = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)
        batch, target = batch[own], target[own]

    def closure() -> Any:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch), target)
        loss.backward()
        return loss

    for _ in range(STEPS):
        loss = step_with(engine, closure) if is_engine else optimizer.step(closure)
    return [*model.weight[0].tolist(), loss.item()]


def test_an_optimizer_that_decides_by_the_loss_moves_all_ranks_alike() -> None:
    first, second = run_ranks(step_with_closure, True)
    assert first == second == pytest.approx(step_with_closure(False), rel=1e-4)


def gradients_after_step() -> list[bool]:
    from trial_runtime.errors import InvalidExperimentException
    from trial_runtime.plain import match_torch

    torch.manual_seed(0)
    kept = []
    for keep_gradients in (False, True):
        model = Halves()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        engine = make_engine(model, optimizer, {"train_micro_batch_size_per_gpu": 4})
        match_torch(engine, keep_gradients=keep_gradients)
        engine.backward(engine(torch.randn(4, 2)))
        engine.step()
        kept.append(model.used.weight.grad is not None)
    config: dict[str, Any] = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}}
    model = Halves()
    sharded = make_engine(model, torch.optim.Adam(model.parameters()), config)
    with pytest.raises(InvalidExperimentException, match="stage 1"):
        match_torch(sharded, keep_gradients=True)
    complex_model = torch.nn.Linear(2, 1, dtype=torch.complex64)
    sharded = make_engine(complex_model, torch.optim.Adam(complex_model.parameters()), config)
    with pytest.raises(InvalidExperimentException, match="complex parameters require ZeRO stage 0"):
        match_torch(sharded)
    return kept


def groups_of_engines() -> list[tuple[int, list[int]]]:
    from trial_runtime.plain._groups import keep_empty_groups

    found = []
    for stage in (0, 1):
        model = Halves()
        groups: list[dict[str, Any]] = [{"params": []}, {"params": list(model.parameters())}]
        optimizer = torch.optim.Adam(groups)
        config: dict[str, Any] = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage}}
        with keep_empty_groups(), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            engine = make_engine(model, optimizer, config)
        assert any("ZeRO stage 0 in place of 1" in str(w.message) for w in warned) is (stage == 1)
        found.append((engine.zero_optimization_stage(), [len(group["params"]) for group in optimizer.param_groups]))
    return found


def test_groups_without_parameters_keep_their_place() -> None:
    count = len(list(Halves().parameters()))
    assert run_ranks(groups_of_engines, size=1) == [[(0, [0, count]), (0, [0, count])]]


def test_step_leaves_the_gradients_where_a_script_reads_them_later() -> None:
    assert run_ranks(gradients_after_step) == [[False, True]] * 2


WRITES: dict[str, Callable[[torch.nn.Module], Any]] = {
    "loaded": lambda model: model.load_state_dict({k: v / 2 for k, v in model.state_dict().items()}),
    "initialized anew": lambda model: [torch.nn.init.constant_(p, 0.5) for p in model.parameters()],
    "changed in place": lambda model: [p.data.mul_(0.5) for p in model.parameters()],
    "replaced": lambda model: torch.nn.utils.vector_to_parameters(
        0.5 * torch.nn.utils.parameters_to_vector(model.parameters()), model.parameters()
    ),
}


def step_what_is_written(stage: int | None) -> list[list[float]]:
    """Return the weights after steps between which a script writes weights, one training a way to write."""
    from trial_runtime.plain import match_torch

    ends = []
    for write in WRITES.values():
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        if stage is not None:
            config = {
                "train_micro_batch_size_per_gpu": 4,
                "gradient_clipping": 0.0,
                "zero_optimization": {"stage": stage},
                "zero_allow_untested_optimizer": True,
            }
            engine = match_torch(make_engine(model, optimizer, config))
        for _ in range(3):
            loss = model(torch.ones(4, 3)).pow(2).mean()
            if stage is None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            else:
                engine.backward(loss)
                engine.step()
            write(model)
        ends.append([value for p in model.parameters() for value in p.flatten().tolist()])
    return ends


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_weights_that_a_script_writes_are_stepped(stage: int) -> None:
    expected, *_ = run_ranks(step_what_is_written, None)
    for ends in run_ranks(step_what_is_written, stage):
        for way, one, other in zip(WRITES, ends, expected, strict=True):
            assert one == pytest.approx(other, rel=1e-6), way


def pickle_module(stage: int) -> tuple[bytes, list[bool]]:
    from trial_runtime.plain import match_torch

    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    setattr(model[0].weight, "note", "the script's")  # noqa: B010
    optimizer = torch.optim.Adam(model.parameters())
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage}, "gradient_clipping": 0.0}
    engine = match_torch(make_engine(model, optimizer, config))
    engine.backward(engine(torch.ones(4, 3)).sum())
    engine.step()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    read = torch.load(file, weights_only=False)
    scripted = torch.jit.script(model)
    x = torch.ones(4, 3)
    return file.getvalue(), [torch.equal(other(x), model(x)) for other in (read, scripted, copy.deepcopy(model))] + [
        read[0].weight.note == "the script's", not hasattr(read[0].weight, "_hp_mapping")
    ]  # fmt: skip


@pytest.mark.parametrize("stage", [0, 1])
def test_the_module_of_an_engine_is_saved_and_scripted_as_any_other(stage: int) -> None:
    ((data, same),) = run_ranks(pickle_module, stage, size=1)
    assert same == [True] * 5
    assert b"deepspeed" not in data and b"trial_runtime" not in data


def step_foreign_parameters() -> str:
    """Return the error for an optimizer with a parameter that the engine's module lacks."""
    from trial_runtime.errors import InvalidExperimentException
    from trial_runtime.plain import match_torch

    model, head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
    engine = make_engine(model, optimizer, {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0.0})
    with pytest.raises(InvalidExperimentException) as raised:
        match_torch(engine)
    return str(raised.value)


def test_an_optimizer_of_more_than_the_engine_s_module_is_refused() -> None:
    (message,) = run_ranks(step_foreign_parameters, size=1)
    assert message.startswith(
        "2 of the optimizer's 4 parameters are not in the engine's module, with the shapes (1, 2)"
    )


def copy_trained_module(stage: int) -> None:
    import copy
    import io

    from trial_runtime.plain import match_torch

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[0].weight = model[1].weight
    seen: list[Any] = []
    own_hook = model.register_forward_hook(lambda *call: seen.append(call))
    config = {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0.0, "zero_optimization": {"stage": stage}}
    engine = match_torch(make_engine(model, torch.optim.Adam(model.parameters()), config))
    engine.backward(engine(torch.randn(4, 2)).mean())
    engine.step()
    duplicate = copy.deepcopy(model)
    assert len(duplicate._forward_hooks) == 1 and not duplicate._forward_pre_hooks
    duplicate(torch.randn(4, 2))
    assert len(seen) == 2
    assert duplicate[0].weight is duplicate[1].weight
    own_hook.remove()
    file = io.BytesIO()
    torch.save(model, file)
    assert b"deepspeed" not in file.getvalue() and b"trial_runtime" not in file.getvalue()
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), model.parameters(), strict=True))
    assert loaded[0].weight is loaded[1].weight and not loaded._forward_hooks


@pytest.mark.parametrize("stage", [0, 1])
def test_a_module_is_copied_and_saved_without_its_engine(stage: int) -> None:
    run_ranks(copy_trained_module, stage, size=1)


def run_copy_on_rank_0() -> list[list[float]]:
    """Return running statistics of a module and its copy, which rank 0 alone runs."""
    import copy
    import io

    import torch.distributed as dist
    from trial_runtime.plain import match_torch

    torch.manual_seed(0)
    model = Halves()
    config = {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0.0, "zero_optimization": {"stage": 0}}
    engine = match_torch(
        make_engine(model, torch.optim.SGD(model.parameters(), lr=0.1), config), broadcast_buffers=True
    )
    average = copy.deepcopy(model)
    torch.manual_seed(dist.get_rank())
    average(torch.randn(4, 2))
    if dist.get_rank() == 0:
        average(torch.randn(4, 2))
    file = io.BytesIO()
    torch.save(model, file)
    assert b"trial_runtime" not in file.getvalue()
    engine(torch.randn(4, 2))
    engine(torch.randn(4, 2))
    return [average.norm.running_mean.tolist(), model.norm.running_mean.tolist()]  # type: ignore[union-attr]


def test_a_copy_has_its_own_buffers_on_each_rank() -> None:
    one, other = run_ranks(run_copy_on_rank_0)
    assert one[0] != other[0] and one[1] != other[1]


def step_shared_parameters(ranks: int) -> list[float]:
    """Return the weights after steps of two optimizers, one of a part of what the other one holds.

    ``ranks``: 0 to train on the data of both ranks with torch alone.
    """
    import torch.distributed as dist
    from trial_runtime.plain import match_torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    optimizers: list[Any] = [
        torch.optim.Adam(model.parameters(), lr=0.1),
        torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9),
    ]
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "managed_gradient_accumulation": False,
        "gradient_clipping": 0.0,
    }
    held = [model, model[0]]
    engines = [make_engine(m, o, config) for m, o in zip(held, optimizers, strict=True)] if ranks else optimizers
    for engine in engines if ranks else ():
        match_torch(engine, keep_gradients=True)
    own = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4) if ranks else slice(8)
    for step in range(STEPS):
        for uses_both in (step != 1, True):  # gradients of the second pass are added to those of the first
            if uses_both:
                model.zero_grad()
            loss = model(torch.randn(8, 2)[own]).pow(2).mean()
            if ranks:
                engines[0].backward(loss, scale_wrt_gas=False)
            else:
                loss.backward()
            for one in engines if uses_both else engines[1:]:
                one.step()
    return [w for p in model.parameters() for w in p.flatten().tolist()]


def test_engines_that_share_parameters_step_the_gradients_of_all_ranks() -> None:
    one, other = run_ranks(step_shared_parameters, 2)
    assert one == other == pytest.approx(step_shared_parameters(0), abs=1e-6)


def count_engines_and_broadcasts() -> list[int]:
    """Return how many exist after several engines were made for one module, one in the place of the other."""
    from trial_runtime.plain import match_torch
    from trial_runtime.plain._engine import matched_engines

    model = Halves()
    config = {"train_micro_batch_size_per_gpu": 4, "managed_gradient_accumulation": False}
    for _ in range(5):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        engine = make_engine(model, optimizer, config)
        match_torch(engine, broadcast_buffers=True)
        engine.backward(model(torch.randn(4, 2)), scale_wrt_gas=False)
        engine.step()
    return [len(matched_engines()), len(model._forward_pre_hooks)]


def test_an_engine_whose_place_another_one_takes_is_freed() -> None:
    for engines, broadcasts in run_ranks(count_engines_and_broadcasts):
        assert engines <= 2 and broadcasts == 1  # the last backward pass may hold the engine before


def train_folds(stage: int) -> list[int]:
    """Return how many engines remain, and how many process groups the ranks have, behind folds that train others."""
    import gc

    import torch.distributed as dist
    from trial_runtime.plain import match_torch
    from trial_runtime.plain._engine import matched_engines

    zero = {"zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True}
    config = {"train_micro_batch_size_per_gpu": 4, **zero}
    groups = []
    for _ in range(4):
        model = torch.nn.Linear(2, 1)
        engine = make_engine(model, torch.optim.SGD(model.parameters(), lr=0.1), config)
        match_torch(engine)
        loss = model(torch.randn(4, 2)).sum()  # remains until the next fold has one
        engine.backward(loss)
        engine.step()
        groups.append(len(dist.distributed_c10d._world.pg_map))
    gc.collect()
    return [len(matched_engines()), groups[-1] - groups[0]]


@pytest.mark.parametrize("stage", [0, 1])
def test_engines_of_earlier_folds_are_freed_and_share_a_group(stage: int) -> None:
    """At stage 1 each fold's model stayed until the program ended; each engine had further threads and open files."""
    assert run_ranks(train_folds, stage) == [[1, 0]] * 2


def add_group_later(is_own: bool) -> str:
    from trial_runtime.errors import InvalidExperimentException
    from trial_runtime.plain import match_torch

    model = Halves()
    optimizer = torch.optim.SGD(model.used.parameters(), lr=0.1)
    match_torch(make_engine(model, optimizer, {"train_micro_batch_size_per_gpu": 4}))
    try:
        optimizer.add_param_group({"params": (model if is_own else Halves()).unused.parameters()})
    except InvalidExperimentException as error:
        return str(error)
    return str(len(optimizer.param_groups))


def test_a_group_that_is_added_later_is_of_the_engine_s_module() -> None:
    (own, _), (other, _) = run_ranks(add_group_later, True), run_ranks(add_group_later, False)
    assert own == "2" and other.startswith("2 of the optimizer's 4 parameters are not in the engine's module")


def test_inputs_are_moved_as_the_wrapper_moved_them_but_not_those_of_a_copy() -> None:
    from trial_runtime.plain._inputs import InputMove

    class Sum(torch.nn.Module):
        def forward(self, x: torch.Tensor, more: dict[str, list[torch.Tensor]], factor: int = 1) -> torch.Tensor:
            return x * factor + more["y"][0]

    model = Sum()
    InputMove(model, torch.device("meta"))
    one = torch.ones(2)
    assert model(one, more={"y": [one]}, factor=2).device.type == "meta" and InputMove.are_on(model)
    average = copy.deepcopy(model)
    assert average(one, {"y": [one]}).device.type == "cpu" and not InputMove.are_on(average)
    assert not average._forward_pre_hooks_with_kwargs


class Learner:
    """Object that keeps its module, optimizer and engine, as a trainer or an agent does."""

    def __init__(self, stage: int = 0) -> None:
        from trial_runtime.plain import match_torch

        torch.manual_seed(0)
        self.model = torch.nn.Linear(2, 2)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        config = {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0.0, "zero_optimization": {"stage": stage}}
        self.engine = match_torch(make_engine(self.model, self.optimizer, config))

    def train(self) -> list[float]:
        losses = []
        for _ in range(STEPS):
            loss = self.engine(torch.ones(4, 2)).pow(2).mean()
            self.engine.backward(loss)
            self.engine.step()
            losses.append(loss.item())
        return losses


def train_copies() -> bool:
    import pickle

    learner = Learner()
    learner.train()
    copied = copy.deepcopy(learner)
    copies: list[Learner] = [copied, pickle.loads(pickle.dumps(learner)), copy.deepcopy(copied)]
    expected = learner.train()
    assert all(one.train() == expected for one in copies)
    again: Learner = copy.deepcopy(copies[0])
    assert again.engine.module is again.model is not copies[0].model
    return again.train() == learner.train()


def test_a_copy_of_an_object_that_keeps_an_engine_trains_as_the_object_does() -> None:
    assert run_ranks(train_copies, size=1) == [True]
    assert run_ranks(train_copies) == [True, True]


def copy_at_stage_1() -> str:
    from trial_runtime.errors import InvalidExperimentException

    with pytest.raises(InvalidExperimentException) as raised:
        copy.deepcopy(Learner(stage=1))
    return str(raised.value)


def test_an_engine_whose_optimizer_is_divided_is_not_copied() -> None:
    assert "stage 1 cannot be copied or pickled" in run_ranks(copy_at_stage_1, size=1)[0]
