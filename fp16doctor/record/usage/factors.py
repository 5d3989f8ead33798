"""What a product multiplies gradients by, as far as it is known without their values.

Must not know what carries a scale.
"""

from __future__ import annotations

from fp16doctor.record.roll import RawOp
from fp16doctor.record.split import reads_of, writes_of
from fp16doctor.record.usage.step_view import StepView, base_of, number_factor

INVERSE = 2.0**-10  # relative: one unit in the last place of fp16
LEAST_TWICE = 64.0  # a smaller factor, met twice, is an average as well


class Factors:
    """Of the products of one step."""

    def __init__(self, view: StepView) -> None:
        self._view = view
        self._constant: dict[int, bool] = {}  # one-element tensor -> leaves alone made it

    def of(self, index: int, op: RawOp) -> float | None:
        """Return a number, or the value of a tensor that only leaves made, as GradScaler's scale.

        None for any other op. Reads the device for a tensor.
        """
        known, kept = number_factor(op), self._view.calls.coefficients.get(index)
        if known is not None or kept is None or type(op.args[1]) is not tuple:
            return known
        if not self._is_constant(index, op.args[1][0]):
            return None
        value = float(kept.item())
        if base_of(op) == "mul":
            return value
        return 1 / value if value else None

    def _is_constant(self, index: int, number: int) -> bool:
        if number not in self._constant:
            leaves = self._view.roll.leaves.keys()
            makers = (o for o in self._view.ops[:index] if number in writes_of(o))
            self._constant[number] = all(reads_of(o) <= leaves for o in makers)
        return self._constant[number]


def is_inverse(factor: float, scale: float) -> bool:
    """Tell whether a product by ``factor`` divides the scale out, to the digits that fp16 has."""
    return abs(factor * scale - 1) < INVERSE


def plain_number(op: RawOp) -> float | None:
    """Return the Python number among an op's arguments, as clamp and products have it."""
    plain = [a for a in (*op.args[1:], *op.kwargs.values()) if type(a) in (int, float)]
    return max(map(abs, map(float, plain))) if plain else None


def is_ratio(factor: float) -> bool:
    """Tell n and 1/n for a whole number n: an average over micro-batches, ranks or a batch."""
    size = abs(factor)
    whole = size if size >= 1 else 1 / size
    return abs(whole - round(whole)) < 1e-6 * whole
