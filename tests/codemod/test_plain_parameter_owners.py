"""Which modules hold the parameters that the optimizer of a plain training loop is given."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from ds_migrate.rules.codes import Code
from plain_loops import GIVEN_TRAINER, HEADER, LOOP, blocked, body, convert, run

TWO = """
    first, second = nn.Linear(4, 4), nn.Linear(4, 1)
    {collect}
    optimizer = torch.optim.SGD({params}, lr=0.1)
    for x, y in DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        loss = F.mse_loss(second(first(x)), y)
        loss.backward()
        optimizer.step()
    """
BY_LAYER = """
    model = Net()
    weights = []
    {loop}
    optimizer = torch.optim.SGD([{{"params": weights}}], lr=0.1)
    for x, y in DataLoader(data, batch_size=4):
        STEP
    """


@pytest.mark.parametrize(
    "collect",
    [
        "params = []\n    for part in [first, second]:\n        params += list(part.parameters())",
        "parts = [first, second]\n    params = []\n    for part in parts:\n        params.extend(part.parameters())",
        "params = []\n    for part in (first, second):\n        params.append({'params': part.parameters()})",
    ],
)
def test_the_variable_of_a_loop_over_modules_is_not_their_engine_s_module(collect: str, tmp_path: Path) -> None:
    after = convert(tmp_path, body(TWO.format(collect=collect, params="params")))
    assert "model=nn.ModuleList([first, second])," in after
    assert "F.mse_loss(second(first(x)), y)" in after


@pytest.mark.parametrize(
    "params",
    [
        "[p for each in kept.values() for p in each]",
        "[{'params': each} for each in kept.values()]",
        "sum(kept.values(), [])",
    ],
)
def test_parameters_are_followed_through_a_dict_that_keeps_them_by_name(params: str, tmp_path: Path) -> None:
    collect = "kept = {'a': list(first.parameters()), 'b': list(second.parameters())}"
    after = convert(tmp_path, body(TWO.format(collect=collect, params=params)))
    assert "model=nn.ModuleList([first, second])," in after


@pytest.mark.parametrize(
    "params",
    [
        "[dict(params=first.parameters()), dict(kind='x', params=[second.weight, second.bias], lr=0.2)]",
        "[dict(params=part.parameters(), lr=0.2) for part in (first, second)]",
    ],
)
def test_groups_of_parameters_may_be_made_by_calls_of_dict(params: str, tmp_path: Path) -> None:
    after = convert(tmp_path, body(TWO.format(collect="", params=params)))
    assert "model=nn.ModuleList([first, second])," in after


@pytest.mark.parametrize(
    "loop",
    [
        "for layer in model.modules():\n        if hasattr(layer, 'weight'):\n            weights.append(layer.weight)",
        "for name, layer in model.named_modules():\n        weights += layer.parameters()",
        "for i, (name, layer) in enumerate(model.named_children()):\n        weights.append(layer.weight)",
        "others = []\n    for p in model.parameters():\n        (weights if p.ndim > 1 else others).append(p)",
        "others = []\n    for p in model.parameters():\n"
        "        group = weights if p.ndim > 1 else others\n        group.append(p)",
    ],
)
def test_parameters_are_followed_from_layers_to_their_module(loop: str, tmp_path: Path) -> None:
    after = convert(tmp_path, body(BY_LAYER.format(loop=loop)))
    assert "model=model," in after and '"stage": 0' in after


@pytest.mark.parametrize(
    "params", ["[{'params': p, 'lr': r} for p, r in zip([list(model.parameters())], [0.1])]", "split(model)"]
)
def test_parameters_are_followed_through_zip_and_functions_of_a_library_s_module(params: str, tmp_path: Path) -> None:
    text = """
        def split(net):
            groups = {"decay": [], "none": []}
            for p in net.parameters():
                groups["decay" if p.ndim > 1 else "none"].append(p)
            return [{"params": group} for group in groups.values()]


        model = nn.Sequential(nn.Linear(4, 1))
        optimizer = torch.optim.SGD(PARAMS, lr=0.1)
        for x, y in DataLoader(data, batch_size=4):
            STEP
        """
    after = convert(tmp_path, body(text).replace("PARAMS", params))
    assert "model=model," in after


@pytest.mark.parametrize(
    ("lists", "decayed", "others"),
    [("[], [], []", "g[0]", "g[2]"), ("{'decay': [], 'bias': []}", "g['decay']", "g['bias']")],
)
def test_parameters_are_followed_through_lists_of_a_container(
    lists: str, decayed: str, others: str, tmp_path: Path
) -> None:
    text = f"""
        def smart_optimizer(net):
            g = {lists}
            for layer in net.modules():
                for name, p in layer.named_parameters(recurse=0):
                    if name == "bias":
                        {others}.append(p)
                    else:
                        {decayed}.append(p)
            optimizer = torch.optim.SGD({others}, lr=0.1)
            optimizer.add_param_group({{"params": {decayed}, "weight_decay": 0.1}})
            return optimizer


        model = Net()
        optimizer = smart_optimizer(model)
        for x, y in DataLoader(data, batch_size=4):
            STEP
        """
    converted = convert(tmp_path, body(text))
    assert "model=model," in converted
    assert "keep_gradients" not in converted  # the group is there when the engine is made


def test_parameters_of_parts_are_followed_where_a_comprehension_uses_the_name_too(tmp_path: Path) -> None:
    text = """
        def make_optimizer(net):
            g = [], []
            norms = tuple(v for k, v in torch.nn.__dict__.items() if "Norm" in k)
            for v in net.modules():
                if isinstance(v, norms):
                    g[0].append(v.weight)
                if hasattr(v, "im"):
                    g[1].append(v.im.implicit)
            optimizer = torch.optim.SGD(g[0], lr=0.1)
            optimizer.add_param_group({"params": g[1], "weight_decay": 0.0})
            return optimizer


        model = Net()
        optimizer = make_optimizer(model)
        for x, y in DataLoader(data, batch_size=4):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        """
    assert "model=model," in convert(tmp_path, body(text))


def test_lists_of_parameters_that_a_function_returns_together_are_of_the_module_it_is_given(tmp_path: Path) -> None:
    text = """
        def split(net):
            decayed, others = [], []
            for p in net.parameters():
                if p.dim() == 2:
                    decayed.append(p)
                else:
                    others.append(p)
            return decayed, others


        model = Net()
        decayed, others = split(model)
        optimizer = torch.optim.SGD([{"params": decayed, "weight_decay": 0.1}, {"params": others}], lr=0.1)
        for x, y in DataLoader(data, batch_size=4):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        """
    assert "model=model," in convert(tmp_path, body(text))


def test_lists_that_one_line_assigns_are_followed(tmp_path: Path) -> None:
    text = TWO.format(collect="a, b = list(first.parameters()), list(second.parameters())", params="a + b")
    assert "ModuleList([first, second])," in convert(tmp_path, body(text))


def test_an_object_that_steps_optimizers_in_the_place_of_one_is_refused(tmp_path: Path) -> None:
    text = """
        class Pair:
            def __init__(self, first, second):
                self.first, self.second = first, second

            def zero_grad(self):
                self.first.zero_grad()
                self.second.zero_grad()

            def step(self):
                self.first.step()
                self.second.step()


        model = Net()
        if os.environ.get("PAIR"):
            first = torch.optim.SGD(model.first.parameters(), lr=0.1)
            optimizer = Pair(first, torch.optim.SGD(model.second.parameters(), lr=0.1))
        else:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in DataLoader(data, batch_size=4):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        """
    reasons = blocked(tmp_path, "import os\n" + body(text))
    reason = "optimizer is an optimizer in one run and a Pair, which steps optimizers itself, in another"
    assert (Code.PLAIN_UNTRACED, reason) in reasons


def test_parameters_of_modules_that_a_function_makes_and_returns_are_tensors_of_the_optimizer(tmp_path: Path) -> None:
    text = """
        def setup(rates):
            heads, groups = torch.nn.ModuleDict(), []
            for rate in rates:
                head = Net()
                heads[str(rate)] = head
                groups.append({"params": head.parameters(), "lr": rate})
            return heads, groups


        heads, groups = setup([0.1, 0.2])
        optimizer = torch.optim.SGD(groups, lr=0.1)
        for x, y in DataLoader(data, batch_size=4):
            optimizer.zero_grad()
            sum(F.mse_loss(head(x), y) for head in heads.values()).backward()
            optimizer.step()
        """
    assert "model=EngineModule(optimizer)," in convert(tmp_path, body(text))


@pytest.mark.parametrize(
    "options, size",
    [
        ("batch_sampler=torch.utils.data.BatchSampler(order, 3, True)", "3"),
        ("batch_sampler=[[0, 1], [2]]", "1"),
        ("batch_size=None, sampler=[[0, 1]]", "1"),
    ],
)
def test_a_loader_without_a_batch_size_is_not_asked_for_it(options: str, size: str, tmp_path: Path) -> None:
    text = f"""
        order = torch.utils.data.SequentialSampler(data)
        loader = DataLoader(data, {options})
        MAKE_MODEL
        for x, y in loader:
            STEP
        """
    assert f'"train_micro_batch_size_per_gpu": {size},' in convert(tmp_path, body(text))


def test_optimizers_that_a_comprehension_chooses_modules_for_are_refused_by_name(tmp_path: Path) -> None:
    text = """
        models = [Net() for _ in range(3)]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models if model.training]
        for x, y in DataLoader(data, batch_size=4):
            for i in range(3):
                optimizers[i].zero_grad()
                F.mse_loss(models[i](x), y).backward()
                optimizers[i].step()
        """
    ((code, message),) = blocked(tmp_path, body(text))
    assert code == Code.PLAIN_ENGINE
    assert message.endswith("that is made here: a comprehension makes one for each of several modules")


def test_a_name_of_another_function_is_another_variable(tmp_path: Path) -> None:
    text = body("""
    def freeze(module):
        for p in module.parameters():
            p.requires_grad = False


    net = Net()
    freeze(net)
    chosen = []
    for name, p in net.named_parameters():
        chosen.append(p)
    optimizer = torch.optim.SGD(chosen, lr=0.1)
    for x, y in DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()
    """)
    assert "    model=net,\n" in convert(tmp_path, text)


ITEMS = """
    def create():
        model, fine = Net(), Net()
        optimizer = torch.optim.SGD(list(model.parameters()) + list(fine.parameters()), lr=0.1)
        {more}
        render = {{"net": model, "net_fine": fine, "width": 4}}
        return render, optimizer


    render, optimizer = create()
    for x, y in DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        loss = F.mse_loss(render["net"](x) + render["net_fine"](x), y)
        loss.backward()
        optimizer.step()
    """


def test_modules_are_named_by_the_items_of_a_dict_that_is_returned(tmp_path: Path) -> None:
    after = convert(tmp_path, body(ITEMS.format(more="")))
    assert 'model=nn.ModuleList([render["net"], render["net_fine"]]),' in after
    assert '    loss = F.mse_loss(render["net"](x) + render["net_fine"](x), y)\n' in after


def test_a_module_that_is_not_returned_has_no_name(tmp_path: Path) -> None:
    text = body(ITEMS.format(more="")).replace('"net_fine": fine', '"net_fine": model')
    ((code, message),) = blocked(tmp_path, text)
    assert code == Code.PLAIN_ENGINE and "has no name where the optimizer is bound" in message


MAKES = """\
def make_optimizer(parameters, lr):
    made = torch.optim.SGD(parameters, lr=lr)
    return made


