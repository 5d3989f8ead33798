"""The state in which fp16doctor does arithmetic of its own in the middle of a script.

Must not know what for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fp16doctor.record import own


class Quiet:
    """No modes, no grad, no inference mode, no autocast, nothing recorded."""

    def __init__(self, pause: Callable[[int], None]) -> None:
        self._pause = pause
        self._contexts = (
            torch._C.DisableTorchFunction(),
            _disable_current_modes(),
            own.inference_mode(False),
            own.no_grad(),
            torch._C._DisableAutocast(),
        )

    def __enter__(self) -> None:
        self._pause(1)
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *exc: Any) -> None:
        for context in reversed(self._contexts):
            context.__exit__(*exc)
        self._pause(-1)
