"""What the functions of ``torch.cuda`` give where the device is simulated.

As data: one device of capability 8.0, whose memory is never in use. Must not know tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

NAME = "CUDA device simulated on the CPU"
CAPABILITY = (8, 0)
MEMORY = 16 * 2**30  # bytes


@dataclass(frozen=True, slots=True)
class Properties:
    """What ``get_device_properties`` tells."""

    name: str = NAME
    major: int = CAPABILITY[0]
    minor: int = CAPABILITY[1]
    total_memory: int = MEMORY
    multi_processor_count: int = 108
    warp_size: int = 32
    is_integrated: bool = False
    is_multi_gpu_board: bool = False


class Stream:
    """A queue that is always empty: the CPU has done what it was given."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device("cpu")
        self.cuda_stream = self.stream_id = 0

    def synchronize(self) -> None:
        """Return at once."""

    wait_stream = wait_event = lambda self, other: None

    def query(self) -> bool:
        """Tell that all is done."""
        return True

    def is_capturing(self) -> bool:
        """Tell that no graph is being captured."""
        return False

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event that has happened."""
        return event or Event()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


class Event:
    """Something that has happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        """Happen."""

    wait = record

    def synchronize(self) -> None:
        """Return at once."""

    def query(self) -> bool:
        """Tell that it has happened."""
        return True

    def elapsed_time(self, end_event: Any) -> float:
        """Return no milliseconds: time on a CPU says nothing of a GPU's."""
        return 0.0


def _gives(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


_nothing = _gives(None)

# Calls that raise without a CUDA device: the script that makes one asks for it.
ASKING: dict[str, Callable[..., Any]] = {
    "synchronize": _nothing,
    "set_device": _nothing,
    "init": _nothing,
    "_lazy_init": _nothing,
    "current_device": _gives(0),
    "get_device_name": _gives(NAME),
    "get_device_capability": _gives(CAPABILITY),
    "get_device_properties": lambda *args, **kwargs: Properties(),
    "current_stream": Stream,
    "default_stream": Stream,
    "Stream": Stream,
    "Event": Event,
    "stream": lambda stream: nullcontext(stream),
    "set_stream": _nothing,
    "mem_get_info": _gives((MEMORY, MEMORY)),
    "utilization": _gives(0),
    "reset_peak_memory_stats": _nothing,
    "reset_accumulated_memory_stats": _nothing,
    "reset_max_memory_allocated": _nothing,
    "reset_max_memory_cached": _nothing,
    "set_per_process_memory_fraction": _nothing,
    "memory_summary": _gives(""),
    "_exchange_device": _gives(0),
    "_maybe_exchange_device": _gives(0),
    "can_device_access_peer": _gives(False),
}

# Calls that a script may make anywhere: they have their own answer until it asks for a device.
ANSWERED: dict[str, Callable[..., Any]] = {
    "is_available": _gives(True),
    "device_count": _gives(1),
    "is_bf16_supported": _gives(True),
    "is_current_stream_capturing": _gives(False),
    "get_arch_list": _gives(["sm_80"]),
    "manual_seed": _nothing,  # torch.manual_seed seeds the generator that is used
    "manual_seed_all": _nothing,
    "seed": _nothing,
    "seed_all": _nothing,
    "empty_cache": _nothing,
    "ipc_collect": _nothing,
    **dict.fromkeys(
        (
            *("memory_allocated", "max_memory_allocated", "memory_reserved"),
            *("max_memory_reserved", "memory_cached", "max_memory_cached"),
        ),
        _gives(0),
    ),
    "memory_stats": lambda *args, **kwargs: {},
    "get_rng_state": lambda *args, **kwargs: torch.get_rng_state(),
    "set_rng_state": lambda state, *args, **kwargs: torch.set_rng_state(state.cpu()),
    "get_rng_state_all": lambda: [torch.get_rng_state()],
    "set_rng_state_all": lambda states: torch.set_rng_state(states[0].cpu()),
}

NVTX: dict[str, Callable[..., Any]] = {
    "range_push": _gives(0),
    "range_pop": _gives(0),
    "range_start": _gives(0),
    "range_end": _nothing,
    "mark": _nothing,
    "range": lambda *args, **kwargs: nullcontext(),
}

# Accelerators of any kind, as torch names the one that is there.
ACCELERATOR: dict[str, Callable[..., Any]] = {
    "is_available": _gives(True),
    "device_count": _gives(1),
    "current_accelerator": lambda *args, **kwargs: torch.device("cuda"),
    "current_device_index": _gives(0),
    "current_stream": Stream,
    "set_device_index": _nothing,
    "synchronize": _nothing,
}
