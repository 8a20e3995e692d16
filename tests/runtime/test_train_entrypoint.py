"""All forms of an experiment config's entrypoint."""

import re

import pytest
from trial_runtime.train.config.entrypoint import Entrypoint, parse


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("model_def:MyTrial", Entrypoint("class", "model_def:MyTrial")),
        (["model_def:MyTrial"], Entrypoint("class", "model_def:MyTrial")),
        ("pkg.trials.mnist:MyTrial", Entrypoint("class", "pkg.trials.mnist:MyTrial")),
        ("model-def:MyTrial", Entrypoint("class", "model-def:MyTrial")),
        ("my_lib.trial:holder.MyTrial", Entrypoint("class", "my_lib.trial:holder.MyTrial")),
        ("python3 -m determined.exec.harness model-def:Outer.T", Entrypoint("class", "model-def:Outer.T")),
        ("python3 train.py", Entrypoint("script", "train.py")),
        ("python train.py --lr 1e-3 'a b'", Entrypoint("script", "train.py", ("--lr", "1e-3", "a b"))),
        (["python3", "train.py", 3], Entrypoint("script", "train.py", ("3",))),
        ("/usr/bin/python3.11 src/train.py", Entrypoint("script", "src/train.py")),
        ("python3 -m pkg.train x", Entrypoint("module", "pkg.train", ("x",))),
        ("A=1 B=x=y python3 train.py", Entrypoint("script", "train.py", environment=(("A", "1"), ("B", "x=y")))),
        (
            "python3 -m determined.launch.torch_distributed python3 train.py --a",
            Entrypoint("script", "train.py", ("--a",)),
        ),
        (
            "python3 -m determined.launch.torch_distributed -- python3 train.py -- x",
            Entrypoint("script", "train.py", ("--", "x")),
        ),
        ("python3 -m determined.launch.torch_distributed --trial m:C", Entrypoint("class", "m:C")),
        (
            ["python3", "-m", "determined.launch.deepspeed", "--trial", "m:C"],
            Entrypoint("class", "m:C", layer="deepspeed"),
        ),
        ("python3 -m determined.launch.deepspeed --trial=m:C", Entrypoint("class", "m:C", layer="deepspeed")),
        ("python3 -m trial_runtime.launch.deepspeed python3 t.py", Entrypoint("script", "t.py", layer="deepspeed")),
        ("python3 -m determined.launch.autodeepspeed m:C", Entrypoint("class", "m:C", layer="deepspeed")),
        ("python3 -m determined.exec.harness m:C", Entrypoint("class", "m:C")),
    ],
)
def test_each_form_is_understood(value: object, expected: Entrypoint) -> None:
    assert parse(value) == expected


def test_options_of_the_launch_layer_are_named_as_dropped() -> None:
    entry = parse("python3 -m determined.launch.horovod --fusion-threshold-mb 1 --autohorovod -- --trial m:C")

    assert (entry.kind, entry.target, entry.layer) == ("class", "m:C", "horovod")
    assert entry.dropped == ("--fusion-threshold-mb 1 --autohorovod (options of the launch layer)",)


def test_options_of_the_interpreter_are_named_as_dropped() -> None:
    entry = parse("python3 -u -W ignore train.py")

    assert (entry.target, entry.args) == ("train.py", ())
    assert "-u -W ignore" in entry.dropped[0]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("bash run.sh", "ds-train starts Python on every slot, not 'bash'"),
        ("cd src && python3 train.py", "ds-train CONFIG.yaml DIR"),
        ("python3 prepare.py; python3 train.py", "one command on every slot, not a shell line"),
        ("./train.py", "write 'module:Class'"),
        ("", "write 'module:Class'"),
        (3, "write 'module:Class'"),
        ({"trial": "m:C"}, "write 'module:Class'"),
        ("python3", "write 'module:Class'"),
        ("python3 -c 'print(1)'", "put it into a script"),
        ("python3 'train.py", "quotes do not match"),
        ("torchrun --nproc-per-node 2 train.py", "resources.slots_per_trial"),
        ("deepspeed train.py", "resources.slots_per_trial"),
        ("python3 -m torch.distributed.run train.py", "resources.slots_per_trial"),
        ("python3 -m determined.launch.tensorflow python3 train.py", "'tensorflow' is not for PyTorch trials"),
        ("python3 -m determined.launch.deepspeed", "nothing to run"),
        ("python3 -m determined.launch.deepspeed --trial m:C extra", "exactly one module:Class"),
        ("python3 -m determined.launch.deepspeed --trial train.py", "exactly one module:Class"),
    ],
)
def test_anything_else_is_refused_with_what_to_write(value: object, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse(value)
