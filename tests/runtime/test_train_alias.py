"""`import determined` served by trial_runtime."""

import subprocess
import sys
import textwrap
from pathlib import Path

from forked_python import forked_python


def python(code: str, executable: str = sys.executable) -> str:
    """What ``code`` prints in a fresh interpreter, or one that has imported torch, that has the alias installed."""
    code = "from trial_runtime.train import determined_alias\ndetermined_alias.install()\n" + textwrap.dedent(code)
    done = subprocess.run([executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_both_names_are_the_same_modules() -> None:
    assert (
        python("""
        import warnings
        warnings.simplefilter("error")
        import determined as det
        import determined.errors
        from determined.errors import InvalidHP
        import trial_runtime
        assert det is trial_runtime and determined.errors is trial_runtime.errors
        assert InvalidHP is trial_runtime.InvalidHP is det.InvalidHP
        assert trial_runtime.__spec__.name == "trial_runtime"
        assert trial_runtime.errors.__spec__.name == "trial_runtime.errors"
        print("same")
        """)
        == "same\n"
    )


def test_a_module_the_runtime_lacks_is_an_import_error_with_a_reason() -> None:
    out = python("""
        try:
            from determined.keras import TFKerasTrial
        except ModuleNotFoundError as error:
            print(error.name, error)
    """)

    assert out.startswith("determined.keras No module named 'determined.keras': here 'determined' is 'trial_runtime'")


def test_the_common_package_of_older_releases_is_the_runtimes() -> None:
    out = python("""
        import determined_common
        from determined_common import check
        from determined_common.check import check_eq
        import determined.common
        assert determined_common is determined.common and check is determined.common.check
        check_eq(1, 1)
        determined_alias.uninstall()
        import sys
        print([name for name in sys.modules if name.startswith("determined_common")])
    """)
    assert out == "[]\n"


def test_attrdict_is_the_runtimes_where_there_is_no_other(tmp_path: Path) -> None:
    out = python(f"""
        import sys
        from attrdict import AttrDict
        from trial_runtime.pytorch import deepspeed as det_ds
        print(AttrDict is det_ds.AttrDict)
        del sys.modules["attrdict"]
        sys.path.insert(0, {str(tmp_path)!r})
        broken = "attrdict-2.0.1.dist-info"
        import pathlib
        pathlib.Path({str(tmp_path)!r}, "attrdict.py").write_text("AttrDict = 'own'")
        import attrdict
        print(attrdict.AttrDict)
        del sys.modules["attrdict"]
        pathlib.Path({str(tmp_path)!r}, broken).mkdir()
        pathlib.Path({str(tmp_path)!r}, broken, "METADATA").write_text("Name: attrdict\\nVersion: 2.0.1")
        import attrdict
        print(attrdict.AttrDict is det_ds.AttrDict)
    """, forked_python())  # fmt: skip

    assert out == "True\nown\nTrue\n"


def test_model_hub_is_the_runtimes_where_the_project_has_none(tmp_path: Path) -> None:
    out = python(f"""
        import sys
        import model_hub.huggingface as hf
        from model_hub import utils
        import trial_runtime.model_hub.huggingface
        print(hf is trial_runtime.model_hub.huggingface, utils is trial_runtime.model_hub.utils)
        try:
            import model_hub.mmdetection
        except ImportError as error:
            print(error)
        determined_alias.uninstall()
        print([name for name in sys.modules if name.startswith("model_hub")])
        determined_alias.install()
        import pathlib
        pathlib.Path({str(tmp_path)!r}, "model_hub.py").write_text("NAME = 'own'")
        sys.path.insert(0, {str(tmp_path)!r})
        import model_hub
        print(model_hub.NAME)
    """, forked_python())  # fmt: skip

    same, refused, gone, own = out.splitlines()
    assert (same, gone, own) == ("True True", "[]", "own")
    assert refused.startswith(
        "model_hub.mmdetection has no counterpart: mmdetection's last release is from January 2024"
    )


def test_spawned_children_have_it_too(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(
        "import multiprocessing\n"
        "if __name__ == '__main__':\n"
        "    from trial_runtime.train import determined_alias\n"
        "    determined_alias.install()\n"
        "import determined.errors\n"
        "def work(queue): queue.put((__name__, determined.__name__, determined.errors.__name__))\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    queue = context.Queue()\n"
        "    child = context.Process(target=work, args=(queue,))\n"
        "    child.start(); print(queue.get(timeout=200)); child.join()\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=200)

    assert done.stdout == "('__mp_main__', 'trial_runtime', 'trial_runtime.errors')\n", done.stderr


def test_it_can_be_undone() -> None:
    out = python("""
        import sys
        path = list(sys.path)
        import determined
        determined_alias.install()
        determined_alias.uninstall()
        assert "determined" not in sys.modules
        determined_alias.uninstall()
        assert not any("shim" in entry for entry in sys.path)
        print("undone")
    """)

    assert out == "undone\n"


def test_it_refuses_to_come_after_the_real_package() -> None:
    out = python("""
        determined_alias.uninstall()
        import sys, types
        sys.modules["determined"] = types.ModuleType("determined")
        try:
            determined_alias.install()
        except RuntimeError as error:
            print(error)
    """)

    assert "'determined' is already imported" in out
