"""Lets ``torch.compile`` compile nothing for a while: every op runs by itself and is seen.

What ``torch.compile`` returns stays what it is, ``_orig_mod`` and all; torch's own switch for
debugging is thrown, torch._dynamo.config.disable. Must not know recordings.
"""

from __future__ import annotations

import functools
from typing import Any

import torch


class Eager:
    """On between ``start`` and ``stop``; ``asked`` counts the calls of ``torch.compile``."""

    def __init__(self) -> None:
        self.asked = 0
        self._original: Any = None
        self._call: Any = None
        self._before: bool | None = None  # the switch, as it was

    def start(self) -> None:
        """Wrap ``torch.compile``; its package is not imported before the script asks for it."""
        original = self._original = torch.compile

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._throw()
            return original(*args, **kwargs)

        self._call = call
        torch.compile = call

    def stop(self) -> None:
        """Put both back."""
        if torch.compile is self._call:  # nobody wrapped it again meanwhile
            torch.compile = self._original
        if self._before is not None:
            _config().disable = self._before
        self._before = self._call = None

    def _throw(self) -> None:
        self.asked += 1
        if self._before is None:
            self._before = bool(_config().disable)
            _config().disable = True


def _config() -> Any:
    import torch._dynamo.config as config

    return config
