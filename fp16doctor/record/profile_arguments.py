"""What ``fp16doctor.profile`` may be given, and with which words the rest is refused.

Must not know what is done with it.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fp16doctor.errors import UsageError

ON_TROUBLE = ("record", "report", "raise")
_ORDER = "write fp16doctor.profile(model, optimizer)"
_SCHEDULERS = (torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
_PLAIN = (bool, int, float, str, bytes)


def check_model(model: object, optimizer: object = None) -> None:
    """Refuse what is no model; ``optimizer`` tells whether the two were swapped.

    Raises:
        UsageError: bad-argument.
    """
    if _steps(model) and isinstance(optimizer, nn.Module):
        raise _refused(
            f"the optimizer ({_kind(model)}) in front of the model ({_kind(optimizer)})", _ORDER
        )
    if _steps(model):
        raise _refused(f"an optimizer ({_kind(model)}) as its model", _ORDER)
    check("model", model, model is None or isinstance(model, nn.Module), "a torch.nn.Module")


def check_optimizer(optimizer: object) -> None:
    """Refuse what is neither an optimizer nor several of them.

    Raises:
        UsageError: bad-argument.
    """
    if isinstance(optimizer, _SCHEDULERS):
        raise _refused(f"a learning-rate scheduler ({_kind(optimizer)}) as its optimizer", _ORDER)
    if isinstance(optimizer, nn.Module):
        raise _refused(
            f"a model ({_kind(optimizer)}) as its optimizer",
            "leave `model` out where several models train: fp16doctor.profile() watches all",
        )
    several = isinstance(optimizer, (list, tuple)) and bool(optimizer)
    members: Any = optimizer if several else [optimizer]
    known = optimizer is None or all(map(_steps, members))
    check("optimizer", optimizer, known, "a torch.optim.Optimizer, or a list of them")


def check_every_step(every_step: object, schedule: object) -> None:
    """Refuse ``every_step`` beside a schedule, which decides as well.

    Raises:
        UsageError: bad-argument.
    """
    check("every_step", every_step, isinstance(every_step, bool), "True or False")
    if every_step and schedule is not None:
        raise _refused(
            "every_step=True and schedule=, which contradict each other", "pass one of them"
        )


def check_output(output: Path | None) -> None:
    """Refuse a place where nothing can be written, before hours of training are over.

    Raises:
        UsageError: bad-argument.
    """
    if output is not None and (output.is_dir() or not output.parent.is_dir()):
        met = "a folder" if output.is_dir() else "below a folder that is not there"
        raise _refused(f"output='{output}', which is {met}", "name a file in a folder that exists")


def check(name: str, value: object, good: bool, expected: str) -> None:
    """Refuse a value in one line, a large one by its type.

    Raises:
        UsageError: bad-argument.
    """
    if not good:
        raise _refused(f"{name}={_shown(value)}", f"it must be {expected}")


def wanted_modules(
    model: nn.Module | None, patterns: str | Iterable[str] | None
) -> Callable[[str, nn.Module], bool]:
    """Return which modules are surveyed; asked once a module.

    Raises:
        UsageError: bad-argument, patterns that are no strings.
    """
    globs = _globs(patterns)

    def wanted(path: str, module: nn.Module) -> bool:
        if model is not None and not any(m is module for m in model.modules()):
            return False
        return globs is None or any(fnmatch.fnmatchcase(path, g) for g in globs)

    return wanted


def _globs(patterns: Any) -> list[str] | None:
    if patterns is None or isinstance(patterns, str):
        return None if patterns is None else [patterns]
    listed = isinstance(patterns, Iterable) and not isinstance(patterns, nn.Module)
    globs = list(patterns) if listed else []
    good = listed and all(isinstance(g, str) for g in globs)
    check("modules", patterns, good, 'patterns of module paths, such as "blocks.*.mlp"')
    return globs


def _steps(value: object) -> bool:
    """Whether it is an optimizer, a library's wrapper of one included."""
    return hasattr(value, "param_groups") and not isinstance(value, type)


def _kind(value: object) -> str:
    return type(value).__name__


def _shown(value: object) -> str:
    if value is None or isinstance(value, _PLAIN):
        return f"{value!r:.80}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, (list, tuple)):
        kinds = ", ".join(dict.fromkeys(map(_kind, value)))
        return f"a {_kind(value)} of {kinds or 'nothing'}"
    name = getattr(value, "__name__", "")
    return f"an object of {_kind(value)}" + (f" ({name})" if isinstance(name, str) and name else "")


def _refused(met: str, remedy: str) -> UsageError:
    return UsageError(f"fp16doctor.profile was given {met}; {remedy}", "bad-argument")
