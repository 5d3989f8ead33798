"""Maps what stands in arguments: tensors and dtypes in tuples, lists, dicts and dataclasses.

Must not know why anything is cast.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
Change = Callable[[Any], Any]


def mapped(value: Any, change: Change) -> Any:
    """Return ``value`` with ``change`` applied to every tensor and dtype in it.

    A container in which nothing changes comes back as it is, so that its identity survives.
    """
    if isinstance(value, (Tensor, torch.dtype)):
        return change(value)
    if isinstance(value, (tuple, list)):
        return _sequence(value, change)
    if isinstance(value, dict):
        new = {k: mapped(v, change) for k, v in value.items()}
        return value if _same(value.values(), new.values()) else _rebuilt(value, new)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _dataclass(value, change)
    return value


def to_fp32(value: Any) -> Any:
    """Return ``value`` with every 16-bit tensor in it cast to fp32; autograd casts back."""
    return mapped(value, _up)


def to_dtype(value: Any, dtype: torch.dtype) -> Any:
    """Return ``value`` with every floating tensor in it cast to ``dtype``."""
    return mapped(value, lambda x: x.to(dtype) if _is_float(x) and x.dtype != dtype else x)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)


def _up(x: Any) -> Any:
    return x.float() if isinstance(x, Tensor) and x.dtype in HALF else x


def _is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def _sequence(value: Any, change: Change) -> Any:
    new = [mapped(v, change) for v in value]
    if _same(value, new):
        return value
    if hasattr(value, "_fields"):  # a named tuple
        return type(value)(*new)
    return type(value)(new) if type(value) in (tuple, list, torch.Size) else tuple(new)


def _dataclass(value: Any, change: Change) -> Any:
    old = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
    new = {k: mapped(v, change) for k, v in old.items()}
    return value if _same(old.values(), new.values()) else dataclasses.replace(value, **new)


def _rebuilt(value: Any, new: dict[Any, Any]) -> Any:
    if type(value) is dict:
        return new
    try:
        return type(value)(new)  # OrderedDict, a model's output class
    except TypeError:
        return new


def _same(old: Any, new: Any) -> bool:
    return all(a is b for a, b in zip(old, new, strict=True))
