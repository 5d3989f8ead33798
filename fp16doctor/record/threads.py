"""Whether the running thread is the watched one.

Must not know what is watched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

_graph_task: Callable[[], int] = torch._C._current_graph_task_id


class WatchedThread:
    """The thread that called ``here``, and on a GPU the threads that run backward for it."""

    def __init__(self) -> None:
        self._ident = 0

    def here(self) -> None:
        """Watch the calling thread."""
        self._ident = threading.get_ident()

    def runs(self) -> bool:
        """Tell whether the calling thread is watched."""
        if threading.get_ident() == self._ident:
            return True
        return _graph_task() != -1 and torch.cuda.is_initialized()
