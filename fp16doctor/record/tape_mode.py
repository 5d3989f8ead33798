"""The dispatch mode that hands every ATen call to the recorder, and nothing else.

Must not know what is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from fp16doctor.record.roll import intercepts


class TapeMode(TorchDispatchMode):
    """A thin mode; ``call(func, args, kwargs)`` runs the op and may record it."""

    supports_higher_order_operators = True

    def __init__(self, call: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._call = call

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Keep ``torch.compile`` compiling: compiled regions run unseen, and the report says so."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Record and run one call."""
        if types and any(map(intercepts, types)):
            if FakeTensor in types:  # traced, not computed
                return func(*args, **(kwargs or {}))
            return NotImplemented  # a wrapper subclass: its inner plain ops come by here
        return self._call(func, args, kwargs or {})
