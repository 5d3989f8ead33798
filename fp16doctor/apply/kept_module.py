"""What a kept module carries: its forward in fp32, its storage in fp32; no closure, no patch.

Must not know which modules are kept (``keep_fp32``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fp16doctor.apply.quiet_autocast import AUTOCAST_DEVICES
from fp16doctor.apply.values import HALF, to_dtype, to_fp32
from fp16doctor.errors import ApplyError


class Fp32Forward:
    """Stands in front of one module's ``forward``; saved and copied with the module."""

    def __init__(self, module: nn.Module, outputs: torch.dtype | None = None) -> None:
        self.module = module
        self.outputs = outputs  # format of the results, None for fp32
        self.replaced = module.__dict__.get("forward")  # an instance's own, None for the class's

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module on its inputs in fp32, without autocast.

        Raises:
            ApplyError: kept-in-16-bits, where something stored its parameters in 16 bits again.
        """
        forward = self.replaced or functools.partial(type(self.module).forward, self.module)
        if not torch.compiler.is_compiling():
            _still_fp32(self.module)
        for device in AUTOCAST_DEVICES:  # one plain block each, which torch.compile follows
            if torch.is_autocast_enabled(device):
                with torch.autocast(device, enabled=False):
                    return self(*args, **kwargs)
        result = forward(*to_fp32(args), **to_fp32(kwargs))
        return result if self.outputs is None else to_dtype(result, self.outputs)


class Fp32Storage:
    """Stands in front of one module's ``_apply``: a later ``model.half()`` leaves it in fp32."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, change: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> nn.Module:
        """Run ``_apply``; a cast to 16 bits becomes a move to the same device, in the same bits."""

        def kept(value: Tensor) -> Tensor:
            new = change(value)
            return new if new.dtype not in HALF else value.to(new.device)

        type(self.module)._apply(self.module, kept, *args, **kwargs)
        return self.module


def keep(module: nn.Module, outputs: torch.dtype | None = None) -> None:
    """Have one module compute and store in fp32; twice is once, in the last format of results."""
    module.float()
    known = module.__dict__.get("forward")
    if isinstance(known, Fp32Forward):
        known.outputs = outputs
    else:
        module.__dict__["forward"] = Fp32Forward(module, outputs)
    if not isinstance(module.__dict__.get("_apply"), Fp32Storage):
        module.__dict__["_apply"] = Fp32Storage(module)


def own_format(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Cast the inputs of a module that computes on 16-bit parameters to their format.

    It is asked at each call: FSDP's mixed precision decides as late as that.
    """
    own = next((p.dtype for p in module.parameters(recurse=False)), None)
    if own not in HALF:
        return args, kwargs
    return to_dtype(args, own), to_dtype(kwargs, own)


def _still_fp32(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if parameter.dtype in HALF:
            raise ApplyError(
                f"the forward of a {type(module).__name__} kept in fp32 was called, and its "
                f"parameter {name!r} is in {str(parameter.dtype).removeprefix('torch.')}; call "
                "keep_fp32 again after what changed it (load_state_dict(assign=True)), and under "
                "FSDP give the module a group of its own: fully_shard(module, "
                "mp_policy=MixedPrecisionPolicy(param_dtype=torch.float32))",
                "kept-in-16-bits",
            )
