"""A keep-list as plain torch to paste: it does what the trial did.

Inputs up, autocast off, outputs left in fp32 or cast back; in a model that is stored in 16 bits
every other module casts its own inputs, as autocast does elsewhere. A product that stands in no
such module is named: its cast is the script's own.

Must not know how a keep-list is found or tried.
"""

from __future__ import annotations

from collections.abc import Iterable

from fp16doctor.prescribe.edit import EDITED, diff, with_call_in_fp32, within_block
from fp16doctor.prescribe.line_casts import line_casts
from fp16doctor.prescribe.line_float import line_in_fp32
from fp16doctor.prescribe.paste_modules import NESTED_TO, Known, modules_in_fp32
from fp16doctor.prescribe.product_float import product_in_fp32
from fp16doctor.prescribe.uncast import without_cast
from fp16doctor.replay.keep import covers, with_sharing
from fp16doctor.replay.op_lists import takes_lower_precision
from fp16doctor.replay.op_traits import base
from fp16doctor.replay.values import HALF
from fp16doctor.schema.location import Phase, SourceLine
from fp16doctor.schema.policy import KeepRule
from fp16doctor.schema.tape import OpCall, Tape, refs_in

_UNWRAPPED = "# model: as it is before DistributedDataParallel or FSDP wraps it\n"
_BLOCK = """
class InFp32(torch.overrides.TorchFunctionMode):  # every torch call gets its inputs in fp32
    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name.startswith("__i") or name == "__set__" or name.endswith("_") and name[0] != "_":
            return func(*args, **(kwargs or {}))  # in place
        return func(*to(torch.float32, args), **to(torch.float32, kwargs or {}))
"""
_ABOVE_LINES = "# above the function or class that the lines below stand in"
_ABOVE_TRAINING = "# above the optimizer, once the model is made"
_WITH = "with torch.autocast(DEVICE, enabled=False), InFp32():"
_OFF = "with torch.autocast(DEVICE, enabled=False):"
_HINT = "call .float() on its inputs, inside torch.autocast(DEVICE, enabled=False)"
_DECORATOR = "put @fp16doctor.keep_fp32 on the line above its def (import fp16doctor)"
_CAST = "leave out the cast to 16 bits; what takes the value may need one of its own"
_OUT_OF_PLACE = (
    "make what it writes into fp32 beforehand (.float(), a buffer in torch.float32), and call "
    ".float() on its other inputs"
)
_WRITTEN = (Phase.FORWARD, Phase.LOSS, Phase.SCRIPT, Phase.OPTIMIZER)  # by the line itself


def pasted(
    targets: tuple[str, ...],
    device: str,
    tape: Tape | None = None,
    outputs: str | None = None,
    *,
    stores_half: bool = True,
) -> str:
    """Return the code that keeps ``targets`` in fp32.

    It expects ``torch`` and ``model`` in place; ``device`` is "cpu" or "cuda". The script's lines
    are taken from ``tape``; where they are not known, a comment says what to do. ``outputs`` is
    the torch name of the format that kept modules return, None for fp32. ``stores_half``: without
    a tape, whether parameters may be stored in 16 bits.

    The text is Python, or a diff throughout where lines of the script are edited.
    """
    names, rules = _modules(targets, tape), tuple(map(KeepRule, targets))
    known = Known(tape, outputs, stores_half=stores_half)
    others = [_other(t, tape, outputs) for t in targets if not t.startswith("module:")]
    blocks = any(_WITH in text for text in others)
    parts = [modules_in_fp32(names, rules, known, nests=blocks)] if names else []
    parts += [NESTED_TO] if blocks and not names else []
    wrapped = tape is not None and any(c.op.startswith("c10d.") for c in tape.ops)
    parts[:0] = [_UNWRAPPED] if names and wrapped else []
    parts += [_BLOCK] if blocks else []
    casts = [f"# {c}" for c in _casts(targets, tape, outputs)]
    code = "".join(parts).rstrip("\n")
    if code and any(EDITED in text for text in others):
        code = _added(code, _ABOVE_TRAINING if names else _ABOVE_LINES)
    code = "\n".join(filter(None, (code, *others, *casts)))
    return code.replace("DEVICE", repr(device))


def _added(code: str, head: str) -> str:
    """Code that is pasted above the lines that it is used in, as a part of their diff."""
    return "\n".join(
        [
            head,
            *(f"+ {line}".rstrip() for line in code.splitlines()),
        ]
    )


def _casts(targets: tuple[str, ...], tape: Tape | None, outputs: str | None) -> tuple[str, ...]:
    if tape is None or outputs:
        return ()
    return line_casts(tape, tuple(map(KeepRule, targets)))


def _modules(targets: tuple[str, ...], tape: Tape | None) -> list[str]:
    rules = tuple(KeepRule(t) for t in targets if t.startswith("module:"))
    return [r.what for r in (with_sharing(tape, rules) if tape is not None else rules)]


