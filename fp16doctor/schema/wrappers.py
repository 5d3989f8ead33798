"""Names below a wrapper, as the user knows them: without what the wrapper puts between.

DistributedDataParallel, FSDP, activation checkpointing and ``torch.compile`` keep the user's model
in an attribute of their own. They are known by name: nothing is imported for them.
Must not know what a name is used for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

__all__ = ["plain_names"]

# Attributes that nobody else uses.
_BETWEEN = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
# Classes that keep the model under a name that a user may use as well.
_UNDER_MODULE = frozenset(("DistributedDataParallel", "DataParallel", "DeepSpeedEngine"))


def plain_names(modules: Iterable[tuple[str, object]]) -> Callable[[str], str]:
    """Return what takes the wrappers' parts out of a name of a module, parameter or buffer.

    Args:
        modules: (name, module) of all modules of a model, as ``named_modules()`` yields them.
    """
    wrapped = frozenset(
        f"{name}.module".lstrip(".")
        for name, module in modules
        if any(c.__name__ in _UNDER_MODULE for c in type(module).__mro__)
    )

    def plain(name: str) -> str:
        parts = name.split(".")
        if not wrapped and _BETWEEN.isdisjoint(parts):
            return name
        kept, above = [], ""
        for part in parts:
            above = f"{above}.{part}" if above else part
            if part not in _BETWEEN and above not in wrapped:
                kept.append(part)
        return ".".join(kept)

    return plain
