"""Whether a script asks for a CUDA device, or a framework for fp16, read as text before it runs.

Must not know what follows from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

WORD = "cuda"
MOST_FILES = 200  # of the script's folder and the packages in it that are read
MOST_BYTES = 1_000_000  # of each


# fp16 as Trainer, Accelerator and Lightning are asked for it: they have it on a GPU only.
_FP16_WANTED = re.compile(
    r"""\b(?:--)?fp16(?:\s*=\s*True\b|\Z)|\bmixed_precision\s*=\s*["']?fp16\b|\b16-(?:mixed|true)\b"""
    r"""|\bprecision\s*=\s*["']?16\b|\baccelerator\s*=\s*["'](?:gpu|cuda)\b"""
)
_FRAMEWORK = re.compile(r"\b(?:transformers|accelerate|lightning|pytorch_lightning)\b")


def fp16_wanted(source: str | bytes | None, argv: tuple[str, ...]) -> bool:
    """Tell whether a script, or its arguments, ask a framework for fp16 or for a GPU.

    A framework that finds no GPU trains in another format, or refuses.
    """
    text = source.decode(errors="replace") if isinstance(source, bytes) else source or ""
    words = (*(w.lstrip("-") for w in argv), text)
    return bool(_FRAMEWORK.search(text)) and any(map(_FP16_WANTED.search, words))


def cuda_named(source: str | bytes | None, argv: tuple[str, ...], folder: str) -> bool:
    """Tell whether "cuda" stands in the script, in its arguments or in a file beside it.

    What is installed elsewhere is not read, nor what is put together from parts.
    """
    if any(WORD in word for word in argv) or _has_word(source):
        return True
    return any(_has_word(_text(path)) for path in islice(_beside(Path(folder)), MOST_FILES))


def _has_word(source: str | bytes | None) -> bool:
    if isinstance(source, bytes):
        return WORD.encode() in source
    return source is not None and WORD in source


def _beside(folder: Path) -> Iterator[Path]:
    """Yield Python files of the folder, then those of the packages in it."""
    try:
        yield from sorted(folder.glob("*.py"))
        yield from sorted(p for p in folder.glob("*/*.py") if not p.parent.name.startswith("."))
    except OSError:
        return


def _text(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES)
    except OSError:
        return None
