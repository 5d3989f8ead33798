"""Lines of text of one width: wrapped, labelled, in columns, and coloured where that is asked for.

Must not know what is said; colour is added to words that also stand there without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from fp16doctor.report import wording

NARROWEST = 40
_LONGEST = 240  # a longer word is cut in the middle; the page has all of it
_STYLES = {
    "error": "bold red",
    "warning": "bold yellow",
    "note": "bold cyan",
    "clear": "bold green",
    "unknown": "bold yellow",
    "verified": "green",
    "refuted": "red",
    "not verified": "yellow",
    "label": "dim",
    "strong": "bold",
}


class Lines:
    """Lines that are added one after the other."""

    def __init__(self, width: int, color: bool) -> None:
        self.width, self._color = max(width, NARROWEST), color
        self.lines: list[str] = []

    def put(
        self,
        text: str,
        *,
        indent: int = 0,
        label: str = "",
        style: str = "label",
        strong: bool = False,
    ) -> None:
        """Add wrapped text behind a label of ``indent`` columns; words stay whole, to be copied."""
        body = wrapped(text, self.width - indent) or [""]
        first = self.paint(label, style) + " " * (indent - len(label))
        for i, line in enumerate(body):
            shown = self.paint(line, "strong") if strong else line
            self.lines.append((first if i == 0 else " " * indent) + shown)

    def code(self, text: str, *, indent: int, label: str = "") -> None:
        """Add lines of code as they are: wrapped, they could not be pasted."""
        for i, line in enumerate(text.splitlines()):
            shown = "" if i else label
            gap = " " * (indent - len(shown))
            self.lines.append(self.paint(shown, "label") + gap + cut(line))

    def heading(self, head: str, text: str, style: str) -> None:
        """Add a coloured head and the text behind it, continued two columns in."""
        first, *rest = wrapped(f"{head} {text}", self.width, later=2)
        self.lines += [first.replace(head, self.paint(head, style), 1), *rest]

    def gap(self) -> None:
        """Add an empty line."""
        self.lines.append("")

    def columns(self, rows: Sequence[Sequence[str]]) -> None:
        """Add rows of cells of one width a column, two columns in; the first row is the head."""
        for i, line in enumerate(aligned([[cut(cell) for cell in row] for row in rows])):
            line = line.rstrip()
            self.lines.append("  " + (line if i else self.paint(line, "label")))

    def paint(self, text: str, style: str) -> str:
        """Colour a word, where colours are asked for."""
        if not self._color or not text:
            return text
        from rich.color import ColorSystem
        from rich.style import Style

        return Style.parse(_STYLES[style]).render(text, color_system=ColorSystem.STANDARD)

    def text(self) -> str:
        """All of it, ended by a line feed."""
        return "\n".join(line.rstrip() for line in self.lines) + "\n"


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Each row as one line, every column as wide as its widest cell."""
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(padded(cell, size) for cell, size in zip(row, widths, strict=True))


def padded(text: str, width: int) -> str:
    """``text`` filled up with spaces to ``width`` columns of a terminal."""
    return text + " " * (width - cells(text))


def wrapped(text: str, width: int, *, later: int = 0) -> list[str]:
    """Break at single spaces alone, so that ``46.9 %``, paths and hyphenated names stay whole.

    Lines from the second on begin with ``later`` spaces. A word wider than the line gets its own.
    """
    lines: list[str] = []
    line = ""
    for word in _words(cut(text)):
        if line.strip() and cells(line) + cells(word) > width:
            lines.append(line)
            line = " " * later
        line += word if line.strip() else word.lstrip(" ")
    return [*lines, line] if line.strip() else lines


def _words(text: str) -> Iterable[str]:
    """Words, each with the spaces in front of it."""
    return re.findall(r" *[^ ]+", text)


def cells(text: str) -> int:
    """How many columns of a terminal ``text`` takes: two for 模, none for a combining accent."""
    if text.isascii():
        return len(text)
    try:
        from rich.cells import cell_len
    except ImportError:  # the script has a module of that name
        return len(text)
    return cell_len(text)


def cut(text: str) -> str:
    """Shorten endless words in their middle."""
    return " ".join(wording.shortened(word, _LONGEST) for word in text.split(" "))
