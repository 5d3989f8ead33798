"""The function mode that has what is asked for on a CUDA device done on the CPU.

Must not know what else a script asks of CUDA (``cuda_device``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch._C import _len_torch_function_stack
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from fp16doctor.simulate.devices import CPU, names_cuda

_DEVICE_AT, _COPY_AT = 1, 4  # positions in Tensor.to(self, device, dtype, non_blocking, copy)


class CudaOnCpu(TorchFunctionMode):
    """A thin mode; ``asked()`` is called each time a CUDA device is named.

    A tensor moved there is copied, as it is on a GPU: writes do not reach the original.
    """

    def __init__(self, asked: Callable[[], None], live: Callable[[], bool]) -> None:
        super().__init__()
        self._asked, self._live = asked, live
        self._special: dict[Any, Callable[..., Any]] = {
            Tensor.to: self._to,
            Tensor.cuda: self._cuda,
            Tensor.type: self._type,
            Tensor.pin_memory: self._pin,
        }

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one call of torch's, on the CPU where it names a CUDA device."""
        kwargs = kwargs or {}
        special = self._special.get(func)
        if special is not None:
            return special(func, args, kwargs)
        if kwargs:
            kwargs = self._moved(kwargs)
        return func(*args, **kwargs)

    def _moved(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        if names_cuda(kwargs.get("device")):
            self._asked()
            kwargs = {**kwargs, "device": CPU}
        if kwargs.get("pin_memory") and self._live():
            kwargs = {**kwargs, "pin_memory": False}
        return kwargs

    def _to(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        by_place = len(args) > _DEVICE_AT and names_cuda(args[_DEVICE_AT])
        if not by_place and not names_cuda(kwargs.get("device")):
            return func(*args, **kwargs)
        self._asked()
        if by_place:
            args = (*args[:_DEVICE_AT], CPU, *args[_DEVICE_AT + 1 :])
        else:
            kwargs = {**kwargs, "device": CPU}
        if len(args) > _COPY_AT:
            return func(*args[:_COPY_AT], copy=True, **kwargs)
        return func(*args, **{**kwargs, "copy": True})

    def _cuda(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        self._asked()
        layout = {k: v for k, v in kwargs.items() if k == "memory_format"}
        moved: Tensor = args[0].to(CPU, copy=True, **layout)
        return moved

    def _type(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) > 1 and isinstance(args[1], str) and args[1].startswith("torch.cuda."):
            self._asked()
            args = (args[0], args[1].replace("torch.cuda.", "torch."), *args[2:])
        return func(*args, **kwargs)

    def _pin(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0] if self._live() else func(*args, **kwargs)

    def enter(self) -> None:
        """Go onto the stack, below what the script enters later."""
        _push_mode(self)

    def leave(self) -> None:
        """Go from the stack, whatever the script has entered since and not left."""
        above = []
        while _len_torch_function_stack():
            mode = _pop_mode()
            if mode is self:
                break
            above.append(mode)
        for mode in reversed(above):
            _push_mode(mode)
