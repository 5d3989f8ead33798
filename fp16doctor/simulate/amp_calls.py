"""``autocast`` and ``GradScaler`` made for CUDA, working on the CPU.

Those made before the script's first request were switched off by torch, which found no device;
they are switched on at the request. Must not know what autocast casts (``cuda_autocast``).
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from fp16doctor.simulate.replacing import Replacing

_AUTOCAST = torch.amp.autocast_mode.autocast
_SCALER = torch.amp.GradScaler
_SETTINGS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
_FRAMES = 5  # from the question whether CUDA is there up to the constructor that asks it


class AmpCalls:
    """``for_cuda`` tells whether the innermost autocast region was made for CUDA."""

    def __init__(self, names: Replacing, live: Callable[[], bool]) -> None:
        self._names, self._live = names, live
        self._late: list[tuple[weakref.ref[Any], dict[str, Any]]] = []
        self._regions = threading.local()

    def for_cuda(self) -> bool:
        """Whether the innermost region that the calling thread is in was made for CUDA."""
        inside = self._inside()
        return bool(inside) and inside[-1]

    def put(self) -> None:
        """Put the wrappers on."""
        put, common = self._names.put, torch.cuda.amp.common
        name = "amp_definitely_not_available"
        put(common, name, self._missing(getattr(common, name)))
        put(_AUTOCAST, "__enter__", self._entered(_AUTOCAST.__enter__))
        put(_AUTOCAST, "__exit__", self._left(_AUTOCAST.__exit__))
        for name in ("is_autocast_enabled", "get_autocast_dtype"):
            put(torch, name, self._asked_of(getattr(torch, name)))
        for name in ("set_autocast_enabled", "set_autocast_dtype"):
            put(torch, name, self._set_for(getattr(torch, name)))

    def enable_late(self) -> None:
        """Switch on what was made for CUDA too early, as it was asked for."""
        late, self._late = self._late, []
        for ref, settings in late:
            owner = ref()
            if isinstance(owner, _AUTOCAST):
                owner._enabled = True
            elif owner is not None:
                _SCALER.__init__(owner, "cuda", **settings)

    def _missing(self, original: Any) -> Callable[[], bool]:
        """Answer the constructors that ask whether CUDA is there."""

        def missing() -> bool:
            if self._live():
                _scales_on_cpu(_asker())
                return False
            self._note(_asker())
            return bool(original())

        return missing

    def _note(self, frame: Any) -> None:
        if frame is not None:
            settings = {k: frame.f_locals[k] for k in _SETTINGS if k in frame.f_locals}
            self._late.append((weakref.ref(frame.f_locals["self"]), settings))

    # -- regions ---------------------------------------------------------------------------------

    def _inside(self) -> list[bool]:
        inside: list[bool] = self._regions.__dict__.setdefault("inside", [])
        return inside

    def _latest(self) -> bool:
        """Whether the region that a state is restored of was made for CUDA.

        That is the one around, or, where backward recomputes outside of any, the last there was.
        """
        inside = self._inside()
        return inside[-1] if inside else bool(getattr(self._regions, "latest", False))

    def _entered(self, original: Any) -> Callable[..., Any]:
        def enter(owner: Any) -> Any:
            made_for_cuda = owner.device == "cuda"
            if not made_for_cuda and _restores_a_state(sys._getframe(1)):
                made_for_cuda = self._latest()
            self._inside().append(made_for_cuda)
            self._regions.latest = made_for_cuda
            return original(owner)

        return enter

    def _left(self, original: Any) -> Callable[..., Any]:
        def leave(owner: Any, *exc: Any) -> Any:
            try:
                return original(owner, *exc)  # restores the state of the region's own device
            finally:
                inside = self._inside()
                if inside:
                    inside.pop()

        return leave

    # -- the state, by device --------------------------------------------------------------------

    def _asked_of(self, original: Any) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if args in ((), ("cuda",)) and self.for_cuda() and self._live():
                return original("cpu")
            return original(*args)

        return call

    def _set_for(self, original: Any) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if args[:1] == ("cuda",) and self.for_cuda() and self._live():
                args = ("cpu", *args[1:])
            return original(*args)

        return call


def _asker() -> Any:
    """Return the frame of the constructor that asks whether CUDA is there, None for others."""
    frame: Any = sys._getframe(2)
    for _ in range(_FRAMES):
        if frame is None or isinstance(frame.f_locals.get("self"), (_AUTOCAST, _SCALER)):
            return frame
        frame = frame.f_back
    return None


def _scales_on_cpu(frame: Any) -> None:
    owner = None if frame is None else frame.f_locals["self"]
    if isinstance(owner, _SCALER):
        owner._device = "cpu"  # where its scale will be; it refuses another one's


def _restores_a_state(frame: Any) -> bool:
    """Whether torch enters a region by itself: checkpointing, as it was in forward."""
    caller = str(frame.f_globals.get("__name__", ""))
    own = caller.startswith(("torch.amp.", "torch.cuda.amp."))  # on behalf of the script
    return caller.startswith("torch.") and not own
