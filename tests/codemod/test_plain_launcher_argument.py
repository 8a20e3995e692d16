"""The deepspeed launcher gives ``--local_rank`` to the script, wherever the script reads its command line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pytest
from ds_migrate.files.discovery import discover
from ds_migrate.findings import Report, Severity
from ds_migrate.pipeline import migrate
from ds_migrate.rules.codes import Code
from plain_loops import HEADER, LOOP, PLAIN, run

GIVEN = 'add_argument("--local_rank", type=int, default=-1, help="given by the deepspeed launcher")\n'
OPTIONS = """
import argparse


class Options:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)

    def parse(self):
        return self.parser.parse_args()


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    return parser.parse_args()


def unused():
    parser = argparse.ArgumentParser("tool")
    return parser.parse_args()


if __name__ == "__main__":
    parser = argparse.ArgumentParser("test")
"""
INHERITED = """
import argparse


def get_parser():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--lr", type=float, default=0.1)
    return parser


def get_args():
    parser: argparse.ArgumentParser = argparse.ArgumentParser("train", parents=[get_parser()])
    return parser.parse_args()
"""


def texts(report: Report) -> dict[str, str]:
    return {file.path.stem: (file.after or file.before or b"").decode() for file in report.files}


def reviews(report: Report) -> list[str]:
    return [f.message for _, f in report.findings(Severity.REVIEW) if f.code == Code.PLAIN_ARGUMENTS]


def parse(text: str, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a module parse the command line with which the deepspeed launcher starts a script."""
    monkeypatch.setattr(sys, "argv", ["train.py", "--local_rank=3", "--lr=0.2"])
    module: dict[str, Any] = {"__name__": "options"}
    exec(f"{text}\nargs = {call}", module)
    assert vars(module["args"]) == {"local_rank": 3, "lr": 0.2}


@pytest.mark.parametrize("call", ["Options().parse()", "get_args()"])
def test_a_parser_in_a_helper_file_takes_the_argument(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = call.partition("(")[0]
    train = f"from options import {name}\n{HEADER}args = {call}\n{LOOP}"
    after = texts(run(tmp_path, options=OPTIONS, train=train))["options"]
    assert after.count(GIVEN) == (1 if call == "Options().parse()" else 2) and reviews(run(tmp_path)) == []
    parse(after, call, monkeypatch)


@pytest.mark.parametrize("adds", [False, True])
def test_a_parser_of_a_class_of_the_program_takes_the_argument(
    adds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "        self.add_argument('--local_rank', type=int)\n" if adds else ""
    options = f"""
import argparse


class Parser(argparse.ArgumentParser):
    def __init__(self):
        super().__init__("train")
{own}

def get_args():
    parser = Parser()
    parser.add_argument("--lr", type=float)
    return parser.parse_args()
"""
    train = f"from options import get_args\n{HEADER}args = get_args()\n{LOOP}"
    after = texts(run(tmp_path, options=options, train=train)).get("options", options)
    assert after.count(GIVEN) == (0 if adds else 1)
    parse(after, "get_args()", monkeypatch)


def test_what_never_runs_with_the_loop_keeps_its_parser(tmp_path: Path) -> None:
    train = f"from options import get_args\n{HEADER}args = get_args()\n{LOOP}"
    after = texts(run(tmp_path, options=OPTIONS, train=train))["options"]
    assert 'ArgumentParser("tool")\n    return' in after and after.endswith('ArgumentParser("test")\n')


def test_one_of_a_parser_and_its_parents_takes_the_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = f"from options import get_args\n{HEADER}args = get_args()\n{LOOP}"
    after = texts(run(tmp_path, options=INHERITED, train=train))["options"]
    assert after.count(GIVEN) == 1 and f"[get_parser()])\n    parser.{GIVEN}" in after
    parse(after, "get_args()", monkeypatch)
    for name in ("--local_rank", "--local-rank"):
        known = INHERITED.replace('"--lr", type=float', f'"{name}", type=int')
        assert "options" not in texts(run(tmp_path, options=known, train=train))


def test_a_parser_to_which_another_file_adds_the_argument_stays(tmp_path: Path) -> None:
    added = "parser = get_parser()\nparser.add_argument('--local_rank', type=int)\nargs = parser.parse_args()\n"
    report = run(tmp_path, options=INHERITED, train=f"from options import get_parser\n{HEADER}{added}{LOOP}")
    assert GIVEN not in texts(report).get("options", "")


@pytest.mark.parametrize("group", ["add_argument_group('ranks')", "add_mutually_exclusive_group()"])
def test_a_parser_whose_group_has_the_argument_takes_no_second_one(group: str, tmp_path: Path) -> None:
    added = f"group = parser.{group}\ngroup.add_argument('--local_rank', type=int, default=0)\n"
    lines = f"import argparse\n\nparser = argparse.ArgumentParser()\n{added}args = parser.parse_args()\n"
    report = run(tmp_path, train=HEADER.replace("import torch\n", lines + "import torch\n", 1) + LOOP)
    after = (report.files[0].after or b"").decode()
    assert "shard(" in after and GIVEN not in after


def test_programs_that_share_a_parser_let_it_take_the_argument_once(tmp_path: Path) -> None:
    train = f"from options import get_args\n{HEADER}args = get_args()\n{LOOP}"
    report = run(tmp_path, options=INHERITED, first=train, second=train.replace("lr=0.1", "lr=args.lr"))
    after = texts(report)
    assert after["options"].count(GIVEN) == 1
    assert all("engine.step()" in after[name] for name in ("first", "second"))
    (options,) = [file for file in report.files if file.path.stem == "options"]
    assert len(options.findings) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("args = tyro.cli(Net)", "tyro.cli takes no --local_rank"),
        ("fire.Fire(Net)", "fire.Fire takes no --local_rank"),
        ("parser = argparse.ArgumentParser()\nNet(**vars(parser.parse_args()))", "the parser takes no --local_rank"),
        ("make(argparse.ArgumentParser())", "the parser takes no --local_rank"),
        ("args = argparse.ArgumentParser().parse_args()", "the parser takes no --local_rank"),
        ("parser = argparse.ArgumentParser()\nknown = vars(parser.parse_args())\nNet(**known)", "the parser takes no"),
    ],
)
def test_what_cannot_take_the_argument_is_for_review(line: str, message: str, tmp_path: Path) -> None:
    report = run(tmp_path, train=f"import argparse, fire, tyro\n{HEADER}{line}\n{LOOP}")
    (found,) = reviews(report)
    assert found.startswith(message)


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("name = sys.argv[1]", True),
        ("if len(sys.argv) == 2:\n    print(2)", True),
        ("_, name, rate = sys.argv", True),
        ("name, rate = sys.argv[1:]", True),
        ("found, left = getopt.getopt(sys.argv[1:], 'a')", True),
        ("print(sys.argv, sys.argv[0])", False),
        ("parser = argparse.ArgumentParser()\nargs = parser.parse_args(sys.argv[1:])", False),
    ],
)
def test_arguments_that_are_read_by_position_are_for_review(line: str, is_found: bool, tmp_path: Path) -> None:
    report = run(tmp_path, train=f"import argparse, getopt, sys\n{HEADER}{line}\n{LOOP}")
    message = "sys.argv is read by position, and the deepspeed launcher puts --local_rank first"
    assert reviews(report) == [message] * is_found
    assert "rank_0_decides" not in texts(report)["train"]


