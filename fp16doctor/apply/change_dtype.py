"""Runs a script in another format: what names a 16-bit format names the wanted one.

Must not know why the format is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from fp16doctor.apply.attributes import replaced
from fp16doctor.apply.script_mode import ScriptMode
from fp16doctor.apply.values import mapped

Formats = dict[torch.dtype, torch.dtype]

TO_BF16: Formats = {torch.float16: torch.bfloat16}
TO_FP32: Formats = {torch.float16: torch.float32, torch.bfloat16: torch.float32,
                    torch.complex32: torch.complex64}  # fmt: skip
_CASTS = {"half": torch.float16, "bfloat16": torch.bfloat16}
_NAMES = {
    torch.float16: "HalfTensor",
    torch.bfloat16: "BFloat16Tensor",
    torch.float32: "FloatTensor",
}
_FROM_OUTSIDE = frozenset(("as_tensor", "tensor", "asarray"))
_FROM_MEMORY = ("from_numpy", "from_dlpack")  # no mode sees these


def in_format(value: Any, formats: Formats) -> Any:
    """Return a tensor in the format that stands for its own."""
    if isinstance(value, Tensor) and value.dtype in formats:
        return value.to(formats[value.dtype])
    return value


class OtherFormat(ScriptMode):
    """Maps the dtypes in calls, factories and casts."""

    def __init__(self, formats: Formats) -> None:
        super().__init__()
        self._formats = formats

    def call(self, func: Any, args: Any, kwargs: dict[str, Any], frame: FrameType) -> Any:
        """Run one call with every 16-bit format that it names replaced."""
        name = getattr(func, "__name__", "")
        named = _CASTS.get(name)
        if named in self._formats:
            return args[0].to(self._formats[named], **kwargs)
        if name == "type":
            args = tuple(map(self._type, args))
        result = func(*mapped(args, self._dtype), **mapped(kwargs, self._dtype))
        return in_format(result, self._formats) if name in _FROM_OUTSIDE else result

    def _dtype(self, value: Any) -> Any:
        return self._formats.get(value, value) if isinstance(value, torch.dtype) else value

    def _type(self, value: Any) -> Any:
        if isinstance(value, str):
            for old, new in self._formats.items():
                if old in _NAMES and value.endswith(f".{_NAMES[old]}"):
                    return value.replace(_NAMES[old], _NAMES[new])
        return value


@contextmanager
def other_format(formats: Formats, *, autocast: bool = True) -> Iterator[None]:
    """Run the block in other formats; fp32 in place of a format that autocast has is no autocast.

    ``autocast=False`` leaves what autocast does as the script has it: only stored tensors change.
    """
    with functions_in(formats, autocast=autocast), OtherFormat(formats):
        yield


@contextmanager
def functions_in(formats: Formats, *, autocast: bool = True) -> Iterator[None]:
    """Replace what no mode sees: functions that set formats, and those that read memory."""
    with ExitStack() as stack:
        stack.enter_context(default_dtype(formats))
        stack.enter_context(_from_memory(formats))
        if autocast:
            stack.enter_context(autocast_in(formats))
        yield


@contextmanager
def autocast_in(formats: Formats) -> Iterator[None]:
    """Have every autocast region use another format, or none where that is fp32."""

    def made(original: Callable[..., None]) -> Callable[..., None]:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            wanted = formats.get(self.fast_dtype, self.fast_dtype)
            if wanted is torch.float32:
                self._enabled = False
            else:
                self.fast_dtype = wanted

        return __init__

    with replaced(torch.amp.autocast_mode.autocast, "__init__", made), _set_by_hand(formats):
        yield


@contextmanager
def _set_by_hand(formats: Formats) -> Iterator[None]:
    """The same for scripts that set autocast's format by a call, outside any region."""

    def chosen(original: Callable[..., None]) -> Callable[..., None]:
        def set_dtype(*args: Any) -> None:
            wanted = formats.get(args[-1], args[-1])
            if wanted is not torch.float32:
                original(*args[:-1], wanted)

        return set_dtype

    names = ("set_autocast_dtype", "set_autocast_cpu_dtype", "set_autocast_gpu_dtype")
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(replaced(torch, name, chosen))
        yield


@contextmanager
def default_dtype(formats: Formats) -> Iterator[None]:
    """Have ``torch.set_default_dtype`` set the wanted format; the old default comes back."""

    def chosen(original: Callable[[torch.dtype], None]) -> Callable[[torch.dtype], None]:
        return lambda d: original(formats.get(d, d))

    before = torch.get_default_dtype()
    try:
        with replaced(torch, "set_default_dtype", chosen):
            yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _from_memory(formats: Formats) -> Iterator[None]:
    def taken(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: in_format(original(*args, **kwargs), formats)

    with ExitStack() as stack:
        for name in _FROM_MEMORY:
            stack.enter_context(replaced(torch, name, taken))
        yield