"""
BUILDS = (
    MAKES
    + """\
def build(parameters):
    return make_optimizer(parameters, 0.1)


"""
)
TRAINER = """\
class Trainer:
    def __init__(self, net):
        self.net = net
        self.optimizer = self.make(self.net.parameters())

    def make(self, parameters):
        return torch.optim.SGD(parameters, lr=0.1)

    def run(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            F.mse_loss(self.net(x), y).backward()
            self.optimizer.step()


Trainer(Net()).run(DataLoader(data, batch_size=4))
"""


@pytest.mark.parametrize(
    ("functions", "made"), [(MAKES, "make_optimizer(model.parameters(), 0.1)"), (BUILDS, "build(model.parameters())")]
)
def test_parameters_that_one_call_gives_are_followed(functions: str, made: str, tmp_path: Path) -> None:
    loop = LOOP.replace("torch.optim.SGD(model.parameters(), lr=0.1)", made)
    text = convert(tmp_path, HEADER + functions + loop)
    assert f"optimizer = {made}\nengine, *_ = deepspeed.initialize(\n    model=model,\n" in text
    assert '"zero_optimization": {"stage": 1}' in text


def test_modules_of_which_a_list_is_made_are_named_where_a_function_makes_the_optimizer(tmp_path: Path) -> None:
    collected = (
        "first = Net()\nparams = list(filter(lambda p: p.requires_grad, model.parameters()))\n"
        "params += list(filter(lambda p: p.requires_grad, first.parameters()))\noptimizer = make_optimizer(params, 0.1)"
    )
    loop = LOOP.replace("optimizer = torch.optim.SGD(model.parameters(), lr=0.1)", collected)
    loop = loop.replace("model(x)", "model(x) + first(x)")
    assert "model=nn.ModuleList([model, first])" in convert(tmp_path, HEADER + MAKES + loop)


def test_parameters_that_a_method_is_given_once_are_followed(tmp_path: Path) -> None:
    text = convert(tmp_path, HEADER + TRAINER)
    assert "        self.engine, *_ = deepspeed.initialize(\n            model=self.net,\n" in text


def test_a_module_in_a_namespace_is_no_part_of_it(tmp_path: Path) -> None:
    text = """
        import types

        state = types.SimpleNamespace()
        state.model = Net()
        state.optimizer = torch.optim.SGD(state.model.parameters(), lr=0.1)
        for x, y in DataLoader(data, batch_size=4):
            state.optimizer.zero_grad()
            F.mse_loss(state.model(x), y).backward()
            state.optimizer.step()
        """
    assert "    model=state.model,\n" in convert(tmp_path, body(text))


def test_a_module_in_a_copy_of_a_namespace_is_no_part_of_it(tmp_path: Path) -> None:
    text = """
        import copy
        from dotmap import DotMap

        def train(config):
            optimizer = torch.optim.SGD(config.model.parameters(), lr=0.1)
            for x, y in DataLoader(data, batch_size=4):
                optimizer.zero_grad()
                F.mse_loss(config.model(x), y).backward()
                optimizer.step()

        def train_one(model):
            config = DotMap()
            config.model = model
            train(config)

        def train_all(settings):
            config = copy.deepcopy(settings)
            config.model = Net()
            train(config)
        """
    assert "model=config," not in convert(tmp_path, body(text))


def test_layers_of_a_sequence_of_a_library_are_in_it(tmp_path: Path) -> None:
    text = """
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
        for x, y in DataLoader(data, batch_size=4):
            STEP
        """
    after = convert(tmp_path, body(text))
    assert "    model=model,\n" in after and '"stage": 0' in after


def test_a_part_of_an_item_of_a_module_is_in_that_module(tmp_path: Path) -> None:
    text = """
        model = nn.ModuleDict()
        model["net"] = made(Net())
        optimizer = torch.optim.SGD(model["net"].encoder.fc.parameters(), lr=0.1)
        for x, y in DataLoader(data, batch_size=4):
            optimizer.zero_grad()
            loss = F.mse_loss(model["net"](x), y)
            loss.backward()
            optimizer.step()
        """
    after = convert(tmp_path, "from other import made\n" + body(text))
    assert "    model=model,\n    optimizer=optimizer,\n" in after and '"stage": 0' in after


def test_a_tensor_that_is_made_among_the_parameters_is_one_of_the_optimizer(tmp_path: Path) -> None:
    text = """
        model = Net()
        optimizer = torch.optim.SGD(list(model.parameters()) + [torch.empty(1, requires_grad=True)], lr=0.1)
        for x, y in DataLoader(data, batch_size=4):
            STEP
        """
    assert "    model=EngineModule(optimizer, model=model),\n" in convert(tmp_path, body(text))


def test_an_optimizer_of_unnamed_modules_that_another_file_steps_is_all_that_its_engine_knows(tmp_path: Path) -> None:
    making = """
        import torch


        def make(parameters):
            return torch.optim.Adam((p for p in parameters if p.requires_grad), lr=0.1)
        """
    main = """
        from making import make
        from training import Trainer


        def build():
            model = Net()
            optimizer = make(list(model.parameters()))
            return [model.fc], optimizer


        layers, optimizer = build()
        Trainer(layers[0], optimizer).fit(DataLoader(data, batch_size=4))
        """
    report = run(tmp_path, making=textwrap.dedent(making), training=body(GIVEN_TRAINER), train=body(main))
    after = {file.path.stem: (file.after or b"").decode() for file in report.files}
    assert "    model=EngineModule(optimizer),\n" in after["train"] and '"stage": 0' in after["train"]
    assert "            F.mse_loss(self.model(x), y)" in after["training"].replace("self.engine.backward(", " ")


def test_a_name_that_was_a_parser_of_arguments_leaves_the_model_of_the_object_that_it_holds(tmp_path: Path) -> None:
    text = """
        import argparse


        class Parser:
            pass


        def load():
            return Parser(), data


        def train(parser, loader):
            optimizer = torch.optim.SGD(parser.model.parameters(), lr=0.1)
            for x, y in loader:
                optimizer.zero_grad()
                F.mse_loss(parser.model(x), y).backward()
                optimizer.step()


        parser = argparse.ArgumentParser()
        args = parser.parse_args()
        parser, rows = load()
        parser.model = Net()
        train(parser, DataLoader(rows, batch_size=4))
        """
    assert "        model=parser.model,\n" in convert(tmp_path, body(text))


def test_a_model_that_may_be_one_of_several_loaded_ones_is_named_as_all_of_them(tmp_path: Path) -> None:
    helpers = """
        class Ensemble(nn.ModuleList):
            def forward(self, x):
                return sum(module(x) for module in self)


        def load(count):
            models = Ensemble()
            for _ in range(count):
                models.append(Net())
            return models[-1] if len(models) == 1 else models


        def make_optimizer(model):
            return torch.optim.SGD(model.parameters(), lr=0.1)


        def main():
            model = load(2)
            optimizer = make_optimizer(model)
            for x, y in DataLoader(data, batch_size=4):
                loss = F.mse_loss(model(x), y)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)
                optimizer.step()
                optimizer.zero_grad()


        main()
        """
    text = convert(tmp_path, HEADER + textwrap.dedent(helpers))
    assert "deepspeed.initialize(\n        model=model,\n" in text
    assert '"gradient_clipping": 10.0' in text


ELSEWHERE = """
    class Trainer:
        def __init__(self, create):
            self.create = create
            self._net = Net()

        @property
        def net(self):
            if self._net is None:
                raise ValueError("no net")
            return self._net

        def made(self, net, lr):
            if isinstance(net, nn.DataParallel):
                net = net.module
            moved = [p for name, p in net.named_parameters() if name]
            return torch.optim.SGD(moved, lr=lr)

        def fit(self, loader, wrapped):
            MADE
            for x, y in loader:
                optimizer.zero_grad()
                F.mse_loss(self.net(x), y).backward()
                optimizer.step()


    def create(params):
        return torch.optim.SGD(params, lr=0.1)


    Trainer(create).fit(DataLoader(data, batch_size=4), False)
    """


@pytest.mark.parametrize(
    ("made", "module"),
    [
        pytest.param("optimizer = self.create(self.net.parameters())", "self.net", id="parameters by a property"),
        pytest.param(
            "trained = nn.DataParallel(self._net) if wrapped else self._net\n"
            "            optimizer = self.made(trained, 0.1)",
            "trained",
            id="a module that is taken out of its wrapper",
        ),
    ],
)
def test_a_module_is_named_by_the_argument_of_the_call_at_the_site(made: str, module: str, tmp_path: Path) -> None:
    after = convert(tmp_path, body(ELSEWHERE.replace("MADE", made)))
    assert f"model={module}," in after and "engine.step()\n" in after


def test_a_module_that_the_function_replaces_is_found_by_the_optimizer(tmp_path: Path) -> None:
    text = ELSEWHERE.replace("net = net.module", "net = nn.Linear(4, 1)")
    text = text.replace("MADE", "trained = self._net\n            optimizer = self.made(trained, 0.1)")
    assert "model=EngineModule(optimizer)," in convert(tmp_path, body(text))


MAKES_OWN = """
    class Optimizer:
        def __init__(self, params, name, lr):
            if name == "sgd":
                self.optimizer = torch.optim.SGD(params, lr=lr)
            else:
                self.optimizer = torch.optim.Adam(params, lr=lr)

        def step(self):
            self.optimizer.step()


    def main(name):
        model = WRAP(Net())
        optimizer = Optimizer(model.parameters(), name, 0.1)
        for x, y in DataLoader(data, batch_size=4):
            optimizer.optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()


    main("sgd")
    """


def test_a_wrapper_that_is_given_parameters_makes_the_engine_of_its_optimizer(tmp_path: Path) -> None:
    after = convert(tmp_path, body(MAKES_OWN.replace("WRAP", "")))
    assert "            model=EngineModule(self.optimizer),\n" in after
    assert "optimizer.engine.backward(F.mse_loss(model(x), y)" in after and "    self.engine.step()\n" in after


def test_a_module_without_a_name_whose_buffers_are_broadcast_is_refused(tmp_path: Path) -> None:
    ((code, message),) = blocked(tmp_path, body(MAKES_OWN.replace("WRAP", "DDP")))
    assert code == Code.PLAIN_ENGINE and message.endswith("and its buffers are those of rank 0")


CONTROLLER = """
    class Controller:
        def __init__(self, net):
            self.net = net

        {method}

    controller, head = Controller(Net()), nn.Linear(1, 1)
    params = list(controller.parameters())
    params += list(head.parameters())
    optimizer = torch.optim.SGD(params, lr=0.1)
    for x, y in DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        F.mse_loss(head(controller.net(x)), y).backward()
        optimizer.step()
    """


def test_parameters_that_a_class_hands_out_are_those_of_the_module_that_it_keeps(tmp_path: Path) -> None:
    method = "def parameters(self):\n            return self.net.parameters()"
    assert "model=nn.ModuleList([controller.net, head])," in convert(tmp_path, body(CONTROLLER.format(method=method)))


def test_parameters_of_a_class_that_keeps_no_module_of_them_are_refused(tmp_path: Path) -> None:
    method = "def parameters(self):\n            net = self.net\n            return net.parameters()"
    ((code, message),) = blocked(tmp_path, body(CONTROLLER.format(method=method)))
    assert code == Code.PLAIN_ENGINE and "cannot determine the modules whose parameters the optimizer holds" in message


SEVERAL = """
    class Trainer:
        def __init__(self, pose, shared):
            self.models = {"depth": Net()}
            self.parameters = list(self.models["depth"].parameters())
            if pose:
                self.pose = Net()
                self.parameters += list(self.pose.parameters())
                if not shared:
                    self.models["mask"] = Net()
                    self.parameters += list(self.models["mask"].parameters())
            if shared:
                self.head = Net()
            else:
                self.head = nn.Linear(4, 1)
            self.parameters += list(self.head.parameters())
            if pose is not None:
                self.tail = Net()
            if pose is not None:
                self.parameters += list(self.tail.parameters())
                self.optimizer = torch.optim.SGD(self.parameters, lr=0.1)

        def fit(self):
            for x, y in DataLoader(data, batch_size=4):
                self.optimizer.zero_grad()
                F.mse_loss(self.head(x), y).backward()
                self.optimizer.step()


    Trainer(False, False).fit()
    """


def test_a_module_that_a_condition_makes_is_in_the_engine_where_it_is_there(tmp_path: Path) -> None:
    text = convert(tmp_path, body(SEVERAL))
    modules = " ".join(text.partition("ModuleList(")[2].partition("optimizer=")[0].split())
    assert '*([self.pose] if hasattr(self, "pose") else [])' in modules
    assert '*([self.models["mask"]] if "mask" in self.models else [])' in modules
    assert "self.tail" in modules and 'hasattr(self, "tail")' not in modules
    assert "self.head" in modules and 'hasattr(self, "head")' not in modules and '"depth" in' not in modules


LISTED = """
    import itertools

    members = MEMBERS
    optimizer = torch.optim.Adam(PARAMETERS, lr=0.1)
    for x, y in DataLoader(data, batch_size=4):
        loss = sum(F.mse_loss(member(x), y) for member in members)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    """


@pytest.mark.parametrize(
    "parameters",
    [
        "itertools.chain(*[m.parameters() for m in members])",
        "[p for m in members for p in m.parameters()]",
        "sum([list(m.parameters()) for m in members], [])",
    ],
)
@pytest.mark.parametrize(
    ("members", "module"),
    [
        ("[Net() for _ in range(3)]", "nn.ModuleList([*members])"),
        ("[nn.Linear(4, 1), Net()]", "nn.ModuleList([*members])"),
        ("nn.ModuleList([Net(), Net()])", "members"),
    ],
)
def test_one_optimizer_holds_a_list_of_modules(members: str, module: str, parameters: str, tmp_path: Path) -> None:
    after = convert(tmp_path, body(LISTED.replace("MEMBERS", members).replace("PARAMETERS", parameters)))
    assert f"    model={module},\n    optimizer=optimizer,\n" in after
    assert "F.mse_loss(member(x), y) for member in members" in after


def test_one_optimizer_holds_a_dict_of_modules(tmp_path: Path) -> None:
    text = LISTED.replace("MEMBERS", '{"a": Net(), "b": nn.Linear(4, 1)}').replace(
        "in members)", "in members.values())"
    )
    after = convert(tmp_path, body(text.replace("PARAMETERS", "[p for m in members.values() for p in m.parameters()]")))
    assert "    model=nn.ModuleList([*members.values()]),\n" in after


def test_a_list_of_modules_is_not_named_by_one_of_them(tmp_path: Path) -> None:
    text = """
    def make(members):
        return torch.optim.Adam([p for m in members for p in m.parameters()], lr=0.1)


    members = [Net() for _ in range(3)]
    for member in members:
        member.train()
    optimizer = make(members)
    for x, y in DataLoader(data, batch_size=4):
        loss = sum(F.mse_loss(member(x), y) for member in members)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    """
    after = convert(tmp_path, body(text))
    assert "    model=EngineModule(optimizer),\n" in after and "member(x)" in after


CONFIGURED = """
    def prepare(cfg):
        optimizer = torch.optim.SGD(cfg.model.parameters(), lr=cfg.lr)
        return cfg, optimizer


    def fit(cfg, loader):
        cfg, optimizer = prepare(cfg)
        for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(cfg.model(x), y).backward()
            optimizer.step()


    def main(model):
        cfg = DotMap()
        cfg.model = model
        cfg.lr = 0.1
        fit(cfg, DataLoader(data, batch_size=4))


    main(Net())
    """


def test_the_engine_is_of_the_model_that_a_dict_with_attributes_holds(tmp_path: Path) -> None:
    after = convert(tmp_path, "from dotmap import DotMap\n" + body(CONFIGURED))
    assert 'model=cfg["model"],' in after


STARRED = """
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)


    def make(*modules):
        parameters = [p for m in modules for p in m.parameters()]
        return torch.optim.Adam(parameters, lr=0.1)


    two, other = Two(), Net()
    optimizer = make(MODULES)
    for x, y in DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        F.mse_loss(two.head(two.body(x)) + other(x), y).backward()
        optimizer.step()
    """


@pytest.mark.parametrize(
    ("modules", "held"), [("two.body, two.head", "two"), ("two, other", "nn.ModuleList([two, other])")]
)
def test_modules_that_a_star_takes_are_those_of_the_call(modules: str, held: str, tmp_path: Path) -> None:
    assert f"    model={held},\n" in convert(tmp_path, body(STARRED.replace("MODULES", modules)))


@pytest.mark.parametrize(
    ("model", "params"),
    [
        ("nn.Sequential(Net())", "[model[0].fc.weight]"),
        ("Net()", '[{"params": [model.fc.weight], "lr": 0.2}, {"params": [model.fc.bias]}]'),
        ("nn.Linear(4, 1)", "[model.weight, model.bias]"),
        ("Net()\nhead = model.fc", "[head.weight]"),
    ],
)
def test_single_parameters_of_parts_of_a_module_are_followed_to_it(tmp_path: Path, model: str, params: str) -> None:
    text = LOOP.replace("model = Net()", f"model = {model}").replace("model.parameters()", params)
    after = convert(tmp_path, HEADER + text)
    assert "    model=model,\n" in after and '"zero_optimization": {"stage": 0}' in after


def test_attributes_of_what_is_no_module_are_not_taken_for_its_parameters(tmp_path: Path) -> None:
    text = LOOP.replace("model = Net()", "import state\n\nmodel = Net()\nkept = state.load()")
    ((code, message),) = blocked(tmp_path, HEADER + text.replace("model.parameters()", "[kept.fc.weight]"))
    assert code == "DSM601" and "kept.fc.weight cannot be followed to a module" in message


@pytest.mark.parametrize("made", ["Encoder()", 'CLIPTextModel.from_pretrained("clip")'])
def test_a_part_that_a_model_is_asked_for_belongs_to_the_model(made: str, tmp_path: Path) -> None:
    text = f"""
        from transformers import CLIPTextModel


        class Encoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.tokens = nn.Embedding(8, 4)

            def get_input_embeddings(self):
                return self.tokens

            def forward(self, ids):
                return self.tokens(ids)


        encoder = {made}
        optimizer = torch.optim.AdamW(encoder.get_input_embeddings().parameters(), lr=0.1)
        for x, y in DataLoader(data, batch_size=4):
            F.mse_loss(encoder(x), y).backward()
            grads = encoder.get_input_embeddings().weight.grad
            others = torch.arange(8) != 2
            grads.data[others, :] = grads.data[others, :].fill_(0)
            optimizer.step()
            optimizer.zero_grad()
        """
    after = convert(tmp_path, body(text))
    assert "model=encoder," in after and '"stage": 0' in after and "mean_over_ranks" not in after


ADAPTERS = """
    class Trainer:
        def __init__(self, model):
            self.model = model
            self.params = []
            for i in range(len(model)):
                adapter = model[i] = Adapter(model[i])
                self.params += [adapter.A, adapter.B]
            self.optimizer = torch.optim.SGD(self.params, lr=0.1)

        def restart(self):
            self.optimizer = torch.optim.SGD(list(self.params), lr=0.01)

        def train(self):
            for x, y in DataLoader(data, batch_size=4):
                OWN_STEP


    class Adapter(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base
            self.A = nn.Parameter(torch.randn(4, 2))
            self.B = nn.Parameter(torch.zeros(2, 4))

        def forward(self, x):
            return self.base(x) + x @ self.A @ self.B


    trainer = Trainer(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    trainer.train()
    trainer.restart()
    trainer.train()
    """


def test_parameters_that_a_loop_collects_of_one_module_after_another_are_not_those_of_the_last(tmp_path: Path) -> None:
    after = convert(tmp_path, body(ADAPTERS))
    assert after.count("model=EngineModule(self.optimizer),") == 2 and "model=adapter" not in after
    text = ADAPTERS.replace("SGD(self.params,", "SGD([*self.params, *head.parameters()],")
    text = text.replace("trainer = ", "head = nn.Linear(4, 1)\n    trainer = ")
    ((code, message),) = blocked(tmp_path, body(text))
    assert code == "DSM601" and "some are of modules that have no name there" in message


def test_a_module_made_beside_its_optimizer_in_each_round_of_a_loop_keeps_its_name(tmp_path: Path) -> None:
    text = """
        def make_optimizer(model):
            return torch.optim.SGD(list(model.parameters()), lr=0.1)


        for fold in range(3):
            model = Net()
            optimizer = make_optimizer(model)
            for x, y in DataLoader(data, batch_size=4):
                STEP
        """
    assert "    model=model,\n" in convert(tmp_path, body(text))


@pytest.mark.parametrize("given", ["self.model", "model=self.model"])
def test_a_variable_that_is_bound_behind_the_optimizer_does_not_name_its_model(given: str, tmp_path: Path) -> None:
    """The engine was given ``model``, which the next line binds: UnboundLocalError."""
    text = """
        class Training:
            def __init__(self, model):
                self.model = model

            def make_optimizer(self, model):
                return torch.optim.SGD(model.parameters(), lr=0.1)

            def train(self, device=None):
                optimizer = self.make_optimizer(GIVEN)
                model = self.model
                if device:
                    model = model.to(device)
                for x, y in DataLoader(data, batch_size=4):
                    optimizer.zero_grad()
                    F.mse_loss(model(x), y).backward()
                    optimizer.step()

        Training(Net()).train()
        """
    assert "            model=self.model,\n" in convert(tmp_path, body(text.replace("GIVEN", given)))


WEIGHTED = """
def train(is_weighted, kind):
    if kind == "net":
        model = Net()
    else:
        raise ValueError(kind)
    if is_weighted:
        weights = Net()
        params = list(model.parameters()) + list(weights.parameters())
    else:
        params = list(model.parameters())
    optimizer = torch.optim.SGD(params, lr=0.1)
    for x, y in DataLoader(data, batch_size=4):
        loss = F.mse_loss(model(x), y)
        STEP


train(False, "net")
"""


def test_a_variable_that_a_condition_sets_is_in_the_engine_where_it_is_there(tmp_path: Path) -> None:
    text = convert(tmp_path, body(WEIGHTED))
    assert 'ModuleList([model, *([weights] if "weights" in locals() else [])]),' in text


def test_ranks_start_before_an_engine_that_stands_above_the_first_statement(tmp_path: Path) -> None:
    """Without a launcher DeepSpeed looked for MPI: the engine of an optimizer among arguments was made first."""
    made = "torch.optim.SGD(model.parameters(), lr=0.1)"
    making = f"\n\ndef make_trainer(model):\n    return Trainer(model, {made})\n"
    main = "from train import *\nmake_trainer(Net()).fit(DataLoader(data, batch_size=4))\n"
    test = f"def test_it():\n    {main.splitlines()[1]}\n"
    report = run(tmp_path, train=body(GIVEN_TRAINER) + making, test_train=f"{main.splitlines()[0]}\n\n\n{test}")
    after = next(file.after for file in report.files if file.path.name == "train.py")
    assert f"def make_trainer(model):\n    init_distributed()\n    sgd_optimizer = {made}\n" in (after or b"").decode()


def test_a_model_on_a_base_of_transformers_is_a_module_with_its_parts(tmp_path: Path) -> None:
    text = """
    from transformers import BertModel, BertPreTrainedModel


    class Tagger(BertPreTrainedModel):
        def __init__(self, config):
            super().__init__(config)
            self.bert = BertModel(config)
            self.out = nn.Linear(4, 1)

        def forward(self, x):
            return self.out(self.bert(x)[0])


    model = Tagger(config)
    groups = [{"params": model.bert.parameters()}, {"params": model.out.parameters(), "lr": 1.0}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    for x, y in DataLoader(data, batch_size=4):
        loss = F.mse_loss(model(x), y)
        model.zero_grad()
        loss.backward()
        optimizer.step()
    """
    after = convert(tmp_path, body(text))
    assert "    model=model,\n" in after and "model.zero_grad()" not in after


def test_parameters_in_the_order_of_a_set_have_no_shares_by_that_order(tmp_path: Path) -> None:
    """Stage 1 gives each rank a share of them, and each process has another order."""
    after = convert(tmp_path, HEADER + LOOP.replace("model.parameters()", "list(set(model.parameters()))"))
    assert '"zero_optimization": {"stage": 0}' in after
