"""Notices the losses that ``backward`` is called on.

``torch.autograd.backward``, which ``Tensor.backward`` calls, is wrapped while a run is watched and
put back afterwards. Must not know loss scales or steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor


class LossWatch:
    """``take`` gets each loss that backward is called on, and the gradient given for it."""

    def __init__(self, take: Callable[[Tensor, Tensor | None], None]) -> None:
        self._take = take
        self._put_back: Callable[[], None] | None = None

    def attach(self) -> None:
        """Put the wrapper on."""
        owner: Any = torch.autograd
        original = owner.backward

        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            # A reentrant checkpoint calls backward inside backward.
            if torch._C._current_graph_task_id() == -1:
                given = args[0] if args else kwargs.get("grad_tensors")
                for loss, gradient in _pairs(tensors, given):
                    self._take(loss, gradient)
            return original(tensors, *args, **kwargs)

        def restore() -> None:
            if owner.backward is backward:  # nobody wrapped it again meanwhile
                owner.backward = original

        owner.backward, self._put_back = backward, restore

    def detach(self) -> None:
        """Take it off."""
        if self._put_back is not None:
            self._put_back()
        self._put_back = None


def _pairs(roots: Any, gradients: Any) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield the roots that may be losses: one number, or any shape with a gradient given for it."""
    roots = roots if isinstance(roots, (list, tuple)) else (roots,)
    given = gradients if isinstance(gradients, (list, tuple)) else (gradients,)
    for root, gradient in zip_longest(roots, given):
        if type(root) is not Tensor:
            continue
        if gradient is None and root.numel() == 1:
            yield root, None
        elif type(gradient) is Tensor and root.shape == gradient.shape:
            yield root, gradient