def test_a_parser_without_a_name_ignores_the_argument_where_it_parses_what_it_knows(tmp_path: Path) -> None:
    line = "args, _ = argparse.ArgumentParser().parse_known_args()\n"
    assert reviews(run(tmp_path, train=f"import argparse\n{HEADER}{line}{LOOP}")) == []


@pytest.mark.parametrize("begin", ["", "if data: "])
def test_a_parser_on_one_line_takes_the_argument_before_it_parses(
    begin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "p = argparse.ArgumentParser(); p.add_argument('--lr', type=float); args = p.parse_args()\n"
    after = texts(run(tmp_path, train=f"import argparse\n{HEADER}{begin}{lines}{LOOP}"))["train"]
    block = after[after.index(f"{begin.strip()}\n    p" if begin else "p = ") :].partition("loader = ")[0]
    monkeypatch.setattr(sys, "argv", ["train.py", "--local_rank=3", "--lr=0.2"])
    module: dict[str, Any] = {"data": [0], "argparse": argparse}
    exec(block, module)
    assert vars(module["args"]) == {"local_rank": 3, "lr": 0.2}


def test_a_parser_in_a_file_that_is_not_named_is_for_review(tmp_path: Path) -> None:
    (tmp_path / "options.py").write_text(INHERITED)
    script = tmp_path / "train.py"
    script.write_text(f"from options import get_args\n{HEADER}args = get_args()\n{LOOP}")
    report = migrate(discover([str(script)]), PLAIN)
    assert "engine.step()" in texts(report)["train"]
    assert reviews(report) == ["the parser takes no --local_rank, which the deepspeed launcher gives"]


@pytest.mark.parametrize("own", ["self.__dict__", "vars(self)"])
def test_attributes_of_an_object_are_no_arguments_of_the_script(own: str, tmp_path: Path) -> None:
    meter = f"class Meter:\n    def __str__(self):\n        return '{{val}}'.format(**{own})\n\n\n"
    parser = f"import argparse\n{HEADER}{meter}parser = argparse.ArgumentParser()\nargs = parser.parse_args()\n"
    assert GIVEN in texts(run(tmp_path, train=parser + LOOP))["train"]
