"""Commands of a program that do not train: their code stays as it is, whatever ranks would do there."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_migrate.findings import Severity
from plain_loops import LOOP, body, run

SERVICE = """\
import subprocess


class Service:
    def stop(self):
        print("stopping")
        subprocess.run(["systemctl", "stop", "daemon"])


def stop_service(args):
    Service().stop()


def note(text):
    print(text)
"""
TRAIN = body("""
from service import note

data = TensorDataset(torch.ones(8, 4), torch.ones(8, 1))


def train(args):
    note("training")
""") + "".join(f"    {line}\n" for line in LOOP.splitlines())  # fmt: skip
REGISTERED = """\
import argparse

import service
import train


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    commands.add_parser("train").set_defaults(func=train.train)
    commands.add_parser("stop").set_defaults(func=lambda args: service.stop_service(args))
    args = parser.parse_args()
    args.func(args)


if __name__ == "__main__":
    main()
"""
COMPARED = """\
import argparse

import service
import train


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    args = parser.parse_args()
    if args.command == "stop":
        service.stop_service(args)
        RETURN
    ELSE train.train(args)


if __name__ == "__main__":
    main()
"""
BRANCHES = COMPARED.replace("RETURN", "pass").replace("ELSE train", "else:\n        train")
LEFT = COMPARED.replace("RETURN", "return").replace("ELSE ", "")
BOTH = COMPARED.replace("RETURN", "pass").replace("ELSE ", "")
FLAG = LEFT.replace('if args.command == "stop"', "if args.stop")
REPEATED = BRANCHES.replace("    main()", "    for _ in range(2):\n        main()")


def _service(folder: Path, cli: str) -> tuple[str, list[str]]:
    report = run(folder, cli=cli, train=TRAIN, service=SERVICE)
    after = {file.path.name: (file.after or b"").decode() for file in report.files}
    assert "deepspeed" in after["train.py"]
    reviews = [f.message for file, f in report.findings(Severity.REVIEW) if file.path.name == "service.py"]
    return after.get("service.py", ""), reviews


@pytest.mark.parametrize("cli", [REGISTERED, BRANCHES, LEFT])
def test_a_command_that_does_not_train_stays_as_it_is(tmp_path: Path, cli: str) -> None:
    service, reviews = _service(tmp_path, cli)
    assert not reviews
    assert '        print("stopping")\n' in service
    assert "if is_main_rank():\n        print(text)" in service  # the loop calls it


@pytest.mark.parametrize("cli", [BOTH, FLAG, REPEATED])
def test_code_that_a_run_may_come_to_beside_the_loop_gets_its_guards(tmp_path: Path, cli: str) -> None:
    service, reviews = _service(tmp_path, cli)
    assert "every rank runs this command, at the same time" in reviews
    assert 'is_main_rank():\n            print("stopping")' in service
