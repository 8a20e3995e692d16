"""Make the README's pictures from a real run: ``python docs/images/preview.py``.

``ds-migrate`` runs on a fixture as it would in a colour terminal of ``COLUMNS`` columns. Rows outside of ``SHOWN`` are
left out, and a row says how many. One picture each for dark and light pages.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from html import unescape
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parents[2]
COMMAND = ["ds-migrate", "fixtures/guide/before"]
COLUMNS = 104


def _theme(page: str, normal: str, bright: str) -> TerminalTheme:
    def colours(text: str) -> list[tuple[int, int, int]]:
        return [(int(word[1:3], 16), int(word[3:5], 16), int(word[5:7], 16)) for word in text.split()]

    return TerminalTheme(*colours(page), colours(normal), colours(bright))


# Parts to show: words in the first row, how many rows before it belong to it, words in the last row.
SHOWN = [
    ("model_def.py", 0, "───"),
    ("class MyTrial(PyTorchTrial)", 0, "class MyTrial(DeepSpeedTrial)"),
    ("optimizer = torch.optim.Adam", 0, "self.criterion = "),
    ("DSM310 train_batch", 0, 'return {"loss"'),
    ("trial in", 1, "ds-verify"),
]
THEMES = {  # background and foreground; black, red, green, yellow, blue, magenta, cyan, white; the same, bright
    "dark": _theme(
        "#161b22 #e6edf3",
        "#484f58 #ff7b72 #56d364 #e3b341 #79c0ff #d2a8ff #56d4dd #b1bac4",
        "#8b949e #ffa198 #7ee787 #f2cc60 #a5d6ff #e2c5ff #76e3ea #f0f6fc",
    ),
    "light": _theme(
        "#ffffff #1f2328",
        "#24292f #cf222e #116329 #7d4e00 #0969da #8250df #1b7c83 #6e7781",
        "#656d76 #a40e26 #1a7f37 #633c01 #218bff #a475f9 #3192aa #8c959f",
    ),
}
BORDERS = {"dark": "#30363d", "light": "#d0d7de"}

# rich's own frame loads a font from the web, which a picture on a page may not.
FRAME = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="$title">
<title>$title</title>
<style>
.{unique_id}-matrix {{
  font: {char_height}px ui-monospace, SFMono-Regular, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  line-height: {line_height}px;
}}
.{unique_id}-title {{ font: 17px ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif; opacity: 0.7; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def output(theme: str) -> list[Text]:
    """Return the rows of a terminal with that background."""
    environment = {
        **os.environ,
        "COLUMNS": str(COLUMNS),
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "COLORFGBG": "0;15" if theme == "light" else "15;0",
        "PYTHONIOENCODING": "utf-8",
    }
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "ds_migrate", *COMMAND[1:], "--color", "always"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True, encoding="utf-8")
    return [Text.from_ansi(line) for line in run.stdout.splitlines()]


def excerpt(rows: Sequence[Text]) -> Iterator[Text]:
    """Yield the parts to show; raise ValueError when the output lacks one of them."""
    after = 0
    for first, rows_before, last in SHOWN:
        start = _find(rows, first, after) - rows_before
        end = _find(rows, last, start) + 1
        if start > after:
            yield Text(f"       ⋯  {start - after} rows", "bright_black")
        yield from rows[start:end]
        after = end


def _find(rows: Sequence[Text], words: str, start: int) -> int:
    for index in range(start, len(rows)):
        if words in rows[index].plain:
            return index
    raise ValueError(f"no row with {words!r} in the output of {' '.join(COMMAND)} after row {start}")


def picture(theme: str) -> str:
    """Return the SVG for pages with that background."""
    console = Console(record=True, file=io.StringIO(), width=COLUMNS, force_terminal=True, color_system="truecolor")
    console.print(Text.assemble(("$ ", "bright_black"), (" ".join(COMMAND), "bold")))
    console.print()
    for row in excerpt(output(theme)):
        console.print(row, no_wrap=True, overflow="ignore", crop=False)
    title = " ".join(COMMAND)
    frame = FRAME.replace("$title", title)
    svg = console.export_svg(
        title=" ", theme=THEMES[theme], code_format=frame, font_aspect_ratio=0.602, unique_id=theme
    )
    return svg.replace('stroke="rgba(255,255,255,0.35)"', f'stroke="{BORDERS[theme]}"')


def words(svg: str) -> list[str]:
    """Return the pieces of text in a picture, without their looks."""
    return [unescape(piece).replace("\xa0", " ").strip() for piece in re.findall(r"<text [^>]*>([^<]*)</text>", svg)]


if __name__ == "__main__":
    for name in THEMES:
        Path(__file__).with_name(f"preview-{name}.svg").write_text(picture(name), encoding="utf-8")
