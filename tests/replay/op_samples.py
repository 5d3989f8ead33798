"""torch's own operator samples, recorded forward and backward.

They are in the module that defines torch's own test case, which wants the package ``expecttest``;
only the samples are used here, so that an empty stand-in does.
"""

from __future__ import annotations

import itertools
import random
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from replaying import watch
from torch import Tensor

from fp16doctor.errors import ReplayError
from fp16doctor.replay.examine import random_state_kept
from fp16doctor.replay.fidelity import compare
from fp16doctor.replay.lockstep import lockstep
from fp16doctor.schema.policy import FP32, FP64
from fp16doctor.schema.tape import Tape
from fp16doctor.schema.trace import Fidelity

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def operators() -> list[Any]:
    """Return torch's operator descriptions, in their order."""
    if "expecttest" not in sys.modules:
        try:
            __import__("expecttest")
        except ImportError:
            stand_in: Any = types.ModuleType("expecttest")
            stand_in.TestCase = unittest.TestCase
            sys.modules["expecttest"] = stand_in
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


@dataclass
class Played:
    """One sample: how close its replay as run came, and what a reference took from the run."""

    fidelity: Fidelity | None = None
    error: str = ""
    pinned: dict[str, dict[str, str]] = field(default_factory=dict)  # policy -> op -> reason


def samples(op: Any, dtype: torch.dtype, most: int) -> Iterator[Callable[[], Any]]:
    """Yield functions that run one sample forward and backward; those that fail are left out."""
    if dtype not in op.supported_dtypes("cpu"):
        return
    grad = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    _seed()
    found = op.sample_inputs("cpu", dtype, requires_grad=grad)
    for sample in itertools.islice(found, most):
        function = _forward_and_backward(op, sample, grad)
        try:
            function()
        except (RuntimeError, TypeError, ValueError, AssertionError):  # the sample's own trouble
            continue
        yield function


def _forward_and_backward(op: Any, sample: Any, grad: bool) -> Callable[[], Any]:
    given = _tensors([sample.input, *sample.args, *sample.kwargs.values()])
    leaves = [t for t in given if t.is_leaf]

    def run() -> Any:
        _seed()
        for leaf in leaves:
            leaf.grad = None
        out = op(sample.input, *sample.args, **sample.kwargs)
        outputs = [_real(t) for t in _tensors(out) if t.requires_grad]
        if grad and outputs:
            torch.stack([t.float().sum() for t in outputs]).sum().backward()
        return out

    return run


def _seed() -> None:
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, (list, tuple)) else []


def play(function: Callable[[], Any]) -> Played:
    """Record a sample, replay it as run and beside both references."""
    played = Played()

    def look(tape: Tape) -> None:
        with random_state_kept():
            try:
                played.fidelity = compare(tape, lockstep(tape, None).run)
                for policy in (FP32, FP64):
                    reference = lockstep(tape, policy).reference
                    assert reference is not None
                    played.pinned[policy.name] = dict(reference.pinned)
            except ReplayError as error:
                played.error = str(error)

    watch(function, look=look)
    return played
