"""The survey: how large every module's values are, step by step, kept within bounds.

Must not know how statistics are taken (``range_stats``) or what they mean (``diagnose``).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fp16doctor.record import own
from fp16doctor.record.foresight import limit_of
from fp16doctor.record.module_paths import ModulePaths
from fp16doctor.record.range_hooks import Found, Look, RangeHooks
from fp16doctor.record.range_stage import Staged
from fp16doctor.record.range_stats import PendingStats, measure, screen
from fp16doctor.record.range_track import Track
from fp16doctor.record.screens import Screens
from fp16doctor.record.survey_plan import EVERY_FULL, SurveyPlan
from fp16doctor.schema.ranges import ModuleRanges, RangeStats

MOST_SAMPLES = 64  # of one module and role; beyond that older steps are merged
ALL_SAMPLES = 4096  # of all together: about 4 KiB each
MOST_FAILURES = 20
KEPT_WRONG = 4  # steps with an inf or a NaN of which every module's largest magnitude is kept


@dataclass(frozen=True, slots=True)
class StepSurvey:
    """What one closed step has shown."""

    step: int
    nonfinite: tuple[tuple[str, str], ...] = ()  # (module path, role), in order of arrival
    nearing: bool = False  # values of a module grow towards their format's maximum


class Survey:
    """Tracks of all modules and roles; the recorder says when steps begin and end."""

    def __init__(
        self,
        plan: SurveyPlan,
        modules: ModulePaths,
        caution: Callable[[str, str], None],
    ) -> None:
        self.hooks = RangeHooks(self._track, self._take, self._failed)
        self.last = StepSurvey(-1)
        self._plan, self._caution = plan, caution
        self._roots, self._path_of = modules.roots, modules.path_of
        self._tracks: dict[tuple[str, str], Track] = {}
        self._open: list[Track] = []  # touched in the open step, in order
        self._screens: dict[tuple[torch.device, torch.dtype], Screens] = {}
        self._pending: list[tuple[list[Track], PendingStats]] = []
        self._labels: weakref.WeakKeyDictionary[nn.Module, str | None] = weakref.WeakKeyDictionary()
        self._owners: dict[str, weakref.ref[nn.Module]] = {}
        self._parameters: dict[int, tuple[str, nn.Module, str]] = {}
        self._seen: set[int] = set()  # parameters whose gradients were looked at in this step
        self._buffers_seen = False
        self._failures = 0
        self._wrong: set[int] = set()  # the first steps with an inf or a NaN
        self._step = 0
        self._weights_at: int | None = None  # step of the last look at the weights
        self._handle: Any = None

    def attach(self) -> None:
        """Be called in front of every optimizer's step."""
        self._handle = register_optimizer_step_pre_hook(
            lambda optimizer, args, kwargs: self.before_update(optimizer)
        )

    def begin(self, step: int) -> None:
        """Open a step."""
        self._step = step
        self.hooks.look = Look.NOTHING if self._failures >= MOST_FAILURES else self._plan.look(step)

    def root_called(self) -> None:
        """A root module is called: only calls with gradients enabled belong to training."""
        self.hooks.in_training = own.is_grad_enabled()

    def before_update(self, optimizer: Any = None) -> None:
        """Look at the gradients as the optimizer gets them, and on sampled steps at the weights.

        Without an optimizer (a step that the scaler skips) at all gradients not seen yet.
        """
        if not self.hooks.look:
            return
        try:
            with torch._C._DisableTorchDispatch():
                self._look_at_parameters(optimizer)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not reach the script
            self._failed(error)

    def pending(self) -> list[Tensor]:
        """Return what must be read from devices before ``close``, in order."""
        self.hooks.stage.flush()
        extremes = [own.stack([*s.lows, *s.highs]) for s in self._screens.values()]
        return extremes + [f.vector for _, f in self._pending]

    def close(self, step: int, loss_scale: float, numbers: list[list[float]]) -> None:
        """Book the open step; ``numbers`` are the values of ``pending``."""
        extremes, vectors = numbers[: len(self._screens)], numbers[len(self._screens) :]
        for screens, values in zip(self._screens.values(), extremes, strict=True):
            screens.deliver(values)
        for (tracks, found), values in zip(self._pending, vectors, strict=True):
            _measured(tracks, found.finish(values))
        keep = self._goes_wrong(step)
        nearing = any(t.nearing(loss_scale) for t in self._open)
        nonfinite = [(t.path, t.role) for t in self._open if t.close(step, loss_scale, keep=keep)]
        most = min(MOST_SAMPLES, max(ALL_SAMPLES // max(len(self._tracks), 1), 2))
        for track in self._open:
            track.thin(most)
        self.last = StepSurvey(step, tuple(nonfinite), nearing)
        self._reset()

    def drop(self) -> None:
        """Forget the open step: it has not trained."""
        for track in self._open:
            track.forget()
        self._reset()

    def detach(self) -> None:
        """Be called no more."""
        if self._handle is not None:
            self._handle.remove()
        self._handle = None

    def ranges(self) -> tuple[ModuleRanges, ...]:
        """Return everything seen: modules in order of their first output, roles together."""
        order: dict[str, int] = {}
        for track in self._tracks.values():
            order.setdefault(track.path, len(order))
        seen = [t for t in self._tracks.values() if t.n_looked]
        return tuple(t.ranges() for t in sorted(seen, key=lambda t: order[t.path]))

    # -- inside ----------------------------------------------------------------------------------

    def _goes_wrong(self, step: int) -> bool:
        """Whether this is one of the first steps with an inf or a NaN anywhere."""
        if len(self._wrong) < KEPT_WRONG and any(t.bad for t in self._open):
            self._wrong.add(step)
        return step in self._wrong

    def _reset(self) -> None:
        self.hooks.remove()
        self.hooks.stage.clear()
        self._open, self._pending, self._screens = [], [], {}
        self._seen.clear()
        self._buffers_seen = False

    def _failed(self, error: Exception) -> None:
        """Go on without one tensor; stop where that becomes the rule."""
        self._failures += 1
        what = f"{type(error).__name__}: {error}"
        self._caution("survey-gap", f"the ranges of a tensor could not be read: {what}")
        if self._failures == MOST_FAILURES:
            self.hooks.look = Look.NOTHING
            self._caution("survey-stopped", f"the survey stopped; the last fault was {what}")

    def _track(self, path: str, module: nn.Module, role: str) -> Track | None:
        label = self._label(path, module)
        if label is None:
            return None
        found = self._tracks.get((label, role))
        if found is None:
            scaled = role.startswith("grad_output")
            found = Track(label, type(module).__name__, role, scaled)
            self._tracks[label, role] = found
        return found

    def _label(self, path: str, module: nn.Module) -> str | None:
        """Return the path, with the root's class in front where another root's module has it.

        None for a module that is not to be surveyed; the plan is asked once a module, since its
        answer may cost a walk over the model.
        """
        if module in self._labels:
            return self._labels[module]
        if not self._plan.wanted(path, module):
            self._labels[module] = None
            return None
        label, owner = path, self._owners.get(path)
        if owner is not None and (other := owner()) is not None and other is not module:
            root = next((r for r in self._roots() if any(m is module for m in r.modules())), None)
            if root is not None:  # else made anew in each call: all such share one track
                label = f"{type(root).__name__}.{path}" if path else type(root).__name__
        self._owners.setdefault(label, weakref.ref(module))
        self._labels[module] = label
        return label

    def _take(self, tracks: list[Track], found: Found) -> None:
        if found is None:
            return
        for track in tracks:
            if not track.touched:
                track.touched = True
                self._open.append(track)
        if isinstance(found, PendingStats):
            self._pending.append((tracks, found))
        elif isinstance(found, RangeStats):
            _measured(tracks, found)
        elif isinstance(found, Staged):
            for track in tracks:
                found.tell(track.measured)
        else:
            key = (found.low.device, found.low.dtype)
            for track in tracks:
                track.limit = limit_of(found.low.dtype)
            self._screens.setdefault(key, Screens()).add(tracks, found)

    # -- parameters ------------------------------------------------------------------------------

    def _look_at_parameters(self, optimizer: Any) -> None:
        if optimizer is None:
            self._learn()
            parameters = [p for root in self._roots() for p in root.parameters()]
        else:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
        weights = self.hooks.look is Look.FULL and self._weights_due()
        for parameter in parameters:
            if id(parameter) in self._seen or parameter.grad is None:
                continue
            self._seen.add(id(parameter))
            path, module, name = self._name(parameter)
            self._look_at(path, module, f"{name}.grad", parameter.grad, full=weights)
            if weights:
                self._look_at(path, module, name, parameter)
        if weights and not self._buffers_seen:
            self._buffers_seen = True
            self._look_at_buffers()

    def _weights_due(self) -> bool:
        """Parameters get full statistics every few steps only: they are read from memory.

        Their gradients are screened in the steps between.
        """
        if self._weights_at is None or self._step - self._weights_at >= EVERY_FULL:
            self._weights_at = self._step
        return self._weights_at == self._step

    def _look_at_buffers(self) -> None:
        for path, module in self._modules():
            for name, buffer in module.named_buffers(recurse=False):
                if not is_lazy(buffer) and buffer.is_floating_point():
                    self._look_at(path, module, name, buffer)

    def _look_at(
        self, path: str, module: nn.Module, role: str, tensor: Tensor, *, full: bool = True
    ) -> None:
        track = self._track(path, module, role)
        if track is not None:
            self._take([track], measure(tensor) if full else screen(tensor))

    def _name(self, parameter: Tensor) -> tuple[str, nn.Module, str]:
        known = self._parameters.get(id(parameter))
        if known is None:
            self._learn()
            outside = ("", _SCRIPT, f"parameter[{len(self._parameters)}]")
            known = self._parameters.setdefault(id(parameter), outside)
        return known

    def _learn(self) -> None:
        for path, module in self._modules():
            for name, parameter in module.named_parameters(recurse=False):
                self._parameters.setdefault(id(parameter), (path, module, name))

    def _modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Every module of every root once, under the name its outputs have."""
        seen = set()
        for root in self._roots():
            for path, module in root.named_modules():
                if module not in seen:
                    seen.add(module)
                    yield self._path_of(module, path), module


class Script:
    """Stands for the script itself where a parameter belongs to no module."""


_SCRIPT: Any = Script()  # no nn.Module: scripts that count the modules made must not meet ours


def _measured(tracks: list[Track], stats: RangeStats) -> None:
    for track in tracks:
        track.measured(stats)
