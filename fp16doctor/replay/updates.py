"""Which part of an intended update a stored 16-bit tensor really takes.

Looked at are tensors that live from step to step and carry their own state: weights, optimizer
state, EMA copies, accumulators, buffers. A 16-bit copy that is overwritten from a wider master
carries none.

Source of the measure: ⟨Δ, Δref⟩ / ‖Δref‖², Δ as stored, Δref by the same ops in fp32 from the same
stored values. Must not know bounds or words.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fp16doctor.replay import op_traits
from fp16doctor.replay.dataflow import producers_of, writes
from fp16doctor.replay.environment import torch_dtype
from fp16doctor.replay.player import Player
from fp16doctor.replay.rebound import Name, Path, Rebound, rebounds
from fp16doctor.replay.retention import in_place, retention
from fp16doctor.replay.update_ledger import UpdateLedger, sample
from fp16doctor.replay.values import FORMAT_NAMES, HALF
from fp16doctor.schema.precision import UpdateLoss
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

# A tensor that is this much smaller in fp32 is what 16-bit rounding left (Kahan's compensation).
_ROUNDING = 0.01


class UpdateWatch:
    """Measures all carried 16-bit tensors of one step."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._seen: list[tuple[int | Name, UpdateLoss, Tensor, Tensor]] = []
        self._rebound: list[tuple[Rebound, Tensor, Tensor]] = []  # sampled values of both ends
        self._producers = producers_of(tape)

    def measure(self, run: Player, reference: Player) -> None:
        """Compare what both replays made of each tensor, at the tape's end."""
        for number, leaf in self._tape.leaves.items():
            ref = self._producers.widest_view(number)
            writers = self._producers.writers(number)
            if ref is None or ref.dtype not in HALF or not writers:
                continue
            if not (run.env.has(number) and reference.env.has(number)):
                continue
            if carries_state(self._tape, number, writers):
                change = _Change(
                    _initial(leaf.data, ref), run.env.tensor(ref), reference.env.tensor(ref)
                )
                path = in_place(self._tape, ref, writers)
                last = _main_writer(self._tape, writers)
                self._book(leaf.key, number, last, change, path)
        for pair in rebounds(self._tape, self._producers):
            if run.env.has(pair.new.storage) and reference.env.has(pair.new.storage):
                self._book_rebound(pair, run, reference)

    def _book_rebound(self, pair: Rebound, run: Player, reference: Player) -> None:
        before = _initial(self._tape.leaves[pair.old.storage].data, pair.old)
        after = run.env.tensor(pair.new)
        change = _Change(before, after, reference.env.tensor(pair.new))
        self._rebound.append((pair, sample(before), sample(after)))
        self._book(pair.name, pair.old.storage, pair.path[0][0], change, pair.path)

    def _book(
        self,
        key: int | Name,
        number: int,
        last: int,
        change: _Change,
        path: Path,
    ) -> None:
        if _is_rounding_error(change):
            return
        leaf = self._tape.leaves[number]
        start, end, intended_end = change.start.double(), change.end.double(), change.wide.double()
        good = torch.isfinite(end) & torch.isfinite(intended_end) & torch.isfinite(start)
        zero = torch.zeros_like(start)
        delta = torch.where(good, end - start, zero)
        intended = torch.where(good, intended_end - start, zero)
        moves = intended != 0
        sizes = (intended[moves] / start[moves]).abs()
        loss = UpdateLoss(
            name=leaf.name or "",
            role=_role(self._tape, number),
            format=FORMAT_NAMES[change.end.dtype],
            site=self._tape.ops[last].site,
            total=start.numel(),
            unchanged=int(((delta == 0) & moves).sum()),
            should_move=int(moves.sum()),
            underflows=int(((end == 0) & (intended_end != 0) & good).sum()),
            dot=float((delta * intended).sum()),
            norm2=float((intended**2).sum()),
            n_writes=max(len(self._producers.writers(number)), 1),
            relative_update=float(sizes.median()) if sizes.numel() else None,
            size=float(sample(start).norm()),
            retention=retention(self._tape, path),
        )
        self._seen.append((key, loss, sample(delta), sample(intended)))

    def commit(self, ledger: UpdateLedger) -> None:
        """Book the step: to be called where nothing else than rounding changed its updates."""
        for pair, old, new in self._rebound:
            start, end = self._tape.leaves[pair.old.storage], pair.new.storage
            ledger.chains.note(pair, self._tape.step, (start.key, old), (self._tape.keys[end], new))
        for key, loss, moved, intended in self._seen:
            ledger.add(key, loss, moved, intended)


@dataclass(frozen=True, slots=True)
class _Change:
    """A tensor in front of a step and behind it, as run and in the reference."""

    start: Tensor
    end: Tensor
    wide: Tensor


def _is_rounding_error(change: _Change) -> bool:
    """Tell whether a tensor carries along what rounding takes from another: nothing in fp32."""
    as_run = float(torch.linalg.vector_norm(change.end.double()))
    wide = float(torch.linalg.vector_norm(change.wide.double()))
    return as_run > 0.0 and wide <= _ROUNDING * as_run


def is_weight(tape: Tape, number: int) -> bool:
    """Tell whether a tensor is trained: a parameter that gets a gradient.

    A copy of a model, for evaluation or as an average, has parameters too, but no gradients.
    """
    leaf, trained = tape.leaves[number], set(tape.gradients.values())
    if not leaf.is_parameter or not trained:
        return leaf.is_parameter
    return (leaf.name or f"parameter {number}") in trained


def _role(tape: Tape, number: int) -> str:
    if is_weight(tape, number):
        return "parameter"
    return "buffer" if tape.leaves[number].is_buffer else "state"


def _main_writer(tape: Tape, writers: list[int]) -> int:
    """Return the last of the writes by the line and op that writes most often."""
    places = [(tape.ops[i].op, tape.ops[i].site.source) for i in writers]
    most = max(places.count(p) for p in places)
    return max(i for i, p in zip(writers, places, strict=True) if places.count(p) == most)


def carries_state(tape: Tape, number: int, writers: list[int]) -> bool:
    """Tell whether the new value is made from the old one, not copied from somewhere else."""
    if any(not op_traits.overwrites(tape.ops[i].op) for i in writers):
        return True
    descends = _descendants(tape, number, tape.backward_ends[-1] if tape.backward_ends else 0)
    return any(_source(tape.ops[i], number) & descends for i in writers)


def _descendants(tape: Tape, number: int, first: int) -> set[int]:
    """Return the storages computed from one, by the ops from ``first`` on."""
    found = {number}
    for call in tape.ops[first:]:
        if any(r.storage in found for r in refs_in((call.args, call.kwargs))):
            made = writes(call)
            if number not in made:
                found |= made
    return found - {number}


def _source(call: OpCall, number: int) -> set[int]:
    return {r.storage for r in refs_in((call.args, call.kwargs))} - {number}


def _initial(data: Tensor, ref: TensorRef) -> Tensor:
    out = torch.empty(0, dtype=torch_dtype(ref.dtype), device=data.device)
    return out.set_(data.untyped_storage(), ref.offset, ref.shape, ref.stride)
