"""Which number formats a replay uses.

Must not know torch dtypes or how a policy is carried out (``replay.solo``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeepRule:
    """Part of a step that is computed in fp32.

    ``pattern`` is one of ``module:blocks.2.ffn`` (with everything below it), ``function:FILE:NAME``,
    ``line:FILE:NUMBER``, ``op:aten.exp``.
    """

    pattern: str

    @property
    def kind(self) -> str:
        """module, function, line or op."""
        return self.pattern.partition(":")[0]

    @property
    def what(self) -> str:
        """The pattern without its kind."""
        return self.pattern.partition(":")[2]


@dataclass(frozen=True, slots=True)
class PrecisionPolicy:
    """Formats of one replay."""

    name: str  # "as_run", "fp32", "fp64", "bf16", or what a remedy calls itself
    widen: tuple[tuple[str, str], ...] = ()  # (recorded dtype, replayed dtype), torch names
    keep: tuple[KeepRule, ...] = ()  # computed in fp32, inputs cast up
    scale_factor: float = 1.0  # the loss scale of the run is multiplied by this
    stores_fp32: bool = False  # parameters and what steps carry on are kept in fp32, as under autocast


AS_RUN = PrecisionPolicy("as_run")
FP32 = PrecisionPolicy(
    "fp32", (("float16", "float32"), ("bfloat16", "float32"), ("complex32", "complex64"))
)
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
BF16 = PrecisionPolicy("bf16", (("float16", "bfloat16"),))
FP16 = PrecisionPolicy("fp16", (("bfloat16", "float16"),))
