"""The dispatch mode that hands every ATen call to the recorder, and nothing else.

Must not know what is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


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
        if types and any(map(_intercepts, types)):
            return NotImplemented  # a wrapper subclass: its inner plain ops come by here
        return self._call(func, args, kwargs or {})


def _intercepts(kind: type) -> bool:
    mine = getattr(kind, "__torch_dispatch__", None)
    return mine is not None and mine is not Tensor.__torch_dispatch__
