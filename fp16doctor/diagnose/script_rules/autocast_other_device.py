"""Autocast is entered for another device than the one the model is on.

What it checks:
    A model that the file makes and calls in an autocast block: moved to "cuda" under CPU autocast,
    or kept on the CPU (moved nowhere in the file, or to "cpu") under CUDA autocast.

Why it matters:
    Autocast casts ops of its own device only. The block then does nothing: everything runs in
    fp32, without a message.

Example:
    model = Net().cuda()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(x)

Remedy:
    Give autocast the device of the model: `torch.autocast(device.type, …)`.

References:
    PyTorch documentation, torch.autocast
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fp16doctor.diagnose.script_reading.amp import Autocast, autocasts, device_type, enclosing
from fp16doctor.diagnose.script_reading.patch import Edit, swap
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.training import is_module, made_by
from fp16doctor.diagnose.script_reading.tree import argument, method, receiver, spelled
from fp16doctor.diagnose.script_rule import Suspicion, script_rule

_WEIGHTED = re.compile(
    r"torch\.nn\.(?:Parameter|Linear|Bilinear|Lazy\w+|(?:Lazy)?Conv\w+|LSTM\w*|GRU\w*|RNN\w*|"
    r"Embedding\w*|Transformer\w*|MultiheadAttention|PReLU|\w*Norm\w*)$"
)
_ELSEWHERE = ("cuda", "device", "xpu", "mps", "npu", "hpu", "accelerat", "launch", "FSDP")


@script_rule(code="FD719", name="autocast-other-device", same_as=("precision-not-as-asked",))
def autocast_other_device(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per autocast that the model called in it is not covered by."""
    for cast in autocasts(script):
        if cast.device not in ("cuda", "cpu") or cast.enabled is not True:
            continue
        models = [m for m in _called_in(script, cast) if _has_weights(script, m)]
        places = {_place(script, m, cast) for m in models}
        if len(places) == 1 and places <= {"cuda", "cpu"} - {cast.device}:
            yield _suspicion(script, cast, spelled(models[0]), str(places.pop()))


def _has_weights(script: Script, node: ast.expr) -> bool:
    """Whether ``node`` is certainly a module with parameters: a loss has a place only by those."""
    return is_module(script, node) and all(
        _weighs(script, call, 0) for call in made_by(script, node)
    )


def _weighs(script: Script, call: ast.Call, depth: int) -> bool:
    owner = script.names.local_class(call)
    if owner is None:
        return _WEIGHTED.search(script.name(call)) is not None or any(
            isinstance(a, ast.Call) and _weighs(script, a, depth + 1) for a in call.args
        )
    inside = [n for n in ast.walk(owner) if isinstance(n, ast.Call)]
    return depth < 4 and any(_weighs(script, n, depth + 1) for n in inside)


def _called_in(script: Script, cast: Autocast) -> list[ast.expr]:
    found: list[ast.expr] = []
    for call in script.calls:
        if isinstance(call.func, (ast.Name, ast.Attribute)) and not script.name(call):
            around = enclosing(script, call)
            if around is not None and around.call is cast.call:
                found.append(call.func)
    return found


def _place(script: Script, model: ast.expr, cast: Autocast) -> str | None:
    """The device of the model, None where the file does not show it."""
    moves = [m for m in _moves(script, model) if m is not None]
    if moves:
        return moves[0] if len(set(moves)) == 1 else None
    text = spelled(model)
    if any(spelled(a) == text for c in script.calls for a in c.args):
        return None  # a function it is given to may move it
    start, end = script.text, script.source(cast.call)
    rest = start.replace(end, "")
    return None if any(word in rest for word in _ELSEWHERE) else "cpu"


def _moves(script: Script, model: ast.expr) -> Iterator[str | None]:
    """Where ``.cuda()``, ``.cpu()`` and ``.to(device)`` put it; '' for a place not shown."""
    text, waiting, seen = spelled(model), [*script.names.values(model)], set()
    for call in script.methods("cuda", "cpu", "to"):
        if spelled(receiver(call)) == text:
            waiting.append(call)
    while waiting:
        value = waiting.pop()
        if not isinstance(value, ast.Call) or value in seen:
            continue
        seen.add(value)
        if method(value) in ("cuda", "cpu"):
            yield method(value)
        elif method(value) == "to":
            yield device_type(script, argument(value, 0, "device")) or ""
        if method(value):
            waiting += script.names.values(receiver(value))


def _suspicion(script: Script, cast: Autocast, model: str, place: str) -> Suspicion:
    return Suspicion(
        node=cast.call,
        what=f"autocast is entered for {cast.device}, and `{model}` is on {place}",
        reason="Autocast casts ops of its own device only: the ops of this block run in fp32.",
        advice=f'give autocast the device of the model: "{place}"',
        edits=_edits(script, cast, place),
    )


def _edits(script: Script, cast: Autocast, place: str) -> list[Edit]:
    first = cast.call.args[0] if cast.call.args else None
    if isinstance(first, ast.Constant) and first.value == cast.device:
        return swap(script.lines, (first, f'"{place}"'))
    return []
