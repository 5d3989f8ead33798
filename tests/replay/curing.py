"""Trainings that are run as recorded, and run again for real under what a trial claims to do.

``Run.real`` never sees the tool: it is the measure for every replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from replaying import watch
from torch import Tensor, nn

from fp16doctor.schema.policy import KeepRule, PrecisionPolicy
from fp16doctor.schema.tape import Tape

AUTOCAST, PURE = "autocast", "pure"
Loss = Callable[[nn.Module, Callable[[Tensor], Tensor]], Tensor]


@dataclass
class Job:
    """A model, its loss, and how it is trained."""

    model: Callable[[], nn.Module]
    loss: Callable[..., Tensor]  # of (model, cast): cast brings a batch into the model's format
    form: str = AUTOCAST
    dtype: torch.dtype = torch.float16
    scale: float = 1.0  # a static loss scale
    scaler: float = 0.0  # a GradScaler's first scale
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD
    options: dict[str, Any] = field(default_factory=lambda: {"lr": 0.01})
    steps: int = 1
    after: Callable[[nn.Module, Any], Any] = lambda model, state: None

    def tapes(self) -> list[Tape]:
        """Record the training; its tapes outlive it."""
        return recorded(lambda: self.real())

    def real(self, keep: Iterable[str] = ()) -> Result:
        """Train; the modules named in ``keep`` compute in fp32, inputs cast up."""
        torch.manual_seed(0)
        model = self.model()
        if self.form == PURE:
            model = model.to(self.dtype)
        for name in keep:
            in_fp32(model.get_submodule(name))
        if keep and self.form == PURE:
            takes_own_format(model)
        return self._train(model)

    def _train(self, model: nn.Module) -> Result:
        optimizer = self.optimizer(model.parameters(), **self.options)
        scaler = torch.amp.GradScaler("cpu", init_scale=self.scaler, enabled=self.scaler > 0)
        result = Result(model)
        low = self.form == AUTOCAST and self.dtype is not torch.float32
        for _ in range(self.steps):
            optimizer.zero_grad()
            with torch.autocast("cpu", self.dtype if low else torch.float16, enabled=low):
                loss = self.loss(model, self.cast)
            scaled = scaler.scale(loss) if self.scaler else loss * self.scale
            (scaled if self.scaler or self.scale != 1 else loss).backward()
            result.losses.append(float(loss.detach()))
            result.gradients = {
                n: p.grad.detach().float().clone()
                for n, p in model.named_parameters()
                if p.grad is not None
            }
            if self.scale != 1:
                for p in model.parameters():
                    p.grad.div_(self.scale)
            scaler.step(optimizer)
            scaler.update()
            result.state = self.after(model, result.state)
        result.scale = scaler.get_scale()
        result.held = (optimizer, scaler)
        return result

    def cast(self, x: Tensor) -> Tensor:
        return x.to(self.dtype) if self.form == PURE else x

    def but(self, **changes: Any) -> Job:
        return replace(self, **changes)


@dataclass
class Result:
    """What a real training gave."""

    model: nn.Module
    losses: list[float] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)  # of the last step, scale included
    scale: float = 1.0
    state: Any = None
    held: Any = None


def in_fp32(module: nn.Module) -> None:
    """Do to a module what a keep-list says."""
    forward = module.float().forward

    def up(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(up, x))
        return x.float() if torch.is_tensor(x) and x.is_floating_point() else x

    def wide(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return forward(*map(up, args), **{k: up(v) for k, v in kwargs.items()})

    module.forward = wide  # type: ignore[method-assign]


def takes_own_format(model: nn.Module) -> None:
    """Half-precision modules cast their own inputs."""
    for module in model.modules():
        own = next(iter(module.parameters(recurse=False)), None)
        if own is not None and own.dtype is not torch.float32:
            module.register_forward_pre_hook(
                lambda m, args: tuple(
                    x.to(next(m.parameters(recurse=False)).dtype)
                    if torch.is_tensor(x) and x.is_floating_point()
                    else x
                    for x in args
                )
            )


def recorded(function: Callable[[], Any]) -> list[Tape]:
    """Return the training steps of a function; they outlive it."""
    found: list[Tape] = []
    watch(function, look=lambda tape: found.append(detached(tape)))
    return [t for t in found if t.backward_ends]


def detached(tape: Tape) -> Tape:
    """Return a tape that nothing of the training can change."""
    leaves = {n: replace(leaf, data=leaf.data.clone()) for n, leaf in tape.leaves.items()}
    return replace(tape, leaves=leaves, final={})


def far(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Return the largest |a − b| of all gradients, in parts of the largest |b|.

    By tensor it would mean nothing: a key's bias has a gradient of rounding errors only.
    """
    assert a.keys() == b.keys(), a.keys() ^ b.keys()
    largest = max(float(x.double().abs().max()) for x in b.values())
    return max(float((a[n].double() - b[n].double()).abs().max()) for n in a) / largest


def kept(*modules: str) -> PrecisionPolicy:
    """Return the policy that computes modules in fp32."""
    return PrecisionPolicy("kept", keep=tuple(KeepRule(f"module:{m}") for m in modules))
