"""Messages with which PyTorch refuses a use of mixed precision, what they mean, what to change.

Data only: must not know how findings are built. Texts as raised by torch 2.6 to 2.13 and apex.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Names of the 16-bit formats in messages of Python, ATen and the old tensor types.
_LOW = r"((c10|at)::|torch\.)?(Half|BFloat16|float16|bfloat16)"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One kind of refused call."""

    pattern: str  # searched in the exception's text, case ignored
    cause: str
    advice: str
    by_scaler: bool = False  # a check of GradScaler's own, which a disabled one does not make


_MIXED = (
    "Two operands of one op have different formats; outside autocast no op converts them.",
    "put the call under `torch.autocast`, or cast the input to the weight's format: "
    "`x.to(weight.dtype)`",
)

# In this order: the first that matches is taken.
REFUSALS = (
    Refusal(
        r"no inf checks were recorded",
        "`GradScaler.step` or `update` found no gradient of this optimizer: it had none, or "
        "`backward` was not called on the scaled loss in this step.",
        "call `scaler.scale(loss).backward()` before `scaler.step(optimizer)`, and check that the "
        "optimizer holds the parameters that receive gradients",
        by_scaler=True,
    ),
    Refusal(
        r"attempting to unscale fp16 gradients",
        "GradScaler divides gradients in fp32, but these parameters are stored in fp16, so their "
        "gradients are fp16.",
        "keep the parameters in fp32 and use `torch.autocast` instead of `.half()`",
        by_scaler=True,
    ),
    Refusal(
        r"unscale_\(\) has already been called",
        "`scaler.unscale_` was called twice for one optimizer between two updates, which would "
        "divide the gradients twice.",
        "call `scaler.unscale_(optimizer)` once a step, after the last backward, and "
        "`scaler.update()` once after `scaler.step`",
        by_scaler=True,
    ),
    Refusal(
        r"unscale_\(\) is being called after step\(\)",
        "`scaler.unscale_` came after `scaler.step`, when the gradients had been used already.",
        "call `scaler.unscale_(optimizer)` before `scaler.step(optimizer)`",
        by_scaler=True,
    ),
    Refusal(
        r"step\(\) has already been called since the last update",
        "`scaler.step` was called twice for one optimizer without `scaler.update` in between.",
        "call `scaler.update()` once after the `scaler.step` calls of every step",
        by_scaler=True,
    ),
    Refusal(
        r"attempted \w+ but _(scale|growth_tracker) is None",
        "The scaler was used before `scaler.scale` had been called once.",
        "call `scaler.scale(loss).backward()` first",
        by_scaler=True,
    ),
    Refusal(
        r"binary_cross_entropy and torch\.nn\.BCELoss are unsafe to autocast",
        "Autocast refuses `binary_cross_entropy`: its gradient does not fit fp16 for "
        "probabilities near 0 and 1.",
        "use `F.binary_cross_entropy_with_logits` on the logits, without the sigmoid",
    ),
    Refusal(
        rf"value cannot be converted to type ({_LOW}|float) without overflow",
        "A constant of the script is larger than the largest finite value of the tensor's format "
        "(fp16: 65504).",
        "use `torch.finfo(x.dtype).min` (or `.max`) in place of the constant",
    ),
    Refusal(
        rf"not implemented for '{_LOW}'|low precision dtypes not supported"
        rf"|unsupported dtype {_LOW}|must be either float or double dtype",
        "The op has no kernel for this format on this device.",
        "cast the input to fp32 in front of the op: `x.float()`",
    ),
    Refusal(
        r"found param .* with type .*(half|float)tensor, expected",
        "apex wants fp32 parameters at initialization and casts them itself.",
        "pass the fp32 model to `amp.initialize`, without `.half()`",
    ),
    Refusal(rf"same (dtype|scalar type).*{_LOW}", *_MIXED),
    Refusal(rf"{_LOW}.*same (dtype|scalar type)", *_MIXED),
    Refusal(rf"dtypes (match|must be the same).*{_LOW}", *_MIXED),
    Refusal(rf"{_LOW}.*does not match \w+ dtype", *_MIXED),
    Refusal(r"expected self\.dtype to be equal to src\.dtype", *_MIXED),
    Refusal(rf"expected (object of )?(scalar type |dtype )?{_LOW}", *_MIXED),
    Refusal(rf"(found|got) (scalar type |dtype )?{_LOW}", *_MIXED),
    Refusal(rf"input type .*{_LOW}.*should be the same", *_MIXED),
    Refusal(r"mixed dtype \(CPU\)", *_MIXED),
)


def refusal_of(message: str) -> Refusal | None:
    """The refusal that ``message`` is an instance of."""
    flags = re.IGNORECASE | re.DOTALL
    return next((r for r in REFUSALS if re.search(r.pattern, message, flags)), None)
