"""One torch call in fp32, and one call whose tensors have different formats.

Must not know which calls are kept (``keep_places``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fp16doctor.apply.quiet_autocast import no_autocast
from fp16doctor.apply.values import HALF, mapped, tensors_in, to_dtype

_DTYPE = torch.Tensor.dtype.__get__  # type: ignore[attr-defined]  # a property of the C class
_CASTS = frozenset(("half", "bfloat16"))
# Calls that compute nothing: their tensors stay as they are.
_LET_THROUGH = frozenset(
    (
        "__get__",
        "__set__",
        "__delete__",
        "__len__",
        "__bool__",
        "__iter__",
        "__repr__",
        "__format__",
        "__hash__",
        "__reduce_ex__",
        "backward",
        "grad",
        "register_hook",
        "register_post_accumulate_grad_hook",
        "requires_grad_",
        "retain_grad",
        "size",
        "stride",
        "dim",
        "ndimension",
        "numel",
        "nelement",
        "element_size",
        "data_ptr",
        "storage_offset",
        "untyped_storage",
        "is_floating_point",
        "is_complex",
        "is_contiguous",
        "is_leaf",
        "detach_",
        "share_memory_",
        "tolist",
        "item",
        "numpy",
        "zero_",
        "set_",
        "resize_",
        "__setstate__",
        "__deepcopy__",
        "is_tensor",
        "is_nonzero",
        "__contains__",
    )
)
_IN_PLACE = frozenset(
    (
        "__iadd__",
        "__isub__",
        "__imul__",
        "__itruediv__",
        "__ifloordiv__",
        "__imod__",
        "__ipow__",
        "__iand__",
        "__ior__",
        "__setitem__",
    )
)
_VIEWS = frozenset(
    (
        "__getitem__",
        "as_strided",
        "chunk",
        "diagonal",
        "flatten",
        "movedim",
        "narrow",
        "permute",
        "reshape",
        "select",
        "split",
        "squeeze",
        "swapaxes",
        "t",
        "transpose",
        "unbind",
        "unflatten",
        "unsqueeze",
        "view",
        "view_as",
    )
)
_MISMATCH = ("dtype", "scalar type", "should be the same", "same type", "Input type")


def computes(func: Any) -> bool:
    """Tell whether a call works on the values of its tensors."""
    return getattr(func, "__name__", "") not in _LET_THROUGH


def is_dtype_of(func: Any) -> bool:
    """Tell whether a call reads the dtype of a tensor."""
    return bool(func == _DTYPE)


def in_fp32(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Run a call as a keep-list does: 16-bit inputs up, autocast off, results left in fp32.

    A dtype argument that names a 16-bit format names fp32, too. A 16-bit tensor that is written
    in place, or as ``out``, is stored in fp32 from here on; a view or a result of autograd keeps
    its format.
    """
    if is_dtype_of(func):
        return _Wide()(func(*args))
    with no_autocast():
        if getattr(func, "__name__", "") in _CASTS:
            return args[0].float()
        if kwargs.get("out") is not None:
            return _into(kwargs["out"], func, args, {k: v for k, v in kwargs.items() if k != "out"})
        if not writes_in_place(func):
            args, kwargs = mapped((args, kwargs), _Wide())
            return func(*args, **kwargs)
        for target in tensors_in(args[:1]):
            widen_storage(target)
        rest, kwargs = mapped((args[1:], kwargs), _Wide())
        return reconciled(func, (args[0], *rest), kwargs)


def reconciled(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Run a call; where torch refuses a mix of formats, cast as the next 16-bit op would.

    What is written in place decides the format, else the 16-bit one that is there.
    """
    try:
        return func(*args, **kwargs)
    except RuntimeError as error:
        wanted = _format_of(func, args, kwargs)
        if wanted is None or not any(word in str(error) for word in _MISMATCH):
            raise
    return func(*to_dtype(args, wanted), **to_dtype(kwargs, wanted))


def _into(out: Any, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Run a call that is given a place for its results."""
    places = list(tensors_in((out,)))
    for place in places:
        widen_storage(place)
    args, kwargs = mapped((args, kwargs), _Wide())
    if not any(place.dtype in HALF for place in places):
        return func(*args, **kwargs, out=out)
    results = func(*args, **kwargs)
    for place, result in zip(places, tensors_in((results,)), strict=True):
        place.resize_(result.shape).copy_(result)
    return out


def is_plain_view(func: Any, args: Any) -> bool:
    """Tell whether a call looks at a tensor without gradient in another way.

    Nothing is computed then; and what is written into the view has to reach the whole.
    """
    named = getattr(func, "__name__", "") in _VIEWS
    return named and not any(t.requires_grad for t in tensors_in(args[:1]))


def writes_in_place(func: Any) -> bool:
    """Tell whether a call writes into its first argument."""
    name = getattr(func, "__name__", "")
    return name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))


def widen_storage(tensor: Tensor) -> None:
    """Store a 16-bit tensor in fp32, as ``module.float()`` does; its gradient too."""
    if tensor.dtype not in HALF or tensor.grad_fn is not None or tensor._is_view():
        return
    tensor.data = tensor.data.float()
    if tensor.grad is not None:
        tensor.grad.data = tensor.grad.data.float()


class _Wide:
    """Casts up; a tensor that is given twice is cast once, so that its gradients add in fp32."""

    def __init__(self) -> None:
        self._known: dict[int, Tensor] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return torch.float32 if value in HALF else value
        if value.dtype not in HALF:
            return value
        if id(value) not in self._known:
            self._known[id(value)] = value.float()
        return self._known[id(value)]


def _format_of(func: Any, args: Any, kwargs: Any) -> torch.dtype | None:
    floats = [t.dtype for t in tensors_in((args, kwargs)) if t.is_floating_point()]
    if len(set(floats)) < 2:
        return None
    if writes_in_place(func):
        return floats[0]
    return next((d for d in floats if d in HALF), None)
