"""Which number formats a replay uses.

Must not know torch dtypes or how a policy is carried out (``replay.casting``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrecisionPolicy:
    """Formats of one replay."""

    name: str  # "as_run", "fp32", "fp64"
    widen: tuple[tuple[str, str], ...] = ()  # (recorded dtype, replayed dtype), torch names


AS_RUN = PrecisionPolicy("as_run")
FP32 = PrecisionPolicy("fp32", (("float16", "float32"), ("bfloat16", "float32"), ("complex32", "complex64")))
FP64 = PrecisionPolicy(
    "fp64",
    (
        ("float16", "float64"),
        ("bfloat16", "float64"),
        ("float32", "float64"),
        ("complex32", "complex128"),
        ("complex64", "complex128"),
    ),
)
