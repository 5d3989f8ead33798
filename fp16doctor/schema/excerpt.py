"""A few ops of a step that show one fault by themselves, with the tensors they are given.

Must not know how they are found or written down.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from fp16doctor.schema.location import OpSite

if TYPE_CHECKING:
    from torch import Tensor


class Shows(str, Enum):
    """What is wrong with the result of an excerpt."""

    NONFINITE = "nonfinite"  # inf or NaN, where the wider format has a number
    NONFINITE_IN_BOTH = "nonfinite_in_both"  # inf or NaN in the wider format too
    ZERO = "zero"  # zero, where the wider format has another number
    INTEGER = "integer"  # an integer became another one
    UNCHANGED = "unchanged"  # a tensor written in place is as before, and is not in the wider format
    REFUSED = "refused"  # the last op raises, and gives a result in the wider format
    OFF = "off"  # further from the wider format's result than rounding it once would put it


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor in an excerpt: one that is given, or the result of an earlier line."""

    name: str  # variable
    item: int | None = None  # position where the variable is a tuple or a list
    method: str | None = None  # how it is viewed: "permute", "reshape", "expand", "as_strided"
    parameters: tuple[Any, ...] = ()  # of the method


@dataclass(frozen=True, slots=True)
class Line:
    """One call; its arguments are Values, primitives, and lists of them."""

    result: str  # variable
    op: str  # "aten.mm.default"
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    site: OpSite


@dataclass(frozen=True, slots=True)
class Sample:
    """One element of the result that shows the fault."""

    bad: int  # elements that do
    total: int
    index: tuple[int, ...]
    as_run: float
    wide: float


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What ``fp16doctor repro`` writes down."""

    lines: tuple[Line, ...]
    given: dict[str, Tensor]  # by variable, in the order of the names
    answer: Value  # what is looked at
    shows: Shows
    widened: tuple[tuple[str, str], ...]  # (recorded dtype, dtype beside it), torch names
    sample: Sample
    before: str | None = None  # the given tensor that is written in place, for UNCHANGED
    limit: float = 0.0  # relative error that OFF begins at
    full_size: int = 0  # elements that the ops were given in the step
