"""Cures and the proof of them.

Must not know how a cure is tried.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from fp16doctor.schema.stream import StreamBlock


class RemedyKind(str, Enum):
    """What a remedy changes."""

    DTYPE = "dtype"
    LOSS_SCALE = "loss_scale"
    FP32_KEEP = "fp32_keep"
    STORAGE = "storage"
    FIXUP_INIT = "fixup_init"
    CODE_FIX = "code_fix"


class Verdict(str, Enum):
    """What the trial showed."""

    VERIFIED = "verified"
    REFUTED = "refuted"
    NOT_VERIFIED = "not_verified"


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change."""

    kind: RemedyKind
    title: str  # imperative, one thing
    change: str = ""  # text to paste: plain torch
    target: tuple[str, ...] = ()  # module:… function:… line:… op:…
    value: Any = None  # dtype name, or {"low", "recommended", "high"} of a loss scale; of a
    # keep-list the torch name of the format that its modules return, None for fp32
    cost: dict[str, float] = field(default_factory=dict)  # flops_share, bytes_share
    forms: dict[str, str] = field(default_factory=dict)  # the same for "FSDP", …: text to paste
    casts: tuple[str, ...] = ()  # lines of the script that need a cast of their own beside it


@dataclass(frozen=True, slots=True)
class Verification:
    """Before and after, by replay."""

    verdict: Verdict
    reason: str = ""
    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)
    steps: tuple[int, ...] = ()
    stream: tuple[StreamBlock, ...] = ()  # of a cure of initial weights: the residual stream
    losses: tuple[float, ...] = ()  # under the cure, over the consecutive steps of the trajectory


GROWS_ON = "goes on growing in fp32 too"  # stands in the reason of a cure that only gives room
TOGETHER = "tried together with: "  # begins the reason of a joint cure's part; the others' titles


@dataclass(frozen=True, slots=True)
class Prescription:
    """A remedy, the findings it treats (positions in the diagnosis), and its proof."""

    remedy: Remedy
    treats: tuple[int, ...]
    verification: Verification


class RecommendationStatus(str, Enum):
    """The answer in one word."""

    NONE_NEEDED = "none_needed"
    PRESCRIBED = "prescribed"
    NONE_FOUND = "none_found"
    NOT_PRECISION = "not_precision"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The answer in one sentence."""

    status: RecommendationStatus
    sentence: str
    prescriptions: tuple[int, ...] = ()  # positions of the one joint cure
