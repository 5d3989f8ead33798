"""Looks at every module's outputs and at the gradients with respect to them.

Gradients come by tensor hooks put on in the forward hook: full backward hooks cost about six
times as much and break scripts that change a module's output in place. Must not know steps.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor, nn

from fp16doctor.record.module_paths import ModuleEntry
from fp16doctor.record.range_stage import Stage, Staged
from fp16doctor.record.range_stats import PendingScreen, PendingStats, measure, screen
from fp16doctor.record.range_track import Track
from fp16doctor.schema.ranges import RangeStats

_MOST_TENSORS = 32  # of one module's output
_DEEPEST = 8  # nesting of one module's output

Found = PendingScreen | RangeStats | PendingStats | Staged | None
_Pair = tuple[Track | None, Track | None]  # output, gradient; both None where not wanted
_Places = dict[int, _Pair]  # by place among the tensors of one output, -1 for the only one


class Look(IntEnum):
    """How closely one step is looked at."""

    NOTHING = 0
    SCREEN = 1  # the largest magnitude, and whether there is an inf or a NaN
    FULL = 2  # RangeStats


class RangeHooks:
    """The forward half is called with each module's output; the backward half hangs on tensors."""

    def __init__(
        self,
        track: Callable[[str, nn.Module, str], Track | None],
        take: Callable[[list[Track], Found], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self.look = Look.NOTHING
        self.stage = Stage()
        self.in_training = False  # the running root module was called with gradients enabled
        self._track, self._take, self._failed = track, take, failed
        self._tracks: weakref.WeakKeyDictionary[nn.Module, _Places] = weakref.WeakKeyDictionary()
        self._handles: list[Any] = []
        self._last: tuple[Any, int, Found, _GradientHook | None] = (lambda: None, 0, None, None)

    def left(self, entry: ModuleEntry, module: nn.Module, output: Any) -> None:
        """A module returned ``output`` (None where it raised)."""
        if not self.look or not self.in_training or output is None:
            return
        if torch.compiler.is_compiling() or _transformed():
            return
        try:
            with torch._C._DisableTorchDispatch():
                self._look_at_output(entry, module, output)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not reach the script
            self._failed(error)

    def remove(self) -> None:
        """Take off the hooks of the step that is closed."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._last = (lambda: None, 0, None, None)

    def look_at(self, tensor: Tensor) -> Found:
        """Return what the step's look shows of one tensor."""
        return measure(tensor, self.stage) if self.look is Look.FULL else screen(tensor)

    # -- forward ---------------------------------------------------------------------------------

    def _look_at_output(self, entry: ModuleEntry, module: nn.Module, output: Any) -> None:
        tensors = [output] if type(output) is Tensor else floating_tensors(output)
        # A checkpointed block runs again inside backward: its values were seen the first time.
        again = torch._C._current_graph_task_id() != -1
        for place, tensor in enumerate(tensors):
            mine = self._tracks_of(entry, module, place if len(tensors) > 1 else -1)
            if mine[0] is not None:
                self._look_at_tensor(mine, tensor, again=again)

    def _tracks_of(self, entry: ModuleEntry, module: nn.Module, place: int) -> _Pair:
        places = self._tracks.get(module)
        if places is None:
            places = self._tracks[module] = {}
        found = places.get(place)
        if found is None:
            which = f"[{place}]" if place >= 0 else ""
            found = places[place] = (
                self._track(entry.path, module, f"output{which}"),
                self._track(entry.path, module, f"grad_output{which}"),
            )
        return found

    def _look_at_tensor(self, mine: tuple[Any, Any], tensor: Tensor, *, again: bool) -> None:
        """Look at an output; one that the module inside had returned already is not read twice."""
        last, version, found, hook = self._last
        now = 0 if tensor.is_inference() else tensor._version
        if last() is tensor and version == now:
            if hook is not None:
                hook.tracks.append(mine[1])
        else:
            found = None if again else self.look_at(tensor)
            hook = self._hook(mine[1], tensor)
            self._last = (weakref.ref(tensor), now, found, hook)
        if not again:
            self._take([mine[0]], found)

    # -- backward --------------------------------------------------------------------------------

    def _hook(self, track: Track, tensor: Tensor) -> _GradientHook | None:
        if not tensor.requires_grad or tensor.is_leaf:  # a hook on a leaf would stay there
            return None
        hook = _GradientHook(self, track)
        self._handles.append(tensor.register_hook(hook))
        return hook

    def gradient(self, tracks: list[Track], gradient: Tensor) -> None:
        """The gradient with respect to an output has arrived."""
        if not self.look or _transformed():
            return
        try:
            with torch._C._DisableTorchDispatch():
                self._take(tracks, self.look_at(gradient))
        except Exception as error:  # noqa: BLE001 - a fault of ours must not reach the script
            self._failed(error)


class _GradientHook:
    """Hangs on one output; several modules may have returned the same tensor."""

    __torch_unserializable__ = True  # torch.save leaves it out without a warning
    __slots__ = ("_owner", "tracks")

    def __init__(self, owner: RangeHooks, track: Track) -> None:
        self._owner, self.tracks = owner, [track]

    def __call__(self, gradient: Tensor) -> None:
        self._owner.gradient(self.tracks, gradient)


def floating_tensors(output: Any) -> list[Tensor]:
    """Return the floating and complex tensors in a nest of containers and dataclasses, in order."""
    found = []
    for tensor in _walk(output, 0):
        found.append(tensor)
        if len(found) == _MOST_TENSORS:
            break
    return found


def _walk(value: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.is_floating_point() or value.is_complex():
            yield value
        return
    if depth == _DEEPEST:
        return
    inner: Any = ()
    if isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, (list, tuple)):
        inner = value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner = [getattr(value, f.name, None) for f in dataclasses.fields(value)]
    for item in inner:
        yield from _walk(item, depth + 1)


def _transformed() -> bool:
    """Inside ``torch.func`` tensors stand for batches or tangents and have no memory to read."""
    return torch._C._functorch.peek_interpreter_stack() is not None
