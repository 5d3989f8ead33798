"""A GradScaler used as it should be, in a running script that uses it otherwise.

Must not know how a wrong use is found.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType, MethodType
from typing import Any

import torch
from torch import Tensor

from fp16doctor.apply.attributes import replaced
from fp16doctor.apply.keep_places import Lines
from fp16doctor.apply.part import Order, Part
from fp16doctor.apply.script_mode import ScriptMode
from fp16doctor.errors import ApplyError
from fp16doctor.schema.policy import KeepRule

_CLIPPED, _PLAIN_STEP, _INJECTED = "FD402", "FD403", "FD409"
_ONES = frozenset(("ones_like", "ones", "new_ones"))
_CLIPS = ("clip_grad_norm_", "clip_grad_value_")


def part(order: Order) -> Part:
    """Return the contexts that use the scaler as the treated finding advises.

    Raises:
        ApplyError: code-fix, for what only an edit of the script can do.
    """
    codes = {f.code for f in order.treated}
    made = _Made()
    if codes == {_CLIPPED}:
        return Part(outer=(made.noted(),), inner=(_unscaled_before_clipping(made),),
                    missed=lambda: () if made.unscaled else order.remedy.target)  # fmt: skip
    if codes == {_PLAIN_STEP}:
        made.steps_by_scaler = True
        # Where the script clips as well, the threshold is meant for gradients without the scale.
        return Part(outer=(made.noted(),), inner=(_unscaled_before_clipping(made),),
                    missed=lambda: () if made.stepped else order.remedy.target)  # fmt: skip
    if codes == {_INJECTED} and order.remedy.target:
        rules = tuple(map(KeepRule, order.remedy.target))
        injected = _ScaledOnes(rules, order.lines, made)
        return Part(outer=(made.noted(),), inner=(injected,),
                    missed=lambda: () if injected.applied else order.remedy.target)  # fmt: skip
    raise ApplyError("a change of the script's code cannot be put in from outside", "code-fix")


class _Made:
    """Scalers and optimizers that the script has made."""

    def __init__(self) -> None:
        self.scalers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.unscaled = 0  # times that an optimizer's gradients were unscaled here
        self.stepped = 0  # times that a scaler took the step of an optimizer here
        self.steps_by_scaler = False
        self._not_updated: weakref.WeakSet[Any] = weakref.WeakSet()  # since a step was taken here
        self._unscaled_here: set[int] = set()  # optimizers, since their last step
        self._inside = False  # a scaler's own call of ``optimizer.step``

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note each that is made while the block runs."""

        def step(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            return self._step(optimizer, *args, **kwargs)  # a scheduler takes the plain function

        def into(found: weakref.WeakSet[Any]) -> Callable[[Callable[..., None]], Any]:
            def made(original: Callable[..., None]) -> Callable[..., None]:
                def __init__(owner: Any, *args: Any, **kwargs: Any) -> None:
                    original(owner, *args, **kwargs)
                    found.add(owner)
                    if self.steps_by_scaler and isinstance(owner, torch.optim.Optimizer):
                        owner.step = MethodType(step, owner)  # type: ignore[method-assign]

                return __init__

            return made

        with (
            replaced(torch.amp.GradScaler, "__init__", into(self.scalers)),
            replaced(torch.optim.Optimizer, "__init__", into(self.optimizers)),
            replaced(torch.amp.GradScaler, "scale", self._after_update),
            replaced(torch.amp.GradScaler, "update", self._updating),
        ):
            yield

    def _after_update(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A step that was taken here has its update by the next scaled loss, like any other."""

        def scale(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            if scaler in self._not_updated:
                scaler.update()
            return original(scaler, *args, **kwargs)

        return scale

    def _updating(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The script may call it itself: a second time would raise."""

        def update(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            self._not_updated.discard(scaler)
            return original(scaler, *args, **kwargs)

        return update

    def scale(self) -> float:
        """Return the loss scale in use, 1 where none is."""
        return next((float(s.get_scale()) for s in self.scalers if s.is_enabled()), 1.0)

    def _step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Have the scaler that scaled the loss take a step that the script takes by itself."""
        scaler = next((s for s in self.scalers if s.is_enabled() and s._scale is not None), None)
        here = id(optimizer) in self._unscaled_here
        self._unscaled_here.discard(id(optimizer))
        if scaler is None or self._inside or not (here or _is_due(scaler, optimizer)):
            return type(optimizer).step(optimizer, *args, **kwargs)
        self._inside = True
        try:
            scaler.step(optimizer, *args, **kwargs)
            self._not_updated.add(scaler)
        finally:
            self._inside = False
        self.stepped += 1
        return None

    def unscale(self, parameters: list[Tensor]) -> None:
        """Have each scaler divide the gradients of these parameters, once in a step."""
        numbers = {id(p) for p in parameters}
        for scaler in [s for s in self.scalers if s.is_enabled() and s._scale is not None]:
            for optimizer in self.optimizers:
                own = [p for group in optimizer.param_groups for p in group["params"]]
                has_gradients = any(p.grad is not None for p in own)
                if has_gradients and numbers & {id(p) for p in own} and _is_due(scaler, optimizer):
                    scaler.unscale_(optimizer)
                    self.unscaled += 1
                    self._unscaled_here.add(id(optimizer))


def _is_due(scaler: Any, optimizer: Any) -> bool:
    stage = scaler._per_optimizer_states[id(optimizer)]["stage"]
    return bool(stage is torch.amp.grad_scaler.OptState.READY)


@contextmanager
def _unscaled_before_clipping(made: _Made) -> Iterator[None]:
    def clipped(original: Callable[..., Any]) -> Callable[..., Any]:
        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            made.unscale(given)
            return original(given, *args, **kwargs)

        return clip

    with ExitStack() as stack:
        for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
            for name in _CLIPS:
                stack.enter_context(replaced(owner, name, clipped))
        yield


class _ScaledOnes(ScriptMode):
    """Multiplies the ones that backward makes on a line by the loss scale."""

    def __init__(self, rules: tuple[KeepRule, ...], lines: Lines, made: _Made) -> None:
        super().__init__()
        self._rules, self._lines, self._made = rules, lines, made
        self.applied = 0

    def call(self, func: Any, args: Any, kwargs: dict[str, Any], frame: FrameType) -> Any:
        """Run one call."""
        result = func(*args, **kwargs)
        if getattr(func, "__name__", "") not in _ONES or torch._C._current_graph_task_id() == -1:
            return result
        line = self._lines.line(self._lines.key(frame)[0])
        if line is None or not any(r.names_line(line) for r in self._rules):
            return result
        self.applied += 1
        return result * self._made.scale()
