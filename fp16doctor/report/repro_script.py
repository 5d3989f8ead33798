"""An excerpt as a script of about thirty lines that needs torch and nothing else.

All that comes out of a recording is written as a literal or in a comment without control
characters: nothing of it is run. Must not know how an excerpt was found.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fp16doctor.report import wording
from fp16doctor.schema.bundle import Origin
from fp16doctor.schema.excerpt import Excerpt, Line, Shows, Value

if TYPE_CHECKING:
    from torch import Tensor

INLINE = 96  # elements that may stand in the script itself
_WIDTH = 100
_NONFINITE_NAMES = {"inf": "inf", "-inf": "-inf", "nan": "nan"}
# Decimal digits that tell every two numbers of a format apart.
_DIGITS = {"float16": 5, "bfloat16": 4, "float32": 9, "float64": 17}
_EXPRESSIONS = {
    Shows.NONFINITE: "~torch.isfinite(low) & torch.isfinite(high)",
    Shows.NONFINITE_IN_BOTH: "~torch.isfinite(low) & ~torch.isfinite(high)",
    Shows.ZERO: "(low == 0) & (high != 0)",
    Shows.INTEGER: "(high == high.round()) & (low != high)",
    Shows.UNCHANGED: '(low == given["{before}"]) & (high != given["{before}"])',
    Shows.OFF: "(low - high).abs() > {limit} * high.abs()",
}
_WORDS = {
    Shows.NONFINITE: "inf or NaN in {low}, finite in {high}",
    Shows.NONFINITE_IN_BOTH: "inf or NaN, in {high} as well as in {low}",
    Shows.ZERO: "zero in {low}, not zero in {high}",
    Shows.INTEGER: "another integer in {low} than in {high}",
    Shows.UNCHANGED: "unchanged by the update in {low}, changed in {high}",
    Shows.REFUSED: "raises in {low}, runs in {high}",
    Shows.OFF: "further from {high} than one rounding to {low} explains",
}
_READER = """\
raw = bytearray(Path(__file__).with_name({file!r}).read_bytes())
start = 8 + int.from_bytes(raw[:8], "little")  # safetensors: a JSON header behind its size
given = {{}}
for name, t in sorted(json.loads(raw[8:start]).items()):
    first, end = t["data_offsets"]
    values = torch.frombuffer(raw[start + first : start + end], dtype=DTYPES[t["dtype"]])
    given[name] = values.reshape(t["shape"])
"""
_REFUSED = """\
run(wide=True)
try:
    run(wide=False)
except Exception as error:
    print(f"raises in {low}, runs in {high}: {{error}}")
else:
    raise AssertionError("the fault does not show here")
