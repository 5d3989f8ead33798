"""Tells models whose parameters FSDP has taken over already.

Known by the names of torch's classes: nothing of torch.distributed is imported.
Must not know why that matters.
"""

from __future__ import annotations

from torch import nn

_SHARDING = frozenset(("FSDPModule", "FullyShardedDataParallel"))


def is_sharded(module: nn.Module) -> bool:
    """Tell whether FSDP, in either form, manages a module: ``fully_shard`` or the wrapper."""
    return any(
        c.__name__ in _SHARDING and c.__module__.startswith("torch.distributed.fsdp")
        for c in type(module).__mro__
    )


def sharded_around(model: nn.Module, name: str) -> bool:
    """Tell whether FSDP manages the module of that name, one above it or one below it."""
    parts = name.split(".")
    above = ("", *(".".join(parts[: i + 1]) for i in range(len(parts))))
    return any(is_sharded(model.get_submodule(n)) for n in above) or any(
        map(is_sharded, model.get_submodule(name).modules())
    )
