"""What a bundle's document may not be, and small readers of its plain values.

Must not know what the values mean.
"""

from __future__ import annotations

from typing import Any

MOST = 2**62  # larger integers belong to no tensor


class MalformedError(Exception):
    """Part of a document is not what fp16doctor writes; the message says which."""


def integer(data: Any, what: str, least: int = 0) -> int:
    """Return an integer between ``least`` and MOST."""
    if type(data) is not int or not least <= data <= MOST:
        raise MalformedError(f"{what} is no integer from {least} on")
    return data


def integers(data: Any, what: str) -> tuple[int, ...]:
    """Return a list of integers from 0 on."""
    return tuple(integer(d, what) for d in items(data, what))


def text(data: Any, what: str) -> str:
    """Return a string."""
    if not isinstance(data, str):
        raise MalformedError(f"{what} is no string")
    return data


def optional_text(data: Any, what: str) -> str | None:
    """Return a string or None."""
    return None if data is None else text(data, what)


def optional_integer(data: Any, what: str, least: int = 0) -> int | None:
    """Return an integer or None."""
    return None if data is None else integer(data, what, least)


def items(data: Any, what: str) -> list[Any]:
    """Return a list."""
    if not isinstance(data, list):
        raise MalformedError(f"{what} is no list")
    return data


def mapping(data: Any, what: str) -> dict[str, Any]:
    """Return an object."""
    if not isinstance(data, dict):
        raise MalformedError(f"{what} is no object")
    return data


def flag(data: Any, what: str) -> bool:
    """Return true or false."""
    if not isinstance(data, bool):
        raise MalformedError(f"{what} is neither true nor false")
    return data
