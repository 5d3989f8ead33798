"""What is known of a birth, inf or NaN made of finite values, as soon as the op has run.

Must not know where the values go afterwards (``taint``) nor why inputs were as they were.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fp16doctor.formats.number_format import get_format
from fp16doctor.replay import constants
from fp16doctor.replay.environment import torch_dtype
from fp16doctor.replay.values import amax, format_name, is_finite, unravel
from fp16doctor.schema.tape import OpCall, TensorRef
from fp16doctor.schema.trace import EventKind

Element = tuple[int, ...]


@dataclass(slots=True)
class BirthFacts:
    """What was measured at one birth; kinds that need the end of the step are settled later."""

    call: OpCall
    ref: TensorRef  # the output that is non-finite
    format: str
    kind: EventKind
    shared: bool  # the reference run is non-finite there as well
    nan_from_inf: bool  # NaN made of an inf that an input held
    dirty: bool  # an input held an inf or NaN, but not where this birth is
    constant_source: bool  # the inf comes from an infinite constant in the call
    n_inf: int
    n_nan: int
    total: int
    element: Element
    exact: float | None
    reference: float | None
    reference_amax: float | None
    operands: tuple[tuple[str, float, float], ...]
    integer_operand: bool
    constant: float | None

    @property
    def inherits(self) -> bool:
        """The op also passes on what an earlier birth left in its inputs."""
        return self.nan_from_inf or self.dirty


@dataclass(frozen=True, slots=True)
class Born:
    """Where in an output something was born, and the output in three forms (real numbers)."""

    mask: Tensor
    mine: Tensor  # as run
    exact: Tensor | None  # in reference precision on the run's inputs; None where it does not run
    other: Tensor  # in the reference run
    from_inf: bool = False  # NaN, made of an inf among the inputs
    dirty: bool = False  # the inputs were non-finite elsewhere

    def worst(self) -> int:
        """Return a flat index: the largest finite exact magnitude among the born elements.

        Where there is none, one that is finite in the reference run, else the first.
        """
        candidates = self.mask.reshape(-1)
        if self.exact is not None:
            size = self.exact.reshape(-1).double().abs()
            finite = candidates & torch.isfinite(size)
            if bool(finite.any()):
                return int(torch.where(finite, size, torch.full_like(size, -1.0)).argmax())
        moved = candidates & torch.isfinite(self.other.reshape(-1))
        chosen = moved if bool(moved.any()) else candidates
        return int(chosen.to(torch.uint8).argmax())


def describe(call: OpCall, ref: TensorRef, born: Born) -> BirthFacts:
    """Return the facts of a birth in output ``ref``; operands are added by who has them."""
    flat = born.worst()
    exact = None if born.exact is None else float(born.exact.reshape(-1)[flat])
    reference = float(born.other.reshape(-1)[flat])
    fmt = format_name(torch_dtype(ref.dtype))
    return BirthFacts(
        call=call,
        ref=ref,
        format=fmt,
        kind=_kind(exact, fmt),
        shared=not is_finite(reference),
        nan_from_inf=born.from_inf,
        dirty=born.dirty,
        constant_source=not is_finite(exact) and constants.has_infinite(call),
        n_inf=int((torch.isinf(born.mine) & born.mask).sum()),
        n_nan=int((torch.isnan(born.mine) & born.mask).sum()),
        total=born.mine.numel(),
        # A complex element has a real and an imaginary part, counted apart.
        element=unravel(flat, tuple(born.mine.shape))[: len(ref.shape)],
        exact=exact,
        reference=reference,
        reference_amax=amax(born.other),
        operands=(),
        integer_operand=False,
        constant=constants.beyond(call, fmt),
    )


def _kind(exact: float | None, fmt: str) -> EventKind:
    if exact is None:
        return EventKind.UNKNOWN
    if not is_finite(exact):
        return EventKind.BOUNDARY  # or intended, or logic: settled at the end of the step
    if abs(exact) >= get_format(fmt).overflow_threshold:
        return EventKind.OVERFLOW
    return EventKind.INTERNAL_OVERFLOW
