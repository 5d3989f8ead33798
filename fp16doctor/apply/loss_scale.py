"""Another loss scale in a running script: in its GradScaler, or around its own backward.

Must not know how a scale is found.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fp16doctor.apply.attributes import replaced
from fp16doctor.apply.values import HALF
from fp16doctor.errors import ApplyError


@contextmanager
def scaler_starts_at(scale: float) -> Iterator[None]:
    """Have every GradScaler that is made start at ``scale``."""
    with _scaler_made_with(init_scale=float(scale)):
        yield


@contextmanager
def no_scaler() -> Iterator[None]:
    """Have every GradScaler that is made do nothing."""
    with _scaler_made_with(enabled=False):
        yield


@contextmanager
def _scaler_made_with(**wanted: Any) -> Iterator[None]:
    def made(original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            given = signature.bind(self, *args, **kwargs)
            given.arguments.update(wanted)
            original(*given.args, **given.kwargs)

        return __init__

    with replaced(torch.amp.GradScaler, "__init__", made):
        yield


@contextmanager
def backward_scaled_by(factor: float) -> Iterator[None]:
    """Multiply what backward starts from, and divide each gradient where it reaches a leaf.

    It is what a script does that multiplies its loss before backward and divides ``p.grad`` by
    the same number afterwards, for leaves in fp32.

    Raises:
        ApplyError: half-stored-leaves, in the script, where a gradient that is stored in 16 bits
            would be divided in 16 bits.
    """

    def made(original: Callable[..., None]) -> Callable[..., None]:
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
            if torch._C._current_graph_task_id() != -1:  # a checkpoint's own, inside backward
                original(tensors, grad_tensors, *args, **kwargs)
                return
            roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
            handles = [leaf.register_hook(divided) for leaf in leaves_of(roots)]
            try:
                original(roots, _seeds(roots, grad_tensors, factor), *args, **kwargs)
            finally:
                for handle in handles:
                    handle.remove()

        return backward

    def divided(gradient: Tensor) -> Tensor:
        return gradient / factor

    with replaced(torch.autograd, "backward", made):
        yield


def _seeds(roots: list[Tensor], given: Any, factor: float) -> list[Tensor]:
    own = list(given) if isinstance(given, (list, tuple)) else [given] * len(roots)
    pairs = zip(roots, own, strict=True)
    return [torch.full_like(r, factor) if g is None else g * factor for r, g in pairs]


def leaves_of(roots: list[Tensor]) -> list[Tensor]:
    """Return the leaves whose ``grad`` a backward from ``roots`` adds to.

    Raises:
        ApplyError: half-stored-leaves.
    """
    found: dict[int, Tensor] = {}
    todo, seen = [r.grad_fn for r in roots if r.grad_fn is not None], set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            found[id(leaf)] = leaf
        todo += [n for n, _ in node.next_functions if n is not None]
    if any(leaf.dtype in HALF for leaf in found.values()):
        raise ApplyError(
            "another loss scale cannot be put in from outside: parameters are stored in 16 bits, "
            "and their gradients would be divided in 16 bits; change the scale in the script",
            "half-stored-leaves",
        )
    return list(found.values())
