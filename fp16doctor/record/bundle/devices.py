"""The devices of a recording on the machine that replays it.

Where the recording's GPU is not there, tensors, device arguments and generators are moved to the
CPU. A GPU's generator gives other numbers than a CPU's, so each random op gets a state of its own:
the draws differ from the recorded ones and are the same in every replay.

Must not know files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from fp16doctor.schema.bundle import Bundle
from fp16doctor.schema.tape import Mark, OpCall, Tape, TensorRef, refs_in

_CPU_STATE = 64  # bytes: a CUDA generator's state has 16, a CPU generator's 5 thousand
_CPU = "cpu"

Places = dict[str, str]  # device of the recording -> device here


def on_this_machine(bundle: Bundle) -> Bundle:
    """Return the bundle with its tensors on this machine's devices."""
    found = {r.device for c in bundle.tape.ops for r in refs_in((c.args, c.kwargs, c.outputs))}
    return placed(bundle, {device: _here(device) for device in found})


def _here(device: str) -> str:
    if not device.startswith("cuda") or not torch.cuda.is_available():
        return device if device == "" else _CPU
    index = torch.device(device).index or 0
    return f"cuda:{index if index < torch.cuda.device_count() else 0}"


def placed(bundle: Bundle, places: Places) -> Bundle:
    """Return the bundle with its tensors, read onto the CPU, on the devices of ``places``."""
    if all(there in ("", _CPU) and here == there for there, here in places.items()):
        return bundle
    tape, move = bundle.tape, _Move(places)
    moved = replace(
        tape,
        ops=tuple(map(move.op, tape.ops)),
        losses=tuple(Mark(m.index, move.value(m.ref)) for m in tape.losses),
    )
    otherwise = next((here for there, here in places.items() if there not in ("", _CPU)), _CPU)
    return replace(bundle, tape=_with_bytes(moved, otherwise), moved=tuple(sorted(move.left)))


def _with_bytes(tape: Tape, otherwise: str) -> Tape:
    """Put the bytes of every storage where its references are.

    A tape tells devices of leaves alone: what else was snapshot goes to ``otherwise``.
    """
    refs = (r for c in tape.ops for r in refs_in((c.args, c.kwargs, c.outputs)))
    devices = {r.storage: r.device for r in refs if r.device}
    leaves = {
        n: replace(leaf, data=leaf.data.to(devices.get(n, otherwise)))
        for n, leaf in tape.leaves.items()
    }
    snapshots = {
        (index, n): data.to(devices.get(n, otherwise))
        for (index, n), data in tape.snapshots.items()
    }
    return replace(tape, leaves=leaves, snapshots=snapshots)


class _Move:
    """What becomes of ops, references and arguments."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self.left = {d for d, here in places.items() if here == _CPU and d not in ("", _CPU)}

    def op(self, call: OpCall) -> OpCall:
        """Return a call on the devices here."""
        rng, generator = call.rng, call.generator
        if rng is not None and rng.numel() <= _CPU_STATE and self.left:
            rng = torch.Generator().manual_seed(call.index).get_state()
        return replace(
            call,
            args=tuple(map(self.value, call.args)),
            kwargs={k: self.value(v) for k, v in call.kwargs.items()},
            outputs=self.value(call.outputs),
            generator=None if generator is None else self._place(generator),
            rng=rng,
        )

    def value(self, value: Any) -> Any:
        """Return a reference or an argument on the devices here."""
        if isinstance(value, TensorRef):
            return replace(value, device=self._place(value.device))
        if isinstance(value, torch.device):
            return torch.device(self._place(str(value)))
        if isinstance(value, torch.Generator):
            return torch.Generator(self._place(str(value.device)))
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.value, value))
        return value

    def _place(self, device: str) -> str:
        """Return where a device is here; one that no tensor is on, as it would be for a tensor."""
        return self._places.get(device) or _here(device)
