"""A sum, a moving average or an EMA copy is kept in 16 bits.

What it checks:
    A tensor that the file makes in fp16 or bf16 (`torch.zeros(…, dtype=…)`, a copy of a model cast
    with `.to(dtype)`) and adds to in place: `+=`, `add_`, `lerp_`, in a loop or in a function that
    runs once a step.

Why it matters:
    A sum no longer takes an addend below half an ulp of itself: 2⁻¹² of its size in fp16, 2⁻⁹ in
    bf16. A count stops at 2048 and at 256; an EMA with decay 0.999 in bf16 hardly moves.

Example:
    shadow = copy.deepcopy(model).to(torch.bfloat16)
    for s, p in zip(shadow.parameters(), model.parameters()):
        s.mul_(0.999).add_(p.to(s.dtype), alpha=0.001)

Remedy:
    Keep sums and averages in fp32.

References:
    Higham, "Accuracy and Stability of Numerical Algorithms", chapter 4
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.beside_run import sums_in_16_bits
from fp16doctor.diagnose.script_reading.amp import dtype_of
from fp16doctor.diagnose.script_reading.bindings import Element
from fp16doctor.diagnose.script_reading.patch import Edit, swap
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.torch_words import BFLOAT16, FLOAT16
from fp16doctor.diagnose.script_reading.training import cast_calls, own_cast, stored_format
from fp16doctor.diagnose.script_reading.tree import keyword, method, receiver, spelled
from fp16doctor.diagnose.script_rule import Suspicion, script_rule

_MAKERS = {
    f"torch.{name}"
    for name in ("zeros", "ones", "full", "tensor", "zeros_like", "ones_like", "full_like")
}
_ULP = {FLOAT16: "2⁻¹²", BFLOAT16: "2⁻⁹"}


@script_rule(
    code="FD724",
    name="half-accumulation",
    stands=sums_in_16_bits,
    same_as=("lost-state-updates", "swamped-accumulation"),
)
def half_accumulation(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per line that adds to a sum kept in 16 bits."""
    if "16" not in script.text and "half" not in script.text:
        return
    for node in script.tree.nodes:
        target = _sum_of(node)
        if target is None or not isinstance(node, (ast.expr, ast.stmt)):
            continue
        if not _repeats(script, node):
            continue
        found = _kept_in(script, target)
        if found is not None and not _begins_anew(script, node, target):
            yield _suspicion(script, node, target, *found)


def _sum_of(node: ast.AST) -> ast.expr | None:
    """The tensor that ``node`` adds to in place."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return node.target
    if method(node) in ("add_", "lerp_") and isinstance(node, ast.Call):
        inner = receiver(node)
        while method(inner) == "mul_" and isinstance(inner, ast.Call):
            inner = receiver(inner)
        return inner
    return None


def _repeats(script: Script, node: ast.AST) -> bool:
    """In a loop, or in a method: what it adds to lives longer than a call of it."""
    function = script.tree.function(node)
    return bool(script.place(node).loops) or script.tree.class_of(function) is not None


def _begins_anew(script: Script, node: ast.AST, target: ast.expr) -> bool:
    """Whether the sum is made in the same turn of the loop, or the same call, that adds to it."""
    if isinstance(target, ast.Name):
        made = [b for b in script.names.bound(target) if isinstance(b, ast.expr)]
        return any(script.place(m).loop is script.place(node).loop for m in made)
    made = script.names.attribute(target) if isinstance(target, ast.Attribute) else []
    function = script.tree.function(node)
    return any(script.tree.function(m) is function for m in made)


def _kept_in(script: Script, target: ast.expr) -> tuple[str, ast.AST] | None:
    """Format, and the expression that says so."""
    while isinstance(target, ast.Attribute) and target.attr == "data":
        target = target.value
    if isinstance(target, ast.Name):
        bound = [b for b in script.names.bound(target) if not _is_own_sum(script, target, b)]
        if len(bound) == 1 and isinstance(bound[0], Element):
            return _elements_in(script, bound[0].source)
        if len(bound) == 1 and isinstance(bound[0], ast.expr):
            return _made_in(script, bound[0])
        return None
    if isinstance(target, ast.Subscript):
        kept = script.names.known(target.value)
        table = kept[0] if len(kept) == 1 else None
        return _made_in(script, table.value) if isinstance(table, ast.DictComp) else None
    known = script.names.known(target) if isinstance(target, ast.Attribute) else []
    return _made_in(script, known[0]) if len(known) == 1 else None


def _is_own_sum(script: Script, target: ast.Name, bound: object) -> bool:
    """Whether the binding is that of ``target += …`` itself."""
    return not isinstance(bound, (Element, ast.AST)) and any(
        isinstance(n, ast.AugAssign) and spelled(n.target) == target.id for n in script.tree.nodes
    )


def _made_in(script: Script, value: ast.expr) -> tuple[str, ast.AST] | None:
    cast = own_cast(script, value)
    if cast is not None:
        return (cast, value) if cast in _ULP else None
    given = keyword(value, "dtype") if isinstance(value, ast.Call) else None
    if given is None or script.name(value) not in _MAKERS:
        return None
    dtype = dtype_of(script, given)
    return (dtype, given) if dtype in _ULP else None


def _elements_in(script: Script, source: ast.expr) -> tuple[str, ast.AST] | None:
    """Of a list of zeros, or of the parameters of a copy that was cast."""
    if method(source) == "parameters" and isinstance(source, ast.Call):
        copy = receiver(source)
        dtype = stored_format(script, copy) if _is_copy(script, copy) else None
        if dtype not in _ULP or dtype is None:
            return None
        casts = cast_calls(script, copy, dtype) or script.names.known(copy)
        return (dtype, casts[0]) if len(casts) == 1 or own_cast(script, casts[0]) else None
    known = script.names.known(source)
    listed = known[0] if len(known) == 1 else None
    return _made_in(script, listed.elt) if isinstance(listed, ast.ListComp) else None


def _is_copy(script: Script, node: ast.expr) -> bool:
    found: list[ast.AST] = list(script.names.known(node))
    calls = [c for v in found for c in ast.walk(v)]
    return any(script.name(c) == "copy.deepcopy" for c in calls)


def _suspicion(
    script: Script, node: ast.expr | ast.stmt, target: ast.expr, dtype: str, made: ast.AST
) -> Suspicion:
    return Suspicion(
        node=node,
        what=f"`{spelled(target)}` is summed up in {dtype}",
        reason=(
            f"A {dtype} sum does not take an addend below {_ULP[dtype]} of its own size: it stops "
            "following what is added."
        ),
        advice="keep it in fp32",
        edits=_edits(script, made),
    )


def _edits(script: Script, made: ast.AST) -> list[Edit]:
    """The format where it is written; a name that stands for it is left to its other uses."""
    if isinstance(made, ast.Call):  # a cast
        if method(made) == "to" and len(made.args) == 1:
            return swap(script.lines, (made.args[0], "torch.float32"))
        if own_cast(script, made) is None:  # a copy of what is kept in 16 bits
            return swap(script.lines, (made, f"{script.source(made)}.float()"))
        return swap(script.lines, (made, f"{script.source(receiver(made))}.float()"))
    return swap(script.lines, (made, "torch.float32")) if isinstance(made, ast.expr) else []
