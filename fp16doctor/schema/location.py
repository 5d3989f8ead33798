"""Where something happened: phase, source line, op site.

Must not know how sites are found (``record``) or worded (``report``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

TEXT_ROLE = "text"  # of a site in a script's text that no run was needed to find


class Phase(str, Enum):
    """Part of a training step in which an op ran."""

    FORWARD = "forward"  # inside a call of a module that is not a loss module
    LOSS = "loss"  # between forward and backward, outside the model's modules
    BACKWARD = "backward"  # inside the autograd engine, checkpoint recompute excepted
    OPTIMIZER = "optimizer"  # after backward: unscale, clip, step, EMA
    SCRIPT = "script"  # no step running: set-up, data preparation, logging


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of Python source."""

    file: str  # path, relative to the script's folder where it lies below it
    line: int  # 1-based
    function: str  # qualified name of the enclosing function, "<module>" at top level
    text: str | None = None  # the line as written, stripped; None under --no-source


@dataclass(frozen=True, slots=True)
class SourceContext:
    """A line of source between its neighbours."""

    file: str  # as in SourceLine
    line: int  # the one that is meant, 1-based
    first: int  # number of the first of ``lines``
    lines: tuple[str, ...]  # as written, what all of them are indented by left out


@dataclass(frozen=True, slots=True)
class OpSite:
    """One op call of one step, as a reader can find it again."""

    step: int  # 0-based optimizer attempt; -1 before the first
    phase: Phase
    op: str  # ATen overload name, e.g. "aten.mm.default"
    index: int  # position on the tape
    module_path: str | None = None  # FQN below its root; "" is the root's own forward; None outside modules
    module_class: str | None = None  # class name of that module
    role: str = "output"  # output, input[1], grad_output, weight, weight.grad, update, text
    source: SourceLine | None = None  # innermost line outside torch and fp16doctor
    caller: SourceLine | None = None  # the user's own line where ``source`` lies in a library
    element: tuple[int, ...] | None = None  # index of the worst element in the tensor
    rank: int = 0  # distributed rank
    sample: int | None = None  # position in the batch of the sample that ``element`` belongs to