"""
_SAFETENSORS_NAMES = {
    "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64", "int64": "I64",
    "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


def fits_inline(excerpt: Excerpt) -> bool:
    """Tell whether the tensors can stand in the script itself."""
    return sum(t.numel() for t in excerpt.given.values()) <= INLINE


def render_repro(excerpt: Excerpt, origin: Origin, file: str | None) -> str:
    """Return the script.

    Args:
        excerpt: what it runs.
        origin: the run it was cut from.
        file: name of the safetensors file beside the script that holds the tensors; None writes
            them into it.
    """
    parts = [
        *_header(excerpt, origin),
        *_imports(excerpt, file),
        "",
        *_given(excerpt, file),
        *_function(excerpt),
        *_verdict(excerpt),
    ]
    return "\n".join(parts) + "\n"


def _header(excerpt: Excerpt, origin: Origin) -> Iterator[str]:
    low, high = _formats(excerpt)
    last = excerpt.lines[-1].site
    words = _WORDS[excerpt.shows].format(low=low, high=high)
    yield from _comment(f"{wording.op_name(last.op)}: {words}.")
    place = wording.joined(
        wording.module_name(last), last.phase.value, wording.step_name(last.step)
    )
    for line in (last.source, last.caller):
        if line is not None:
            text = f": {line.text}" if line.text else ""
            place = wording.joined(place, f"{wording.location(line)}{text}")
    yield from _comment(place)
    size = sum(t.numel() for t in excerpt.given.values())
    cut = "" if size == excerpt.full_size else f", cut from {excerpt.full_size} elements to {size}"
    made = f"fp16doctor {origin.tool_version} with torch {origin.torch_version} on {origin.device}"
    yield from _comment(f"Recorded by {made}{cut}.")


def _comment(text: str) -> Iterator[str]:
    for line in textwrap.wrap(wording.visible(text), _WIDTH - 2):
        yield f"# {line}"


def _formats(excerpt: Excerpt) -> tuple[str, str]:
    """Return the names of the recorded format and of the one beside it."""
    dtypes = {_dtype(t) for t in excerpt.given.values()}
    dtypes |= {_plain(v) for line in excerpt.lines for v in (*line.args, *line.kwargs.values())}
    wide = dict(excerpt.widened)
    low = next((d for d in wide if d in dtypes), next(iter(wide)))
    return low, wide[low]


def _plain(value: Any) -> str:
    return str(value).removeprefix("torch.")


def _dtype(tensor: Tensor) -> str:
    return _plain(tensor.dtype)


def _imports(excerpt: Excerpt, file: str | None) -> Iterator[str]:
    given = any(map(_holds_special, excerpt.given.values())) and file is None
    lines = ["import json"] if file is not None else []
    lines += ["from math import inf, nan"] if given or _special_arguments(excerpt) else []
    lines += ["from pathlib import Path"] if file is not None else []
    yield from (*lines, "") if lines else ()
    yield "import torch"


def _holds_special(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and not bool(tensor.isfinite().all())


def _special_arguments(excerpt: Excerpt) -> bool:
    values = [v for line in excerpt.lines for v in (*line.args, *line.kwargs.values())]
    return any(isinstance(v, float) and not math.isfinite(v) for v in values)


# -- tensors -------------------------------------------------------------------------------------


def _given(excerpt: Excerpt, file: str | None) -> Iterator[str]:
    yield "aten = torch.ops.aten"
    if file is not None:
        names = sorted({_dtype(t) for t in excerpt.given.values()})
        pairs = ", ".join(f'"{_SAFETENSORS_NAMES[n]}": torch.{n}' for n in names)
        yield f"DTYPES = {{{pairs}}}"
        yield from _READER.format(file=file).splitlines()
        return
    yield "given = {"
    for name, tensor in excerpt.given.items():
        values = ", ".join(_number(v, _dtype(tensor)) for v in tensor.reshape(-1).tolist())
        text = f'"{name}": torch.tensor([{values}], dtype=torch.{_dtype(tensor)})'
        shape = tuple(tensor.shape)
        view = "" if len(shape) == 1 else f".reshape({shape})"
        yield from textwrap.wrap(
            f"{text}{view},", _WIDTH, initial_indent="    ", subsequent_indent="        ",
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    yield "}"


def _number(value: Any, dtype: str) -> str:
    if not isinstance(value, float):
        return repr(value)
    text = f"{value:.{_DIGITS.get(dtype, 17)}g}"
    plain = "." in text or "e" in text or text in _NONFINITE_NAMES
    return text if plain else f"{text}.0"


# -- ops -----------------------------------------------------------------------------------------


def _function(excerpt: Excerpt) -> Iterator[str]:
    wide = ", ".join(f"torch.{a}: torch.{b}" for a, b in _pairs(excerpt))
    yield f"WIDE = {{{wide}}}"
    yield ""
    yield ""
    yield "def run(wide):"
    yield "    to = (lambda dtype: WIDE.get(dtype, dtype)) if wide else (lambda dtype: dtype)"
    if excerpt.given:
        names = ", ".join(excerpt.given)
        names = f"({names},)" if len(excerpt.given) == 1 else names
        yield f"    {names} = (t.to(to(t.dtype), copy=True) for t in given.values())"
    for line in excerpt.lines:
        yield f"    {line.result} = {_call(line)}"
    yield f"    return {_value(excerpt.answer)}"
    yield ""
    yield ""


def _pairs(excerpt: Excerpt) -> list[tuple[str, str]]:
    """Return the dtypes that occur, with the one beside each."""
    used = {_dtype(t) for t in excerpt.given.values()}
    named = [v for line in excerpt.lines for v in (*line.args, *line.kwargs.values())]
    used |= {_plain(v) for v in named}
    return [(a, b) for a, b in excerpt.widened if a in used] or list(excerpt.widened[:1])


def _call(line: Line) -> str:
    given = [_value(a) for a in line.args]
    given += [f"{name}={_value(v)}" for name, v in line.kwargs.items() if v is not None]
    prefix = "" if line.op.startswith("aten.") else "torch.ops."
    return f"{prefix}{line.op}({', '.join(given)})"


def _value(value: Any) -> str:
    if isinstance(value, Value):
        return _variable(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, (bool, int, float, complex, str, type(None))):
        return repr(value)
    text = str(value)
    if text.startswith("torch."):  # a dtype, a layout, a memory format
        return f"to({text})" if _is_dtype(value) else text
    return '"cpu"'  # a device


def _is_dtype(value: Any) -> bool:
    return type(value).__name__ == "dtype"


def _variable(value: Value) -> str:
    name = value.name if value.item is None else f"{value.name}[{value.item}]"
    if value.method is None:
        return name
    if value.method == "permute" and tuple(value.parameters) == (1, 0):
        return f"{name}.t()"
    return f"{name}.{value.method}({', '.join(map(repr, value.parameters))})"


# -- the end -------------------------------------------------------------------------------------


def _verdict(excerpt: Excerpt) -> Iterator[str]:
    low, high = _formats(excerpt)
    if excerpt.shows is Shows.REFUSED:
        yield from _REFUSED.format(low=low, high=high).splitlines()
        return
    bad = _EXPRESSIONS[excerpt.shows].format(before=excerpt.before, limit=f"{excerpt.limit:.4g}")
    words = _WORDS[excerpt.shows].format(low=low, high=high)
    yield "low, high = run(wide=False), run(wide=True)"
    yield f"bad = {bad}"
    yield f'print(f"{{int(bad.sum())}} of {{bad.numel()}} elements: {words}")'
    yield 'assert bad.any(), "the fault does not show here"'
    yield f'print("first:", low[bad][0].item(), "| in {high}:", high[bad][0].item())'
