"""CUDA's autocast op lists on the CPU, for regions that were made for CUDA.

On the CPU softmax, sum, exp, layer_norm and others stay in 16 bits under autocast; on CUDA they
run in fp32. Kernels on the CPU's autocast key make them do so here, until they are taken off.

Must not know who makes regions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from fp16doctor.simulate import cuda_lists

_KEY = "AutocastCPU"
_BELOW = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.AutocastCPU)
Rule = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class CudaAutocast:
    """Between ``put`` and ``take_off`` the lists hold wherever ``for_cuda()`` is true."""

    def __init__(self, for_cuda: Callable[[], bool]) -> None:
        self._for_cuda = for_cuda
        self._library: Any = None

    def put(self) -> None:
        """Register the kernels."""
        self._library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch notes that a kernel is overridden, as intended
            for name, rule in _rules():
                self._register(name, rule)

    def take_off(self) -> None:
        """Have the CPU's own lists back."""
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _register(self, name: str, rule: Rule) -> None:
        op = _op(name)
        if op is None:
            return
        # Without get_kernel (torch 2.6–2.8) the CPU's entry cannot be called once it is replaced.
        own = None
        if _listed_for_cpu(name) and hasattr(torch.library, "get_kernel"):
            own = torch.library.get_kernel(op, _KEY)
        self._library.impl(op.name(), self._kernel(op, rule, own), _KEY, with_keyset=True)

    def _kernel(self, op: Any, rule: Rule, own: Any) -> Callable[..., Any]:
        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            if self._for_cuda():
                with _no_autocast():
                    return rule(op, args, kwargs)
            if own is not None:
                return own.call_boxed(keyset, *args, **kwargs)
            return op.redispatch(keyset & _BELOW, *args, **kwargs)  # its parts meet autocast

        return kernel


def _no_autocast() -> Any:
    return torch._C._ExcludeDispatchKeyGuard(
        torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    )


def _op(name: str) -> Any:
    """Return the overload ``exp`` or ``pow.Scalar``, None where this torch lacks it."""
    packet, _, overload = name.partition(".")
    found = getattr(torch.ops.aten, packet, None)
    return None if found is None else getattr(found, overload or "default", None)


def _listed_for_cpu(name: str) -> bool:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return bool(has(f"aten::{name}", _KEY))


def _rules() -> Iterable[tuple[str, Rule]]:
    for name in cuda_lists.LOWER_PRECISION:
        if _op(name) is not None and not _listed_for_cpu(name):
            yield name, _in_lower_precision
    yield from ((name, _in_fp32) for name in cuda_lists.FP32)
    yield from ((name, _with_fp32_result) for name in cuda_lists.FP32_RESULT)
    yield from ((name, _norm_in_fp32) for name in cuda_lists.FP32_OVERLOAD)
    yield from ((name, _in_widest) for name in cuda_lists.PROMOTE)
    yield from ((name, _refused) for name in cuda_lists.REFUSED)


# -- what happens to the arguments ---------------------------------------------------------------


def _eligible(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.dtype is not torch.float64
        and value.device.type == "cpu"
    )


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if _eligible(value):
        return value.to(dtype)
    if isinstance(value, (list, tuple)):
        return [_cast(v, dtype) for v in value]
    return value


def _run(op: Any, args: Any, kwargs: Any, dtype: torch.dtype) -> Any:
    return op(*(_cast(a, dtype) for a in args), **{k: _cast(v, dtype) for k, v in kwargs.items()})


def _in_lower_precision(op: Any, args: Any, kwargs: Any) -> Any:
    return _run(op, args, kwargs, torch.get_autocast_dtype("cpu"))


def _in_fp32(op: Any, args: Any, kwargs: Any) -> Any:
    return _run(op, args, kwargs, torch.float32)


def _in_widest(op: Any, args: Any, kwargs: Any) -> Any:
    formats = {t.dtype for t in _tensors((*args, *kwargs.values())) if _eligible(t)}
    lower = torch.get_autocast_dtype("cpu")
    return _run(op, args, kwargs, torch.float32 if formats - {lower} else lower)


def _tensors(values: Iterable[Any]) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _with_fp32_result(op: Any, args: Any, kwargs: Any) -> Any:
    if not _eligible(args[0]) or _dtype_given(op, args, kwargs):
        return op(*args, **kwargs)
    at = _place_of_dtype(op)
    if at is None or at >= len(args):
        return op(*args, **{**kwargs, "dtype": torch.float32})
    return op(*args[:at], torch.float32, *args[at + 1 :], **kwargs)


def _place_of_dtype(op: Any) -> int | None:
    """Return where ``dtype`` goes, None where it is given by name alone."""
    for index, argument in enumerate(op._schema.arguments):
        if argument.name == "dtype":
            return None if argument.kwarg_only else index
    return None


def _dtype_given(op: Any, args: Any, kwargs: Any) -> bool:
    at = _place_of_dtype(op)
    given = kwargs.get("dtype") if at is None or at >= len(args) else args[at]
    return given is not None


def _norm_in_fp32(op: Any, args: Any, kwargs: Any) -> Any:
    if not _eligible(args[0]):
        return op(*args, **kwargs)
    name = op.name().removeprefix("aten::")
    wide = _op(cuda_lists.FP32_OVERLOAD[name])
    if name == "norm.Scalar":
        p = args[1] if len(args) > 1 else kwargs.get("p", 2)
        return wide(args[0], p, dtype=torch.float32)
    names = [argument.name for argument in op._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    keep = given.get("keepdim", False)
    return wide(given["self"], given.get("p"), given["dim"], keep, dtype=torch.float32)


def _refused(op: Any, args: Any, kwargs: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are refused under CUDA's "
        "autocast; use binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss, which are "
        "safe to autocast"
    )
