"""Residual branches of a taped step: which numbered blocks add to a stream, and their layers.

Must not know what is done with them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fp16doctor.replay.parameters import parameter_values
from fp16doctor.schema.location import Phase
from fp16doctor.schema.tape import OpCall, Tape

_NUMBERED = re.compile(r"^(?P<stem>.*?)(?P<number>\d+)$")
_ADD = ("aten.add.", "aten.add_.")


@dataclass(frozen=True, slots=True)
class Branches:
    """Blocks ``stem.0`` … that each end in an addition, and their weight matrices by first use."""

    stem: str  # "body."
    numbers: tuple[int, ...]  # of the blocks, in order of use
    layer_names: tuple[str, ...]  # inside a block, the same in each: "conv1.weight"

    @property
    def weights(self) -> tuple[tuple[str, ...], ...]:
        """Parameter names, one tuple a block."""
        return tuple(tuple(f"{self.stem}{i}.{n}" for n in self.layer_names) for i in self.numbers)

    @property
    def depth(self) -> int:
        """L: the number of branches."""
        return len(self.numbers)

    @property
    def layers(self) -> int:
        """m: weight layers in a branch."""
        return len(self.layer_names)


def branches_at(tape: Tape, path: str) -> Branches | None:
    """Return the branches that the module ``path`` lies in.

    None where its blocks add nothing to their input, differ in their layers, or normalise: such a
    stream is none that Fixup is for (arXiv 1901.09321, section 2).
    """
    block = _block(path)
    if block is None:
        return None
    stem = block["stem"]
    inside = [c for c in tape.ops if (c.site.module_path or "").startswith(stem)]
    if any("norm" in c.op for c in inside) or not inside:
        return None
    forward = [c for c in inside if c.site.phase is Phase.FORWARD]
    found = dict.fromkeys(_number(c.site.module_path or "", stem) for c in forward)
    numbers = [n for n in found if n is not None]
    layers = {_weights(tape, forward, f"{stem}{n}.") for n in numbers}
    residual = all(_adds(forward, f"{stem}{n}") for n in numbers)
    if not residual or len(layers) != 1 or () in layers:
        return None
    return Branches(stem, tuple(map(int, numbers)), layers.pop())


def _block(path: str) -> re.Match[str] | None:
    """The innermost numbered module that holds ``path``."""
    pieces = path.split(".")
    for count in range(len(pieces), 0, -1):
        found = _NUMBERED.match(".".join(pieces[:count]))
        if found and pieces[count - 1].isdigit():
            return found
    return None


def _number(path: str, stem: str) -> str | None:
    piece = path[len(stem) :].partition(".")[0]
    return piece if piece.isdigit() else None


def _adds(forward: list[OpCall], block: str) -> bool:
    return any(c.site.module_path == block and c.op.startswith(_ADD) for c in forward)


def _weights(tape: Tape, forward: list[OpCall], block: str) -> tuple[str, ...]:
    """Matrices and kernels of a block; vectors (biases, gains) are no layers."""
    order = dict.fromkeys(c.site.module_path or "" for c in forward)
    matrices = [n for n, v in parameter_values(tape).items() if v.ndim > 1]
    found = [n for path in order for n in matrices if n.rpartition(".")[0] == path]
    return tuple(n[len(block) :] for n in found if n.startswith(block))
