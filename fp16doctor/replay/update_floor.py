"""How an optimizer's step depends on the size of the gradient, as far as its ops tell.

SGD's step shrinks with the gradient. Adam and its kin divide by the root of its running square
plus eps: a gradient far above eps moves a weight by the learning rate however small it is.

Source: Kingma and Ba, Adam, arXiv 1412.6980, section 2.1. Must not know bounds.
"""

from __future__ import annotations

from fp16doctor.replay import op_traits
from fp16doctor.schema.tape import OpCall, Tape

_FUSED = ("_fused_adam", "_fused_adamw", "_fused_adagrad")
_LARGEST_EPS = 1e-2


def update_floor(tape: Tape) -> float | None:
    """Return the gradient below which a step shrinks with it; None where it always does.

    0.0 where no eps is found, or the optimizer takes the sign alone.
    """
    if tape.optimizer_at is None:
        return None
    divides = False
    for call in tape.ops[tape.optimizer_at : tape.attempt]:
        base = op_traits.base(call.op).removesuffix("_")
        if base in _FUSED:
            return float(call.kwargs.get("eps", 1e-8))
        if base.removeprefix("_foreach_") == "sign":
            return 0.0
        divides = divides or base.removeprefix("_foreach_") in ("sqrt", "rsqrt")
        eps = _eps(call) if divides else None
        if eps is not None:
            return eps
    return 0.0 if divides else None


def _eps(call: OpCall) -> float | None:
    """Return the small constant that an op adds."""
    if op_traits.base(call.op).removesuffix("_").removeprefix("_foreach_") != "add":
        return None
    plain = [a for a in call.args if type(a) is float and 0 < a < _LARGEST_EPS]
    return plain[0] if plain else None
