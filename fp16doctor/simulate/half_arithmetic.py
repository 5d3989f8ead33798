"""16-bit products, convolutions and attention on a CPU: computed in fp32, rounded once.

That is nearer to a GPU's matrix unit, which sums in fp32, than the CPU's own 16-bit kernels, and
on CPUs without 16-bit arithmetic tens of times as fast. Sums of other orders differ by one ulp in
a few elements of a thousand. Other formats run in the kernels that were there.

Must not know when it is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from fp16doctor.simulate.partial_sums import LEFT_AT, PartialSums

_HALVES = (torch.float16, torch.bfloat16)
# Of attention the second result, the logarithm of the sums, is fp32 in the kernels as well.
_FP32_RESULTS = {"_scaled_dot_product_flash_attention_for_cpu": (1,)}
OPS: tuple[str, ...] = (
    *("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot"),
    *("convolution", "convolution_backward"),
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    *("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"),  # torch has none of them in fp16
)


class HalfArithmetic:
    """A context in which CPU kernels sum in fp32; may be entered again after it was left.

    While ``watching`` is set, ``sums`` takes the factors of each fp16 product.
    """

    def __init__(self) -> None:
        self._library: Any = None
        self.sums = PartialSums()
        self.watching = False

    def __enter__(self) -> HalfArithmetic:
        """Register the kernels; nothing where this torch (2.6–2.8) cannot call replaced ones."""
        if self._library is None and hasattr(torch.library, "get_kernel"):
            self._library = torch.library.Library("aten", "IMPL")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch notes each override, as intended
                for name in OPS:
                    self._register(name)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Have the CPU's own kernels back."""
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _register(self, name: str) -> None:
        if hasattr(torch.ops.aten, name):
            original = torch.library.get_kernel(f"aten::{name}", "CPU")
            kernel = _summing_in_fp32(name, original, self._see)
            self._library.impl(name, kernel, "CPU", with_keyset=True)

    def _see(self, name: str, half: torch.dtype, args: list[Any]) -> None:
        at = LEFT_AT.get(name)
        if self.watching and at is not None and half is torch.float16:
            self.sums.see(args[at : at + 2])


def _summing_in_fp32(name: str, original: Any, see: Callable[..., None]) -> Callable[..., Any]:
    wide_results = _FP32_RESULTS.get(name, ())

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        half = next((a.dtype for a in args if isinstance(a, Tensor) and a.dtype in _HALVES), None)
        if half is None:
            return original.call_boxed(keyset, *args, **kwargs)
        wide = list(map(_wide, args))
        see(name, half, wide)
        out = original.call_boxed(keyset, *wide, **{k: _wide(v) for k, v in kwargs.items()})
        if isinstance(out, Tensor):
            return out.to(half)
        return tuple(o if i in wide_results else _narrow(o, half) for i, o in enumerate(out))

    return kernel


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _HALVES else value


def _narrow(value: Any, half: torch.dtype) -> Any:
    return value.to(half) if isinstance(value, Tensor) and value.dtype is torch.float32 else value
