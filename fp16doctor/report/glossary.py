"""The terms a report may use, each in one sentence, and the choice of those a given text uses.

Must not know findings or pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

TERMS: dict[str, str] = {
    "amax": "largest finite magnitude of a tensor",
    "ATen op": "one call of PyTorch's operator library, as in aten.mm",
    "bf16": "number format with fp32's range and 8 significant bits: maximum 3.3895e38",
    "bit-equal": "the replay gave the same bits as the run, in every tensor that was compared",
    "clear": "the check ran on this run and found nothing",
    "fp16": "number format with 5 exponent bits and 11 significant bits: maximum 65504",
    "found_inf": "the gradient scaler saw a non-finite gradient",
    "headroom": "log2(max / amax) in bits: doublings left before overflow; negative when over",
    "keep-list": "modules or ops kept in fp32",
    "loss scale": "factor on the loss against underflow of gradients; divided out of them later",
    "lost update": "weight + step equals weight in the format that the weight is stored in",
    "non-finite": "inf or NaN",
    "not applicable": "the check needs something that this run does not have",
    "opaque": "the op could not be replayed: its result is taken from a copy made during the run",
    "overflow": "the exact result is finite, and infinite in the format",
    "overflow threshold": "first magnitude that rounds to inf: 65520 in fp16",
    "pinned": "the reference replay takes this op's result from the run, it does not compute it",
    "recorded": "seen in the run itself",
    "refuted": "the change was tried on recorded steps, and one of the criteria was not met",
    "replayed": "computed again from the recorded step, under the named format",
    "skipped": "the optimizer step was not taken, since a gradient was non-finite",
    "smallest normal": "smallest magnitude with full precision: 2⁻¹⁴ in fp16",
    "smallest subnormal": "smallest magnitude that is not zero: 2⁻²⁴ in fp16",
    "subnormal": "not zero, and below the smallest normal number: reduced precision",
    "underflow": "the exact result is not zero, and zero in the format",
    "verified": "the change was tried on recorded steps: with it nothing is inf or NaN, the fault "
    "is gone, and the steps train as they do in fp32",
}

LOSS_AFTER = "loss at the end"  # of as many consecutive steps as its cell says
_LOSS = (
    "loss after the consecutive steps replayed under the cure; lower is better, measured at fp32's"
)
# Numbers of a trial: what each is, and which way is good.
QUANTITIES: dict[str, str] = {
    "non-finite elements": "inf and NaN in loss, gradients, parameters and buffers; 0 is wanted",
    "non-finite ops": "ops with inf or NaN in their result; 0 is wanted",
    "gradient lost": "largest share of one parameter's gradient that became zero, zeros that "
    "belong there excluded; lower is better, 1 is all of it",
    "gradient error": "distance from the gradient of the fp32 replay, divided by its size: "
    "‖g − g32‖ / ‖g32‖; lower is better, 0 is equal",
    "descent kept": "by how much a small step along the gradient lowers the loss, divided by what "
    "the same step along fp32's does; 1 is as good as fp32, lower is worse",
    "realised fraction": "share of the update that is meant which the update made has along it: "
    "⟨Δ, Δ meant⟩ / ‖Δ meant‖²; 1 is wanted",
    "largest update error": "distance between the update made and the one meant, divided by the "
    "latter's size, of the parameter where it is largest; lower is better, 0 is equal",
    "binades gained per block": "doublings of the residual stream from block to block; 0 is wanted",
    "calls that raise": "calls of the step that end it with an exception; 0 is wanted",
    "loss scale": "factor on the loss under the cure",
    LOSS_AFTER: _LOSS,
}
# Where columns are narrow: the head, and what it leaves unsaid.
SHORT: dict[str, tuple[str, str]] = {
    "non-finite elements": ("non-finite", ""),
    "non-finite ops": ("non-finite ops", ""),
    "gradient lost": ("gradient lost", "share of a parameter's gradient that becomes 0"),
    "gradient error": ("gradient error", "distance from fp32's over its size, 0 is equal"),
    "descent kept": ("descent", "how far a step lowers the loss, 1 is as far as fp32's"),
    "realised fraction": ("update made", "share of the one meant, 1 is all of it"),
    "largest update error": (
        "update error",
        "distance from the one meant over its size, 0 is equal",
    ),
    "binades gained per block": ("growth", "doublings from block to block, 0 is wanted"),
    "calls that raise": ("raising", "calls of the step that end it"),
    "loss scale": ("scale", ""),
    LOSS_AFTER: ("loss", "at the end"),
}
_WHERE_NOT_MEASURED = "not measured, or not defined since the run itself is not finite there"


def meanings(quantities: Iterable[str], *, dash: bool) -> tuple[tuple[str, str], ...]:
    """Return (quantity, meaning) for those that have one, and if asked what a dash stands for."""
    said = [(q, _LOSS if q.startswith("loss after") else QUANTITIES.get(q, "")) for q in quantities]
    known = tuple((name, text) for name, text in said if text)
    return (*known, ("–", _WHERE_NOT_MEASURED)) if known and dash else known


def short_head(quantity: str) -> tuple[str, str]:
    """Return (head, meaning) of a narrow column; a meaning of "" needs no line in the legend."""
    if quantity.startswith("loss after"):
        return "loss", quantity.removeprefix("loss ")
    return SHORT.get(quantity, (quantity, ""))


def terms_used(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return (term, meaning) for every term that occurs as a word, in the order of TERMS."""
    text = "\n".join(texts).lower().replace("_", " ").replace("found inf", "found_inf")
    return tuple(item for item in TERMS.items() if _occurs(item[0].lower(), text))


def _occurs(term: str, text: str) -> bool:
    if term == "aten op":
        return "aten." in text
    return re.search(rf"(?<![\w]){re.escape(term)}(s|es)?(?![\w])", text) is not None