def _other(target: str, tape: Tape | None, outputs: str | None) -> str:
    """A place that is no module: its line in fp32, or what to do there."""
    rule = KeepRule(target)
    line = _only_line(rule, tape)
    edited = ""
    if line is not None and line.text is not None and tape is not None:
        if rule.kind in ("op", "line"):
            back = f".to(torch.{outputs})" if outputs else ""
            edited = diff(line, _call_edited(rule, line.text, tape, back))
        if not edited and rule.kind == "line":
            edited = diff(line, line_in_fp32(line.text, _covered(rule, tape), tape, back))
        if not edited and rule.kind == "line":
            edited = diff(line, _product_edited(rule, line.text, tape, back))
        if not edited and rule.kind == "line" and not outputs and _casts_all(rule, tape):
            edited = diff(line, without_cast(line.text, ".float()"))
        if not edited and rule.kind == "line" and not _writes_in_half(rule, tape):
            back = f"to(torch.{outputs}, " if outputs else ""
            edited = diff(line, within_block(line.text, _WITH, back))
    if tape is not None and rule.kind == "line" and not _covered(rule, tape) and not outputs:
        return _cast_left_out(rule, tape)
    result = f"; .to(torch.{outputs}) on what it hands on" if outputs else ""
    return edited or f"# {rule.what}: {_hint(rule, tape)}{result}"


def _casts_all(rule: KeepRule, tape: Tape) -> bool:
    """Tell whether a line makes 16-bit values only of what it casts or makes itself."""
    mine = [c for c in tape.ops if c.site.phase in _WRITTEN and covers(rule, c.site)]
    made = {r.storage for c in mine for r in refs_in(c.outputs)}
    halves = [c for c in mine if any(r.dtype in HALF for r in refs_in(c.outputs))]
    taken = {r.storage for c in halves for r in refs_in((c.args, c.kwargs)) if r.dtype in HALF}
    return taken <= made and not any(takes_lower_precision(c.op) for c in mine)


def _cast_left_out(rule: KeepRule, tape: Tape) -> str:
    """A line that does nothing in 16 bits but cast to them: the line without the cast."""
    sites = (c.site for c in tape.ops if base(c.op) == "_to_copy" and c.site.phase in _WRITTEN)
    line = _one(s.caller or s.source for s in sites if covers(rule, s))
    edited = diff(line, without_cast(line.text)) if line is not None and line.text else ""
    return edited or f"# {rule.what}: {_CAST}"


def _hint(rule: KeepRule, tape: Tape | None) -> str:
    """What to do at a place whose edit is not known, in words."""
    if rule.kind == "function" and not rule.what.endswith(">"):  # <lambda> has no def
        return f"{_DECORATOR}, or {_HINT}"
    writes = tape is not None and _writes_in_half(rule, tape)
    return _OUT_OF_PLACE if writes else _HINT


def _writes_in_half(rule: KeepRule, tape: Tape) -> bool:
    """Tell whether an op that a rule covers writes into a tensor that is 16 bits wide."""
    return any(
        r.storage in c.mutates and r.dtype in HALF
        for c in _covered(rule, tape)
        for r in refs_in((c.args, c.kwargs))
    )


def _call_edited(rule: KeepRule, text: str, tape: Tape, back: str) -> str | None:
    """The only op with its input in fp32; None where autocast would cast that back."""
    ops = {c.op for c in _covered(rule, tape)}
    if len(ops) != 1 or any(map(takes_lower_precision, ops)):
        return None
    return with_call_in_fp32(text, base(ops.pop()).strip("_"), back)


def _product_edited(rule: KeepRule, text: str, tape: Tape, back: str) -> str | None:
    """The line with its products' operands in fp32, where autocast does not cast them back."""
    every = [c for c in tape.ops if c.site.phase in _WRITTEN and covers(rule, c.site)]
    line = product_in_fp32(text, _covered(rule, tape), every, tape, back)
    return None if line is None else f"{_OFF}\n+     {line}"


def _only_line(rule: KeepRule, tape: Tape | None) -> SourceLine | None:
    """The one line of the script that a rule covers, None where there are several."""
    calls = _covered(rule, tape) if tape is not None else ()
    return _one(c.site.caller or c.site.source for c in calls)


def _one(lines: Iterable[SourceLine | None]) -> SourceLine | None:
    """The line, None where there are several; a generator on it is a function of its own."""
    found = {(x.file, x.line): x for x in lines if x is not None}
    return next(iter(found.values())) if len(found) == 1 else None


def _covered(rule: KeepRule, tape: Tape) -> tuple[OpCall, ...]:
    """What a rule moves to fp32 beside backward; casts are the format's own."""
    calls = (c for c in tape.ops if c.site.phase in _WRITTEN and base(c.op) != "_to_copy")
    return tuple(c for c in calls if covers(rule, c.site) and _in_half(c))


def _in_half(call: OpCall) -> bool:
    return any(r.dtype in HALF for r in refs_in((call.args, call.outputs)))
