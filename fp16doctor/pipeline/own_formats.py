"""Gives another format as a diff of the script's own calls of ``autocast``.

Must not know whether the format is a cure.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fp16doctor.diagnose.script_reading.patch import Edit, diff, swap, with_argument
from fp16doctor.pipeline.own_lines import ScriptText
from fp16doctor.schema.prescription import Prescription, RemedyKind

_GENERAL = "with torch.autocast("  # how a change begins that names no line of the script
_AUTOCASTS = ("torch.autocast", "torch.amp.autocast", "autocast", "amp.autocast")
_FP16 = ("torch.float16", "torch.half")
_BF16 = "torch.bfloat16"


def with_own_formats(
    prescriptions: Sequence[Prescription], script: ScriptText
) -> tuple[Prescription, ...]:
    """Return the prescriptions, changes of format as a diff where the text leaves no doubt."""
    return tuple(_with_diff(p, script) for p in prescriptions)


def _with_diff(cure: Prescription, script: ScriptText) -> Prescription:
    remedy = cure.remedy
    if remedy.kind is not RemedyKind.DTYPE or not remedy.change.startswith(_GENERAL):
        return cure
    if remedy.change.count("\n") > 1:  # it names a cast as well, which no autocast reaches
        return cure
    change = _change(script, to_bf16=remedy.value == "bf16")
    return replace(cure, remedy=replace(remedy, change=change)) if change else cure


def _change(script: ScriptText, *, to_bf16: bool) -> str:
    lines = script.text.split("\n")
    calls = list(_autocasts(script.text))
    edits = [_in_bf16(lines, call) if to_bf16 else _off(lines, call) for call in calls]
    known = [e for e in edits if e is not None]
    return diff(script.name, lines, known) if known and len(known) == len(edits) else ""


def _autocasts(text: str) -> Iterator[ast.Call]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the parser's, on escapes of the file
            tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _AUTOCASTS:
            yield node


def _in_bf16(lines: list[str], call: ast.Call) -> Edit | None:
    given = next((k.value for k in call.keywords if k.arg == "dtype"), None)
    given = call.args[1] if given is None and len(call.args) > 1 else given
    if given is None:
        return with_argument(lines, call, f"dtype={_BF16}")
    return swap(lines, (given, _BF16))[0] if ast.unparse(given) in _FP16 else None


def _off(lines: list[str], call: ast.Call) -> Edit | None:
    if any(k.arg in ("enabled", None) for k in call.keywords) or len(call.args) > 2:
        return None
    return with_argument(lines, call, "enabled=False")
