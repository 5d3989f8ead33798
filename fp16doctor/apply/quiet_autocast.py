"""Autocast off on every kind of device where it is on.

Must not know what runs inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

AUTOCAST_DEVICES = ("cpu", "cuda")


@contextmanager
def no_autocast() -> Iterator[None]:
    """Run the block without autocast; what was set before is set again after it."""
    with ExitStack() as stack:
        for device in AUTOCAST_DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def autocast_is_on() -> bool:
    """Tell whether autocast is on for any kind of device."""
    return any(map(torch.is_autocast_enabled, AUTOCAST_DEVICES))
