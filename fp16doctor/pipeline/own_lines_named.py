"""Names the lines that general code about a format is for, where no diff of them is certain.

Must not know what the code does.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from fp16doctor.diagnose.script_reading.amp import dtype_of, loss_backwards
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.torch_words import BFLOAT16, FLOAT16
from fp16doctor.diagnose.script_reading.tree import method
from fp16doctor.schema.prescription import Remedy, RemedyKind

_OF_FORMATS = (RemedyKind.DTYPE, RemedyKind.STORAGE)
_BLOCK = "with torch.autocast("
_MOST = 4  # lines that are named


def with_lines_named(remedy: Remedy, script: Script) -> str:
    """Return the change below a comment with its lines; "" where it is another or there is none."""
    code = [line for line in remedy.change.splitlines() if not line.startswith("#")]
    if remedy.kind not in _OF_FORMATS or not any(line.startswith(_BLOCK) for line in code):
        return ""
    casts, ends = _numbers(_casts(script)), _numbers(loss_backwards(script))
    said = [f"casts to 16 bits: {_places(script, casts)}"] if casts else []
    said += [f"the block ends in front of backward: {_places(script, ends)}"] if ends else []
    return f"# {'; '.join(said)}\n{remedy.change}" if said else ""


def _casts(script: Script) -> Iterable[ast.AST]:
    for node in script.tree.nodes:
        if (isinstance(node, ast.Call) and method(node) in ("half", "bfloat16")) or (
            isinstance(node, ast.Attribute) and dtype_of(script, node) in (FLOAT16, BFLOAT16)
        ):
            yield node


def _numbers(nodes: Iterable[ast.AST]) -> list[int]:
    return sorted({getattr(n, "end_lineno", 0) for n in nodes})


def _places(script: Script, lines: list[int]) -> str:
    more = f" and {len(lines) - _MOST} more" if len(lines) > _MOST else ""
    return f"{script.path}:{', '.join(map(str, lines[:_MOST]))}{more}"
