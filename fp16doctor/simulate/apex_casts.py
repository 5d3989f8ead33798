"""What apex's opt levels do to a model: weights in fp16, batch norm in fp32, fp32 master weights.

After the published description of ``apex.amp``; nothing of apex is used.
Must not know loss scales.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

HALF, WIDE = torch.float16, torch.float32


@dataclass(frozen=True, slots=True)
class Level:
    """One opt level; arguments of ``amp.initialize`` replace single entries."""

    model: torch.dtype | None  # format the model is cast to, None leaves it
    patches: bool  # functions are cast: autocast
    norms_in_fp32: bool  # batch norm stays in fp32 in a model that is cast
    masters: bool  # the optimizer steps fp32 copies of fp16 weights
    scale: float | str  # "dynamic" or a constant


LEVELS = {
    "O0": Level(WIDE, patches=False, norms_in_fp32=False, masters=False, scale=1.0),
    "O1": Level(None, patches=True, norms_in_fp32=False, masters=False, scale="dynamic"),
    "O2": Level(HALF, patches=False, norms_in_fp32=True, masters=True, scale="dynamic"),
    "O3": Level(HALF, patches=False, norms_in_fp32=False, masters=False, scale=1.0),
}


def cast_model(model: nn.Module, level: Level) -> None:
    """Store a model in the level's format; its forward takes and returns what apex's does."""
    if level.model is None:
        return
    for module in model.modules():
        if level.norms_in_fp32 and isinstance(module, _BatchNorm):
            continue
        for tensors in (module._parameters, module._buffers):
            for tensor in tensors.values():
                if tensor is not None and tensor.is_floating_point():
                    tensor.data = tensor.data.to(level.model)
    model.forward = _between(model.forward, level.model)


def _between(forward: Callable[..., Any], dtype: torch.dtype) -> Callable[..., Any]:
    """Cast floating inputs to ``dtype`` and floating outputs to fp32."""

    def cast(*args: Any, **kwargs: Any) -> Any:
        return cast_to(WIDE, forward(*cast_to(dtype, args), **cast_to(dtype, kwargs)))

    return cast


def cast_to(dtype: torch.dtype, value: Any) -> Any:
    """Cast floating tensors, also in tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, dict):
        return type(value)((k, cast_to(dtype, v)) for k, v in value.items())
    if type(value) in (tuple, list):
        return type(value)(cast_to(dtype, v) for v in value)
    return value


class Masters:
    """fp32 copies of an optimizer's fp16 weights, which it steps in their place."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.pairs: list[tuple[Tensor, Tensor]] = []  # (weight of the model, its master)
        for group in optimizer.param_groups:
            group["params"] = [self._master(optimizer, p) for p in group["params"]]

    def _master(self, optimizer: torch.optim.Optimizer, weight: Tensor) -> Tensor:
        if weight.dtype is not HALF:
            return weight
        master = nn.Parameter(weight.detach().float(), requires_grad=weight.requires_grad)
        if weight in optimizer.state:
            optimizer.state[master] = cast_to(WIDE, optimizer.state.pop(weight))
        self.pairs.append((weight, master))
        return master

    def take_gradients(self) -> None:
        """Move gradients from the model's weights to their masters."""
        for weight, master in self.pairs:
            master.grad = None if weight.grad is None else weight.grad.float()
            weight.grad = None

    def give_weights(self) -> None:
        """Round the masters into the model."""
        with torch.no_grad():
            for weight, master in self.pairs:
                weight.copy_(master)

    def zero_grad(self) -> None:
        """Forget the gradients of the model's weights."""
        for weight, _ in self.pairs:
            weight.grad = None
