"""Fixup's rule 3 on existing layers: scalar biases and multipliers as parameters of the layers.

They are 0-dimensional, so that they take part in no type promotion: a half activation stays half
though they are stored in fp32, where a multiplier near 1 takes small updates.
A hook of this module applies them; hooks and parameters go with ``copy.deepcopy``, ``torch.save``
and ``state_dict`` (under the layer's own keys), and the keys that were there before stay.

Must not know branches or standard deviations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fp16doctor.apply.fixup_plan import FixupPlan
from fp16doctor.apply.flow import Flow
from fp16doctor.errors import FixupError

BIAS_IN, BIAS_OUT, SCALE = "fixup_bias_in", "fixup_bias_out", "fixup_scale"
SLOWER = 0.1  # of the learning rate, for biases and multipliers (code published with the paper)


@dataclass(frozen=True, slots=True)
class Scalars:
    """What one layer gets."""

    path: str
    scale: bool  # the last layer of a branch: its output is multiplied
    bias_out: bool  # behind the layer, in front of the activation or the addition


def layers_for_scalars(model: nn.Module, flow: Flow, plan: FixupPlan) -> tuple[Scalars, ...]:
    """Return the layers that get scalars.

    A bias in front of every layer; one behind every layer of a branch, and behind others that
    have no bias of their own; a multiplier behind the last layer of a branch.

    Raises:
        FixupError: a layer's weight is not used by the forward of the module that owns it.
    """
    inside = {n for b in plan.branches for n in (*b.scaled, *b.last)}
    beside = {n for b in plan.branches for n in (*b.beside, *b.shortcut)}
    last = {n for b in plan.branches for n in b.last}
    found: dict[str, tuple[str, Scalars]] = {}
    for value, layer in flow.layers():
        name = layer.weight
        if name not in plan.stds or name in beside:
            continue
        path = name.rpartition(".")[0]
        place = value.call.site.module_path if value.call is not None else None
        if place != path or (path in found and found[path][0] != name):
            raise FixupError(
                f"scalars were to be added around the layer of `{name}`, whose weight is used in "
                f"`{place}`, not by a module of its own; make it a module, or pass scalars=False",
                "fixup-scalars",
            )
        own_bias = getattr(model.get_submodule(path), "bias", None) is not None
        found[path] = (name, Scalars(path, name in last, name in inside or not own_bias))
    return tuple(scalars for _, scalars in found.values())


def add_scalars(model: nn.Module, chosen: Iterable[Scalars]) -> None:
    """Give layers their scalars; those they have already are set to their initial values."""
    for scalars in chosen:
        layer = model.get_submodule(scalars.path)
        hooked = hasattr(layer, BIAS_IN)
        _set(layer, BIAS_IN, 0.0)
        if scalars.bias_out:
            _set(layer, BIAS_OUT, 0.0)
        if scalars.scale:
            _set(layer, SCALE, 1.0)
        if not hooked:
            layer.register_forward_pre_hook(_add_bias)
            layer.register_forward_hook(_scale_and_add_bias)


def parameter_groups(model: nn.Module, lr: float) -> list[dict[str, Any]]:
    """Return two groups for an optimizer: weights at ``lr``, biases and multipliers at a tenth.

    To the second belong parameters of one element and those whose name holds ``bias`` or
    ``scale``. The gradient of a scalar bias is a sum over a whole activation: with an fp16
    activation a large loss scale can overflow it.
    """
    weights: list[Tensor] = []
    slower: list[Tensor] = []
    for name, parameter in model.named_parameters():
        piece = name.rpartition(".")[2]
        small = parameter.numel() == 1 or "bias" in piece or "scale" in piece
        (slower if small else weights).append(parameter)
    return [{"params": weights, "lr": lr}, {"params": slower, "lr": lr * SLOWER}]


def _set(layer: nn.Module, name: str, value: float) -> None:
    known = getattr(layer, name, None)
    if isinstance(known, Tensor):
        with torch.no_grad():
            known.fill_(value)
        return
    weight = next(p for p in layer.parameters(recurse=False))
    dtype = torch.promote_types(weight.dtype, torch.float32)
    start = torch.full((), value, dtype=dtype, device=weight.device)
    layer.register_parameter(name, nn.Parameter(start))


def _add_bias(layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    if not args:
        return None
    return (args[0] + getattr(layer, BIAS_IN), *args[1:])


def _scale_and_add_bias(layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
    scale, bias = getattr(layer, SCALE, None), getattr(layer, BIAS_OUT, None)
    if scale is not None:
        output = output * scale
    return output if bias is None else output + bias
