"""Code that no training runs: it stays as it is, whatever ranks would do there."""

from __future__ import annotations

import textwrap
from pathlib import Path

from ds_migrate.findings import Severity
from plain_loops import LOOP, body, run

SERVICE = """\
import subprocess


class Service:
    def stop(self):
        print("stopping")
        subprocess.run(["systemctl", "stop", "daemon"])


def stop_service():
    Service().stop()


def note(text):
    print(text)
"""
TRAIN = (
    body("""
        from service import note, stop_service

        __all__ = ["fit", "note", "stop_service"]


        def fit():
            note("training")
            data = TensorDataset(torch.ones(8, 4), torch.ones(8, 1))
        """)
    + textwrap.indent(LOOP, "    ")
    + '\n\nif __name__ == "__main__":\n    fit()\n'
)


def test_what_the_training_names_to_export_it_alone_stays_as_it_is(tmp_path: Path) -> None:
    report = run(tmp_path, service=SERVICE, train=TRAIN, tools="from train import stop_service\n\nstop_service()\n")
    after = {result.path.name: (result.after or b"").decode() for result in report.files}["service.py"]
    assert not [f for _, f in report.findings(Severity.REVIEW) if "command" in f.message]
    assert after.count("if is_main_rank():") == 1 and "if is_main_rank():\n        print(text)" in after
