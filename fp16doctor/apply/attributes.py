"""Replaces an attribute for as long as a block runs.

Must not know what is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import WRAPPER_ASSIGNMENTS, update_wrapper
from typing import Any


@contextmanager
def replaced(
    owner: Any, name: str, made: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Put ``made(original)`` in place of ``owner.name``; it is put back unless replaced again."""
    original = getattr(owner, name)
    new = made(original)
    update_wrapper(new, original, WRAPPER_ASSIGNMENTS)
    setattr(owner, name, new)
    try:
        yield
    finally:
        if getattr(owner, name) is new:
            setattr(owner, name, original)
