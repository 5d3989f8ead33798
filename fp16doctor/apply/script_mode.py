"""A torch function mode for the script alone: fp16doctor's own arithmetic passes unchanged.

Must not know what is done to a call.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType, TracebackType
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from fp16doctor.apply.attributes import replaced

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(_HERE) + os.sep
_ENGINE = "_engine_run_backward"  # what torch.autograd.backward and .grad call


def is_own(frame: FrameType) -> bool:
    """Tell whether code of this package calls; what a cure hands on is the script's own call."""
    path = frame.f_code.co_filename
    return path.startswith(_PACKAGE) and not path.startswith(_HERE + os.sep)


class ScriptMode(TorchFunctionMode):
    """Hands each torch call of the script to ``call``, those of its code in backward as well."""

    def __init__(self) -> None:
        super().__init__()
        self._entered = 0
        self._engine = ExitStack()

    def __enter__(self) -> ScriptMode:
        """Go on; for backward too, which is a call that modes handle and are off in."""
        super().__enter__()  # type: ignore[no-untyped-call]  # torch has no types here
        self._entered += 1
        if self._entered == 1:
            self._engine.enter_context(replaced(torch.autograd, _ENGINE, self._in_backward))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Go off."""
        self._entered -= 1
        if not self._entered:
            self._engine.close()
        super().__exit__(kind, value, trace)  # type: ignore[no-untyped-call]

    def _in_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if self in _get_current_function_mode_stack():
                return original(*args, **kwargs)
            with self:
                return original(*args, **kwargs)

        return run

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one call, changed unless it is ours."""
        frame = sys._getframe(1)
        # An ATen op comes by where a dispatch mode hands on what C++ called: that has its formats.
        if isinstance(func, (OpOverload, OpOverloadPacket)) or is_own(frame):
            return func(*args, **(kwargs or {}))
        return self.call(func, args, kwargs or {}, frame)

    def call(self, func: Any, args: Any, kwargs: dict[str, Any], frame: FrameType) -> Any:
        """Run one call of the script; ``frame`` is where it stands."""
        raise NotImplementedError
