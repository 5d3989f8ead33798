"""Notices the losses that ``backward`` is called on in steps that are not taped.

``torch.autograd.backward``, which ``Tensor.backward`` calls, is wrapped while a run is watched and
put back afterwards. Must not know loss scales or steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class LossWatch:
    """``take`` gets each scalar that backward is called on; it is read at the end of the step."""

    def __init__(self, take: Callable[[Tensor], None]) -> None:
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
                for loss in tensors if isinstance(tensors, (list, tuple)) else (tensors,):
                    if type(loss) is Tensor and loss.numel() == 1:
                        self._take(loss)
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
