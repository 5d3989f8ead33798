"""``apex.amp`` where apex is not installed: its documented opt levels, on torch's own autocast.

O1 casts functions as autocast does, O2 and O3 store the model in fp16, O2 with fp32 master
weights; dynamic loss scales are a GradScaler's, which halves and doubles as apex's do. There is one
loss scale for all losses. Must not know how a script comes to import it (``apex_import``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from fp16doctor.simulate.apex_casts import LEVELS, Level, Masters, cast_model

_SCALE, _MOST, _WINDOW = 2.0**16, 2.0**24, 2000
_UNSCALED = torch.amp.grad_scaler.OptState.UNSCALED
_READY = torch.amp.grad_scaler.OptState.READY


class ApexAmp:
    """What ``from apex import amp`` gives: its functions are attributes."""

    def __init__(self) -> None:
        self.level = ""  # the opt level that was asked for
        self._scaler: Any = None  # None: no scale, or a constant one
        self._constant = 1.0
        self._region: Any = None
        self._masters: dict[int, Masters] = {}  # by optimizer
        self._scaled: set[int] = set()  # optimizers with gradients that wait for a step

    def initialize(
        self,
        models: Any,
        optimizers: Any = None,
        enabled: bool = True,
        opt_level: str = "O1",
        cast_model_type: torch.dtype | None = None,
        patch_torch_functions: bool | None = None,
        keep_batchnorm_fp32: bool | str | None = None,
        master_weights: bool | None = None,
        loss_scale: float | str | None = None,
        **_: Any,
    ) -> Any:
        """Prepare models and optimizers for an opt level; returned as they were given."""
        if opt_level not in LEVELS:
            raise RuntimeError(
                f"Unexpected optimization level {opt_level}. Options are {[*LEVELS]}"
            )
        if enabled:
            self.level = opt_level
            asked = {
                "model": cast_model_type,
                "patches": patch_torch_functions,
                "norms_in_fp32": _flag(keep_batchnorm_fp32),
                "masters": master_weights,
                "scale": loss_scale if loss_scale in (None, "dynamic") else float(loss_scale),
            }
            given: dict[str, Any] = {k: v for k, v in asked.items() if v is not None}
            self._begin(_several(models), _several(optimizers), replace(LEVELS[opt_level], **given))
        return models if optimizers is None else (models, optimizers)

    def _begin(self, models: list[nn.Module], optimizers: list[Any], level: Level) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        for model in models:
            cast_model(model, level)
        if level.scale == "dynamic":
            self._scaler = torch.amp.GradScaler(device, init_scale=_SCALE, growth_interval=_WINDOW)
        else:
            self._constant = float(level.scale)
        for optimizer in optimizers:
            if level.masters:
                self._masters[id(optimizer)] = Masters(optimizer)
            self._patch(optimizer)
        if level.patches:  # weights change while it is on: their casts are not kept
            self._region = torch.autocast(device, torch.float16, cache_enabled=False)
            self._region.__enter__()

    def leave(self) -> None:
        """Switch the casts of functions off."""
        region, self._region = self._region, None
        if region is not None:
            region.__exit__(None, None, None)

    # -- losses ----------------------------------------------------------------------------------

    @contextmanager
    def scale_loss(
        self, loss: Any, optimizers: Any, *_: Any, delay_unscale: bool = False, **__: Any
    ) -> Iterator[Any]:
        """Yield the scaled loss; behind the block, gradients are unscaled."""
        chosen = _several(optimizers)
        stashed = {} if delay_unscale else self._stash(chosen)
        with self.disable_casts():  # backward runs in the formats of forward
            yield self._scale(loss)
        if delay_unscale:
            return
        for optimizer in chosen:
            self._unscale(optimizer)
            self._scaled.add(id(optimizer))
        for parameter, earlier in stashed.items():
            grad = parameter.grad
            parameter.grad = earlier if grad is None else grad.add_(earlier)

    def _scale(self, loss: Any) -> Any:
        loss = loss.float() if isinstance(loss, Tensor) else loss
        return loss * self._constant if self._scaler is None else self._scaler.scale(loss)

    def _stash(self, optimizers: list[Any]) -> dict[Tensor, Tensor]:
        """Take aside gradients that are unscaled already."""
        found = {}
        for optimizer in optimizers:
            for parameter in self.master_params(optimizer):
                if id(optimizer) in self._scaled and parameter.grad is not None:
                    found[parameter], parameter.grad = parameter.grad, None
        return found

    def _unscale(self, optimizer: Any) -> None:
        masters = self._masters.get(id(optimizer))
        if masters is not None:
            masters.take_gradients()
        if self._scaler is None:
            if self._constant != 1.0:
                for parameter in self.master_params(optimizer):
                    if parameter.grad is not None:
                        parameter.grad.mul_(1 / self._constant)
            return
        state = self._scaler._per_optimizer_states[id(optimizer)]
        earlier = state["found_inf_per_device"] if state["stage"] is _UNSCALED else {}
        state["stage"] = _READY
        self._scaler.unscale_(optimizer)
        for device, found in earlier.items():
            state["found_inf_per_device"][device].add_(found)

    # -- optimizers ------------------------------------------------------------------------------

    def _patch(self, optimizer: Any) -> None:
        zero_grad = optimizer.zero_grad
        amp = self

        def step(own: Any, closure: Any = None) -> Any:
            return amp._step(own, closure)

        def zero(own: Any, *args: Any, **kwargs: Any) -> None:
            if id(own) in amp._masters:
                amp._masters[id(own)].zero_grad()
            amp._scaled.discard(id(own))
            zero_grad(*args, **kwargs)

        optimizer.step = MethodType(step, optimizer)
        optimizer.zero_grad = MethodType(zero, optimizer)

    def _step(self, optimizer: Any, closure: Any) -> Any:
        mine = vars(optimizer).pop("step")  # a schedule may have wrapped it
        try:
            if self._scaler is None or id(optimizer) not in self._scaled:
                done = optimizer.step() if closure is None else optimizer.step(closure)
            else:
                done = self._scaler.step(optimizer)
                self._scaler.update()
                if self._scaler.get_scale() > _MOST:
                    self._scaler.update(_MOST)
        finally:
            optimizer.step = mine
        self._scaled.discard(id(optimizer))
        if id(optimizer) in self._masters:
            self._masters[id(optimizer)].give_weights()
        return done

    def master_params(self, optimizer: Any) -> Iterator[Tensor]:
        """Yield the parameters that the optimizer steps."""
        for group in optimizer.param_groups:
            yield from group["params"]

    # -- the rest of the interface -----------------------------------------------------------------

    @contextmanager
    def disable_casts(self) -> Iterator[None]:
        """Run a block without the casts of O1."""
        if self._region is None:
            yield
            return
        with torch.autocast(self._region.device, enabled=False):
            yield

    def state_dict(self) -> dict[str, Any]:
        """Return the loss scale as apex spells it."""
        scale = self._constant if self._scaler is None else self._scaler.get_scale()
        return {"loss_scaler0": {"loss_scale": scale, "unskipped": 0}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a loss scale over."""
        scale = float(state["loss_scaler0"]["loss_scale"])
        if self._scaler is None:
            self._constant = scale
        else:
            self._scaler.load_state_dict({**self._scaler.state_dict(), "scale": scale})


def _flag(value: bool | str | None) -> bool | None:
    return value == "True" if isinstance(value, str) else value


def _several(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
