"""Small questions asked of tensors during a comparison.

Must not know ops or tapes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

HALF = ("float16", "bfloat16")  # torch names of the 16-bit formats
FORMAT_NAMES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8_e4m3",
    torch.float8_e5m2: "fp8_e5m2",
    torch.complex32: "fp16",
    torch.complex64: "fp32",
    torch.complex128: "fp64",
}


def format_name(dtype: torch.dtype) -> str:
    """Return the name of a floating dtype's format, of a complex one the format of its parts.

    A format without a name of its own (another fp8) goes by the nearest: range before precision.
    """
    if dtype in FORMAT_NAMES:
        return FORMAT_NAMES[dtype]
    return "fp8_e5m2" if "e5m2" in str(dtype) else "fp8_e4m3"


def is_float(tensor: Tensor) -> bool:
    """Floating or complex."""
    return tensor.is_floating_point() or tensor.is_complex()


def as_real(tensor: Tensor) -> Tensor:
    """Return complex tensors as pairs of reals, fp8 ones in fp32 (fp8 cannot be compared)."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor


def nonfinite_code(tensor: Tensor) -> int:
    """Return 0 for finite, 1 where there are infs and no NaN, 2 where there is a NaN."""
    if tensor.numel() == 0 or not is_float(tensor):
        return 0
    low, high = torch.stack(torch.aminmax(as_real(tensor))).tolist()  # one read of the device
    if math.isnan(low) or math.isnan(high):
        return 2
    return int(math.isinf(low) or math.isinf(high))


def amax(tensor: Tensor) -> float | None:
    """Return the largest finite magnitude, None where nothing is finite."""
    values = as_real(tensor).double()
    values = values[torch.isfinite(values)]
    return float(values.abs().max()) if values.numel() else None


def is_finite(x: float | None) -> bool:
    """Tell whether a number is there, and neither inf nor NaN."""
    return x is not None and x - x == 0


def unravel(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index of the ``flat``-th element in row-major order."""
    index = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))


def discrepancy(run: Tensor, reference: Tensor) -> Tensor:
    """Return |run − reference| / |reference| in float64; 1 where only one of them is zero."""
    a, b = as_real(run).double(), as_real(reference).double()
    relative = (a - b).abs() / b.abs()
    both_zero = (a == 0) & (b == 0)
    relative = torch.where(both_zero | (a == b), torch.zeros_like(relative), relative)
    return torch.nan_to_num(relative, nan=1.0, posinf=1.0, neginf=1.0)


def relative_error(mine: Tensor, exact: Tensor) -> float:
    """Return ‖mine − exact‖ / ‖exact‖ over elements finite in both, 0 where exact is 0."""
    if not mine.is_floating_point() or mine.shape != exact.shape:
        return 0.0
    a, b = mine.double(), exact.double()
    good = torch.isfinite(a) & torch.isfinite(b)
    norm = float(b[good].norm())
    return float((a[good] - b[good]).norm()) / norm if norm else 0.0
