"""What a step left behind, as checksums: another process can tell whether its replay is equal.

Must not know files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from fp16doctor.errors import ReplayError
from fp16doctor.replay.casting import REFUSALS
from fp16doctor.replay.environment import torch_dtype
from fp16doctor.replay.examine import random_state_kept
from fp16doctor.replay.fidelity import left_in, without_memory, written_views
from fp16doctor.replay.lockstep import last_uses
from fp16doctor.replay.player import Player
from fp16doctor.replay.scales import read_loss
from fp16doctor.schema.bundle import MATMUL_PRECISION, Origin
from fp16doctor.schema.policy import AS_RUN
from fp16doctor.schema.tape import Tape, TensorRef
from fp16doctor.schema.what_if import Repetition

MOST_THREADS = 256  # whatever a file says
_PRECISIONS = ("highest", "high", "medium")


def outcome_of(tape: Tape) -> dict[int, str]:
    """Return storage -> SHA-256 of what the script left in it, through the views the tape names.

    As in ``fidelity.compare`` all NaNs are one, and what no view covers means nothing.
    """
    found = {}
    for number, views in written_views(tape).items():
        left = tape.final.get(number)
        if left is not None and not without_memory(left, views):
            found[number] = _digest({ref: left_in(left, ref) for ref in views})
    return found


@contextmanager
def as_recorded(origin: Origin) -> Iterator[None]:
    """Have torch compute as it did in the recording: threads cut sums, a setting cuts products."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    wanted = origin.settings.get(MATMUL_PRECISION, precision)
    torch.set_num_threads(min(max(origin.threads, 1), MOST_THREADS))
    torch.set_float32_matmul_precision(wanted if wanted in _PRECISIONS else precision)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


def repeat(tape: Tape, outcome: dict[int, str]) -> Repetition:
    """Replay a tape as run and compare what it leaves; raises ReplayError where it cannot."""
    with random_state_kept(), torch.no_grad():
        return _repeat(tape, outcome)


def _repeat(tape: Tape, outcome: dict[int, str]) -> Repetition:
    run = Player(tape, AS_RUN)
    nothing = torch.empty(0, dtype=torch.uint8)
    last = last_uses(replace(tape, final=dict.fromkeys(outcome, nothing)))
    losses: list[float] = []
    for call in tape.ops:
        losses += _losses(tape, run, call.index)
        try:
            run.play(call)
        except REFUSALS as error:
            raise _failed(call.op, call.index, error) from error
        for number in last.get(call.index, ()):
            run.env.drop(number)
    losses += _losses(tape, run, len(tape.ops))
    return _compared(tape, run, outcome, sum(losses) if losses else None)


def _compared(tape: Tape, run: Player, outcome: dict[int, str], loss: float | None) -> Repetition:
    views = written_views(tape)
    differing = []
    for number, wanted in outcome.items():
        mine = {ref: run.env.tensor(ref) for ref in views.get(number, ())}
        if not mine or _digest(mine) != wanted:
            differing.append(max(views.get(number, {}).values(), default=0))
    first = tape.ops[min(differing)].site if differing and tape.ops else None
    return Repetition(len(outcome), len(differing), first, loss)


def _losses(tape: Tape, run: Player, index: int) -> list[float]:
    return [
        read_loss(run, mark)
        for mark in tape.losses
        if mark.index == index and run.env.has(mark.ref.storage)
    ]


def _failed(op: str, index: int, error: Exception) -> ReplayError:
    if isinstance(error, ReplayError):
        return error
    return ReplayError(
        f"replaying `{op}`, op {index}, failed: {error}; replay it on a machine like that of the"
        " recording",
        "replay-failed",
    )


def _digest(views: dict[TensorRef, Tensor]) -> str:
    whole = hashlib.sha256()
    for ref in sorted(views, key=lambda r: (r.offset, r.dtype, r.shape, r.stride)):
        whole.update(_bytes(views[ref], torch_dtype(ref.dtype)))
    return whole.hexdigest()


def _bytes(tensor: Tensor, dtype: torch.dtype) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1).cpu()
    if dtype.is_complex:
        flat = torch.view_as_real(flat).reshape(-1)
    if flat.is_floating_point() and flat.element_size() > 1:
        flat = torch.where(torch.isnan(flat), torch.full_like(flat, torch.nan), flat)
    return flat.view(torch.uint8).numpy().tobytes()
