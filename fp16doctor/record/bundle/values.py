"""Arguments of ATen calls as JSON values and back.

Numbers, strings, booleans, null and lists stand for themselves; everything else is an object with
one key that names its kind, so that no string can be taken for a dtype or a number.

Must not know ops or files.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from fp16doctor.record.bundle.malformed import MalformedError, integer, integers, text
from fp16doctor.record.roll import Held
from fp16doctor.schema.tape import TensorRef

MOST_NESTED = 8  # lists in lists: foreach ops have two
_SPELLED = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_NAMESAKES = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
    "qscheme": torch.qscheme,
}


def spell(value: Any) -> Any:
    """Return ``value`` in JSON's terms; raises TypeError for what has no spelling."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        return _number(value)
    if isinstance(value, TensorRef):
        return {"tensor": spell_ref(value)}
    if isinstance(value, list):
        return [spell(v) for v in value]
    return _special(value)


def _number(value: int | float) -> Any:
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return value
    if type(value) is not float:  # a subclass, with a meaning of its own
        raise TypeError(f"{type(value).__name__} is no plain number")
    return {"float": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}


def _special(value: Any) -> dict[str, Any]:
    if isinstance(value, tuple):
        return {"tuple": [spell(v) for v in value]}
    if isinstance(value, complex):
        return {"complex": [spell(value.real), spell(value.imag)]}
    if isinstance(value, slice):
        return {"slice": [spell(value.start), spell(value.stop), spell(value.step)]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, torch.Generator):
        return {"generator": str(value.device)}
    if isinstance(value, Held):
        return {"held": value.description}
    for kind, cls in _NAMESAKES.items():
        if isinstance(value, cls):
            return {kind: str(value).removeprefix("torch.")}
    raise TypeError(f"a {type(value).__name__} has no spelling")


def spell_ref(ref: TensorRef) -> list[Any]:
    """Return a reference as a list, in the order of its fields."""
    geometry = [list(ref.shape), list(ref.stride), ref.offset]
    return [ref.storage, ref.version, ref.dtype, *geometry, ref.device]


def unspell(data: Any, depth: int = 0) -> Any:
    """Undo ``spell``; raises MalformedError for anything it does not write."""
    if depth > MOST_NESTED:
        raise MalformedError(f"an argument is nested more than {MOST_NESTED} deep")
    if data is None or isinstance(data, (bool, str, int, float)):
        return data
    if isinstance(data, list):
        return [unspell(d, depth + 1) for d in data]
    if not isinstance(data, dict) or len(data) != 1:
        raise MalformedError("an argument is no value that a tape can hold")
    ((kind, inner),) = data.items()
    if kind in _NAMESAKES:
        return _namesake(kind, inner)
    read = _READERS.get(kind)
    if read is None:
        raise MalformedError(f"an argument is of the unknown kind {kind[:40]!r}")
    return read(inner, depth + 1)


def unspell_ref(data: Any, depth: int = 0) -> TensorRef:
    """Return a reference from its list; raises MalformedError."""
    if not isinstance(data, list) or len(data) != 7:
        raise MalformedError("a tensor reference has not seven fields")
    storage, version, dtype, shape, stride, offset, device = data
    return TensorRef(
        integer(storage, "a storage"),
        integer(version, "a version"),
        str(_namesake("dtype", dtype)).removeprefix("torch."),
        integers(shape, "a shape"),
        integers(stride, "a stride"),
        integer(offset, "an offset"),
        text(device, "a device"),
    )


def _namesake(kind: str, name: Any) -> Any:
    """Return ``torch.float16`` for ``"float16"``, and nothing that is not of this kind."""
    cls = _NAMESAKES[kind]
    found = vars(torch).get(text(name, f"a {kind}"))
    if not isinstance(found, cls):
        raise MalformedError(f"there is no torch {kind} {name[:40]!r}")
    return found


def _float(data: Any, depth: int) -> float:
    if not isinstance(data, str) or data not in _SPELLED:
        raise MalformedError("a number is neither inf nor nan")
    return _SPELLED[data]


def _tuple(data: Any, depth: int) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise MalformedError("a tuple is no list")
    return tuple(unspell(d, depth) for d in data)


def _complex(data: Any, depth: int) -> complex:
    parts = _tuple(data, depth)
    if len(parts) != 2 or any(type(p) is not float for p in parts):
        raise MalformedError("a complex number has not two parts")
    return complex(*parts)


def _slice(data: Any, depth: int) -> slice:
    parts = _tuple(data, depth)
    if len(parts) != 3 or any(p is not None and type(p) is not int for p in parts):
        raise MalformedError("a slice has not three integers")
    return slice(*parts)


def _device(data: Any, depth: int) -> torch.device:
    try:
        return torch.device(text(data, "a device"))
    except RuntimeError:
        raise MalformedError(f"there is no device {data[:40]!r}") from None


def _generator(data: Any, depth: int) -> torch.Generator:
    device = _device(data, depth)
    return torch.Generator("cpu" if not _is_here(device) else device)


def _is_here(device: torch.device) -> bool:
    return device.type == "cpu" or (device.type == "cuda" and torch.cuda.is_available())


def _held(data: Any, depth: int) -> Held:
    return Held(text(data, "a description"))


_READERS: dict[str, Callable[[Any, int], Any]] = {
    "tensor": unspell_ref,
    "float": _float,
    "tuple": _tuple,
    "complex": _complex,
    "slice": _slice,
    "device": _device,
    "generator": _generator,
    "held": _held,
}
