"""Plain training loops in classes of a model with several networks, as image translation is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain_loops import body, convert

NETWORKS = """
    def init_weights(net):
        net.apply(print)


    def init_net(net, gpu_ids=[]):
        if len(gpu_ids) > 0:
            net.to(gpu_ids[0])
            net = torch.nn.DataParallel(net, gpu_ids)
        init_weights(net)
        return net


    def define_net(width=4):
        net = Net()
        return init_net(net)


    class Model:
        def __init__(self):
            self.netG = define_net()
            self.netD = init_net(Net())
            self.optimizer_G = torch.optim.Adam(self.netG.parameters(), lr=0.1)
            self.optimizer_D = torch.optim.Adam(self.netD.parameters(), lr=0.1)

        def save(self):
            for name in ["G", "D"]:
                net = getattr(self, "net" + name)
                if isinstance(net, torch.nn.DataParallel):
                    net = net.module
                torch.save(net.state_dict(), name)

        def forward(self, x):
            self.fake = self.netG(x)

        def backward_D(self, y):
            self.loss_D = F.mse_loss(self.netD(y), self.fake.detach())
            self.loss_D.backward()

        def backward_G(self, y):
            self.loss_G = F.mse_loss(self.netD(y), self.fake)
            self.loss_G.backward()

        def optimize_parameters(self, x, y):
            self.forward(x)
            self.optimizer_D.zero_grad()
            self.backward_D(y)
            self.optimizer_D.step()
            self.optimizer_G.zero_grad()
            self.backward_G(y)
            self.optimizer_G.step()


    model = Model()
    for x, y in DataLoader(data, batch_size=4):
        model.optimize_parameters(x, y)
    model.save()
    """


def test_networks_from_one_function_have_an_engine_each(tmp_path: Path) -> None:
    after = convert(tmp_path, body(NETWORKS))
    assert "model=self.netG,\n            optimizer=self.optimizer_G," in after
    assert "model=self.netD,\n            optimizer=self.optimizer_D," in after
    assert "self.netD_engine.backward(self.loss_D, scale_wrt_gas=False)" in after
    assert "self.netG_engine.backward(self.loss_G, scale_wrt_gas=False)" in after
    assert "self.netD_engine.step()\n" in after and "self.netG_engine.step()\n" in after
    assert after.count("zero_grad()") == 2
    assert "net = torch.nn.DataParallel" not in after
    assert "if is_main_rank():\n                torch.save(net.state_dict(), name)" in after


def test_a_module_is_not_unwrapped_where_it_is_found_to_be_wrapped(tmp_path: Path) -> None:
    assert "                net = net.module\n" in convert(tmp_path, body(NETWORKS))


@pytest.mark.parametrize(
    "change",
    [
        ("        init_weights(net)\n", "        SEEN.append(net)\n"),
        ("        return net\n", "        return net if gpu_ids else SEEN[0]\n"),
        ("            net.to(gpu_ids[0])\n", "            net = SHARED\n"),
    ],
)
def test_engines_of_what_a_function_may_keep_clear_no_gradients(change: tuple[str, str], tmp_path: Path) -> None:
    text = body(NETWORKS).replace(
        "self.netG = define_net()\n", "self.netG = define_net()\n        self.netE = define_net()\n"
    )
    text = text.replace("def init_weights", "SEEN = []\nSHARED = Net()\n\n\ndef init_weights").replace(
        "init_net(Net())", "define_net()"
    )
    old, new = (part.removeprefix("    ") for part in change)
    assert old in text
    assert convert(tmp_path, text.replace(old, new, 1)).count(", keep_gradients=True)") == 2


def test_what_a_wrapper_holds_is_given_as_the_module_itself(tmp_path: Path) -> None:
    text = """
        def accumulate(average, model):
            for one, other in zip(average.parameters(), model.parameters()):
                one.data.mul_(0.9).add_(other.data, alpha=0.1)


        def train(model, average):
            for x, y in DataLoader(data, batch_size=4):
                STEP
                accumulate(average, model.module)


        model, average = nn.DataParallel(Net()), Net()
        optimizer = torch.optim.SGD(model.module.parameters(), lr=0.1)
        train(model, average)
        """
    after = convert(tmp_path, body(text))
    assert "        accumulate(average, model)\n" in after and ".module" not in after
