"""One recorded step under another policy: the question and the answer.

Must not know how a step is replayed or how the answer is shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fp16doctor.schema.bundle import Origin
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.prescription import Verification

DTYPES = ("as-run", "fp16", "bf16", "fp32")
REFERENCES = ("fp32", "fp64")


@dataclass(frozen=True, slots=True)
class Question:
    """What is changed."""

    dtype: str = "as-run"  # one of DTYPES
    keep: tuple[str, ...] = ()  # patterns of ``KeepRule``, computed in fp32
    loss_scale: float | None = None  # None: the run's own
    reference: str = "fp32"  # one of REFERENCES

    @property
    def changes(self) -> bool:
        """Something else than the run itself is asked for."""
        return self.dtype != "as-run" or bool(self.keep) or self.loss_scale is not None


@dataclass(frozen=True, slots=True)
class Repetition:
    """The replay as run, held against what the recorded step left behind."""

    compared: int  # tensors
    differing: int
    first: OpSite | None = None  # last writer of the first tensor that differs
    loss: float | None = None  # sum over the backward calls, loss scale included

    @property
    def bit_equal(self) -> bool:
        """Every tensor has the recorded bits."""
        return self.differing == 0


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The answer."""

    origin: Origin
    question: Question
    moved: tuple[str, ...]  # devices of the recording that stood for the CPU here
    repetition: Repetition
    verification: Verification  # before is the run, after the change; not verified where none is asked for
    reference: dict[str, float] = field(default_factory=dict)  # the same numbers in the reference
    births_before: tuple[OpSite, ...] = ()  # ops that made inf or NaN of finite inputs, as run
    births_after: tuple[OpSite, ...] = ()
