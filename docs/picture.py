"""Draws docs/finding.svg: what the first command of the README prints, as a picture.

    python docs/picture.py                  scans the example and draws what was found
    python docs/picture.py DIAGNOSIS.json   draws what was saved

The picture holds its text as text, and loads nothing: the reader's own monospaced font is used.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from fp16doctor.report.terminal import render_terminal
from fp16doctor.schema.codec import load

ROOT = Path(__file__).parents[1]
EXAMPLE = "examples/overflow_in_ffn.py"
TARGET = ROOT / "docs" / "finding.svg"
WIDTH = 100  # columns at which prose is wrapped
COLUMN, LINE = 12.2, 24.4  # units of the drawing, as rich lays out text
THEME = TerminalTheme(
    (255, 255, 255),
    (31, 35, 40),
    [(36, 41, 47), (179, 29, 40), (17, 99, 41), (133, 77, 14),
     (9, 80, 174), (110, 52, 170), (20, 96, 110), (90, 96, 104)],
)  # fmt: skip
# Rich's own frame loads fonts from the network.
FRAME = """\
<svg viewBox="-16 -16 @WIDTH@ @HEIGHT@" role="img"
 xmlns="http://www.w3.org/2000/svg"><title>fp16doctor scan overflow_in_ffn.py</title>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace;
 font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs>{lines}</defs>
<rect x="-16" y="-16" width="@WIDTH@" height="@HEIGHT@" rx="8" fill="#ffffff" stroke="#d0d7de"/>
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</svg>
"""


def picture(document: Path) -> str:
    """Return the SVG of a saved diagnosis, the same each time."""
    stem = document.stem
    text = render_terminal(
        load(document),
        color=True,
        width=WIDTH,
        outputs=(f"{stem}.html", f"{stem}.json"),
        verbose=False,
    )
    shown = Text.from_ansi(text.rstrip("\n"))
    lines = shown.plain.splitlines()
    columns = max(map(len, lines))
    console = Console(width=columns, record=True, file=io.StringIO(), color_system="truecolor")
    console.print(shown)
    size = {"@WIDTH@": columns * COLUMN + 32, "@HEIGHT@": len(lines) * LINE + 32}
    frame = FRAME
    for name, value in size.items():
        frame = frame.replace(name, f"{value:.0f}")
    svg = console.export_svg(theme=THEME, code_format=frame, unique_id="finding")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def scanned(folder: Path) -> Path:
    """Scan the example; return the diagnosis."""
    document = folder / "fp16doctor-overflow_in_ffn.json"
    options = ("-q", "--budget", "600", "--json", str(document))  # on a busy machine, too
    command = [sys.executable, "-m", "fp16doctor", "scan", *options, EXAMPLE]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    return document


def main() -> None:
    """Draw what the command line asks for."""
    with tempfile.TemporaryDirectory() as folder:
        document = Path(sys.argv[1]) if len(sys.argv) > 1 else scanned(Path(folder))
        TARGET.write_text(picture(document), encoding="utf-8")


if __name__ == "__main__":
    main()
