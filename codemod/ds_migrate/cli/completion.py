"""Scripts that teach a shell the command line: made from the options themselves, so that they cannot fall behind."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ds_migrate.cli.arguments import SHELLS
from ds_migrate.cli.parser import make_parser
from ds_migrate.rules.codes import Code

_PROGRAM = "ds-migrate"


@dataclass(frozen=True)
class Option:
    """``values`` are what may follow it; None when it takes no value, empty when anything may follow."""

    flags: Sequence[str]
    help: str
    values: Sequence[str] | None


def script(shell: str) -> str:
    """The script for ``bash``, ``zsh`` or ``fish``."""
    makers = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    assert makers.keys() == set(SHELLS)
    return makers[shell](list(_options()))


def _options() -> Iterator[Option]:
    for action in make_parser()._actions:
        if not action.option_strings or action.help == argparse.SUPPRESS:
            continue
        values: list[str] | None = None
        if action.dest == "explain":
            values = [code.value for code in Code]
        elif action.nargs != 0:
            values = [str(choice) for choice in action.choices or ()]
        yield Option(action.option_strings, (action.help or "").replace("%%", "%"), values)


def _bash(options: Sequence[Option]) -> str:
    flags = " ".join(flag for option in options for flag in option.flags)
    cases = [
        f"    {'|'.join(option.flags)}) COMPREPLY=($(compgen -W '{' '.join(option.values)}' -- \"$word\")); return ;;"
        for option in options
        if option.values
    ]
    return "\n".join(
        [
            f"# bash completion of {_PROGRAM}: source it,",
            f"# or save it as {_PROGRAM} in ~/.local/share/bash-completion/completions/",
            "_ds_migrate() {",
            '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
            # bash takes "--zero=1" apart at the sign
            '  if [[ $word == = ]]; then word=; elif [[ $before == = ]]; then before="${COMP_WORDS[COMP_CWORD-2]}"; fi',
            '  case "$before" in',
            *cases,
            "  esac",
            "  if [[ $word == -* ]]; then",
            f"    COMPREPLY=($(compgen -W '{flags}' -- \"$word\"))",
            "  else",
            '    COMPREPLY=($(compgen -f -- "$word"))',
            "    compopt -o filenames 2>/dev/null",
            "  fi",
            "}",
            f"complete -F _ds_migrate {_PROGRAM}",
        ]
    )


def _zsh(options: Sequence[Option]) -> str:
    def quoted(text: str) -> str:
        return text.replace("'", "'\\''").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")

    specs = []
    for option in options:
        value = "" if option.values is None else f":value:({' '.join(option.values)})" if option.values else ":value:"
        equals = "" if option.values is None else "="
        others = f"({' '.join(option.flags)})" if len(option.flags) > 1 else ""
        for flag in option.flags:
            sign = equals if flag.startswith("--") else ""
            specs.append(f"  '{others}{flag}{sign}[{quoted(option.help)}]{value}' \\")
    return "\n".join([f"#compdef {_PROGRAM}", "_arguments \\", *specs, "  '*:path:_files'"])


def _fish(options: Sequence[Option]) -> str:
    def quoted(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    lines = [f"# fish completion of {_PROGRAM}: save it as {_PROGRAM}.fish in ~/.config/fish/completions/"]
    for option in options:
        names = [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags]
        value = "" if option.values is None else f" -x -a {quoted(' '.join(option.values))}" if option.values else " -r"
        lines.append(f"complete -c {_PROGRAM} {' '.join(names)} -d {quoted(option.help)}{value}")
    return "\n".join(lines)
