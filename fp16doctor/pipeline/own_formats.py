"""Gives another format as a diff of every place where the script names the 16-bit one.

That is what was tried: all that ran in the format ran in the other. Where a name is only known
when the script runs the change stays general.

Must not know whether the format is a cure.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fp16doctor.diagnose.script_reading.amp import read_autocast
from fp16doctor.diagnose.script_reading.patch import Edit, diff, swap, with_argument
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.torch_words import BFLOAT16, DTYPES, FLOAT16
from fp16doctor.diagnose.script_reading.tree import argument, method
from fp16doctor.pipeline.own_lines import ScriptText
from fp16doctor.schema.prescription import Prescription, RemedyKind

_GENERAL = "with torch.autocast("  # how a change begins that names no line of the script
# A line of it about a cast that autocast does not reach.
_ALSO = re.compile(r"^# and at (.+):(\d+) `.+` in place of `(.+)`$")
_CASTS = {"half": FLOAT16, "bfloat16": BFLOAT16}


def with_own_formats(
    prescriptions: Sequence[Prescription], script: ScriptText
) -> tuple[Prescription, ...]:
    """Return the prescriptions, changes of format as a diff where the text leaves no doubt."""
    return tuple(_with_diff(p, script) for p in prescriptions)


def _with_diff(cure: Prescription, script: ScriptText) -> Prescription:
    remedy = cure.remedy
    if remedy.kind is not RemedyKind.DTYPE or not remedy.change.startswith(_GENERAL):
        return cure
    also = [_ALSO.match(line) for line in remedy.change.splitlines()[2:]]
    if not all(found is not None and _holds(script, *found.groups()) for found in also):
        return cure
    change = _change(script, to_bf16=remedy.value == "bf16")
    return replace(cure, remedy=replace(remedy, change=change)) if change else cure


def _holds(script: ScriptText, file: str, number: str, cast: str) -> bool:
    """Tell whether a cast stands in the script itself, whose diff names it too then."""
    lines = script.text.split("\n")
    there = lines[int(number) - 1] if int(number) <= len(lines) else ""
    return file == script.name and cast in there


def _change(script: ScriptText, *, to_bf16: bool) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the parser's, on escapes of the file
            read = Script(script.text, script.name)
    except (SyntaxError, ValueError):
        return ""
    edits = [*_of_autocasts(read, to_bf16), *_of_names(read, to_bf16)]
    known = [e for e in edits if e is not None]
    return diff(script.name, read.lines, known) if known and len(known) == len(edits) else ""


def _of_autocasts(script: Script, to_bf16: bool) -> Iterator[Edit | None]:
    """Yield what becomes of the calls that name no format, or that are to be off."""
    for call in script.calls:
        cast = read_autocast(script, call)
        if cast is None or cast.enabled is False:
            continue
        given = argument(call, 1, "dtype")
        if given is not None and _named(script, given) is None:
            yield None  # a name, or what the script is started with
        elif to_bf16 and given is None:
            yield with_argument(script.lines, call, "dtype=torch.bfloat16")
        elif not to_bf16:
            yield _off(script, call)


def _off(script: Script, call: ast.Call) -> Edit | None:
    if any(k.arg in ("enabled", None) for k in call.keywords) or len(call.args) > 2:
        return None
    return with_argument(script.lines, call, "enabled=False")


def _of_names(script: Script, to_bf16: bool) -> Iterator[Edit]:
    """Yield what becomes of casts and of dtypes that are named, those of an autocast too."""
    old = (FLOAT16,) if to_bf16 else (FLOAT16, BFLOAT16)
    dtype, cast = ("torch.bfloat16", "bfloat16") if to_bf16 else ("torch.float32", "float")
    in_autocast = {
        n
        for call in script.calls
        if read_autocast(script, call) is not None
        for n in ast.walk(call)
    }
    pairs: list[tuple[ast.expr, str]] = []
    for node in script.tree.nodes:
        if isinstance(node, ast.Attribute) and _named(script, node) in old:
            if to_bf16 or node not in in_autocast:
                pairs.append((node, dtype))
        elif isinstance(node, ast.Call) and _CASTS.get(method(node)) in old and not node.args:
            assert isinstance(node.func, ast.Attribute)
            pairs.append((_name_of(node.func), cast))
    yield from swap(script.lines, *pairs)


def _named(script: Script, node: ast.expr) -> str | None:
    return DTYPES.get(script.names.dotted(node))


def _name_of(method: ast.Attribute) -> ast.expr:
    """Return the place of ``half`` in ``x.half``."""
    line, end = method.end_lineno or method.lineno, method.end_col_offset or 0
    start = end - len(method.attr)
    return ast.Name(method.attr, lineno=line, col_offset=start, end_lineno=line, end_col_offset=end)
