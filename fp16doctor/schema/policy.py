"""Which number formats a replay uses.

Must not know torch dtypes or how a policy is carried out (``replay.solo``).
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from fp16doctor.schema.location import SourceLine


@dataclass(frozen=True, slots=True)
class KeepRule:
    """Part of a step that is computed in fp32.

    ``pattern`` is one of ``module:blocks.2.ffn`` (with everything below it), ``function:FILE:NAME``,
    ``line:FILE:NUMBER`` (what the line computes itself), ``op:aten.exp``.
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

    def names_line(self, line: SourceLine) -> bool:
        """Tell whether a rule for a function or a line covers a line of source."""
        file, _, rest = self.what.rpartition(":")
        if self.kind == "function":
            return _same_file(file, line.file) and _in_function(rest, line.function)
        return self.kind == "line" and _same_file(file, line.file) and str(line.line) == rest

    def names_op(self, op: str) -> bool:
        """Tell whether a rule for an op covers an overload, or its backward.

        A backward op runs in the format of its forward.
        """
        what = self.what
        return self.kind == "op" and (op == what or op.startswith((what + ".", what + "_backward")))


def in_module(pattern: str, path: str | None) -> bool:
    """Tell whether the module at ``path`` is named by ``pattern`` or lies below one that is."""
    if path is None:
        return False
    return path == pattern or path.startswith(pattern + ".") or fnmatchcase(path, pattern)


def _in_function(name: str, function: str) -> bool:
    return function == name or function.startswith(f"{name}.<locals>.")


def _same_file(pattern: str, file: str) -> bool:
    return not pattern or file == pattern or file.endswith("/" + pattern)


@dataclass(frozen=True, slots=True)
class ConstantRule:
    """A number of the script with another value, wherever an op at a place is given it.

    ``pattern`` is a place as in ``KeepRule``. The ops of backward have the place of their forward
    op: what they saved of the number changes with it, as it would by an edit of the line.
    """

    pattern: str
    old: float
    new: float


@dataclass(frozen=True, slots=True)
class PrecisionPolicy:
    """Formats of one replay."""

    name: str  # "as_run", "fp32", "fp64", "bf16", or what a remedy calls itself
    widen: tuple[tuple[str, str], ...] = ()  # (recorded dtype, replayed dtype), torch names
    keep: tuple[KeepRule, ...] = ()  # computed in fp32, inputs cast up
    casts_back: bool = False  # what leaves a kept place is rounded to its recorded format
    constants: tuple[ConstantRule, ...] = ()  # numbers among the arguments of ops
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
