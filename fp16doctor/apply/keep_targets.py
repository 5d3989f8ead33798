"""What ``keep_fp32`` can be given, and what it cannot: each refusal has its reason.

Must not know how anything is kept.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from fp16doctor.errors import ApplyError

_LEAVES = (
    "{0} was to be kept in fp32, and it is a generator or a coroutine, whose code runs after it has"
    " returned; put `with keep_fp32():` around the lines that compute"
)
_SCRIPTED = (
    "{0!r} was to be kept in fp32, and it is or holds a ScriptModule, whose code and formats are"
    " fixed; call keep_fp32 on the model that it is made from, or use torch.compile"
)


def check_function(target: Any, patterns: object, outputs: object) -> None:
    """Refuse what is no function, and what only a model has.

    Raises:
        ApplyError: not-a-model, leaves-its-block.
    """
    if isinstance(target, type) or not callable(target):
        what = f"the class {target.__name__}" if isinstance(target, type) else repr(target)[:60]
        raise ApplyError(
            f"keep_fp32 was given {what}; pass a model (an instance), or a function to decorate",
            "not-a-model",
        )
    if patterns is not None or outputs is not None:
        raise ApplyError(
            f"keep_fp32 was given {_name(target)}, which has no modules to be named and no format"
            " of results of its own; leave patterns and outputs out, or pass the model",
            "not-a-model",
        )
    if returns_early(target):
        raise ApplyError(_LEAVES.format(_name(target)), "leaves-its-block")


def checked_patterns(patterns: Iterable[str] | None) -> tuple[str, ...]:
    """Return the patterns; one string is one pattern.

    Raises:
        ApplyError: not-a-pattern.
    """
    if patterns is None or isinstance(patterns, str):
        return () if patterns is None else (patterns,)
    found = tuple(patterns) if isinstance(patterns, Iterable) else (patterns,)
    wrong = [p for p in found if not isinstance(p, str)]
    if wrong:
        raise ApplyError(
            f"a pattern of keep_fp32 is {wrong[0]!r:.60}; pass names as in model.named_modules()",
            "not-a-pattern",
        )
    return found


def check_outputs(outputs: object) -> None:
    """Refuse a format of results that is none.

    Raises:
        ApplyError: not-a-format.
    """
    if outputs is None or (isinstance(outputs, torch.dtype) and outputs.is_floating_point):
        return
    raise ApplyError(
        f"outputs of keep_fp32 is {outputs!r:.60}; pass a floating dtype, such as torch.bfloat16",
        "not-a-format",
    )


def check_module(name: str, module: nn.Module) -> None:
    """Refuse a module whose forward is out of reach, or goes on after it has returned.

    Raises:
        ApplyError: script-module, leaves-its-block.
    """
    if any(isinstance(m, torch.jit.ScriptModule) for m in module.modules()):
        raise ApplyError(_SCRIPTED.format(name), "script-module")
    if returns_early(module.forward):
        raise ApplyError(_LEAVES.format(f"the forward of {name!r}"), "leaves-its-block")


def returns_early(function: Any) -> bool:
    """Tell whether calling a function does not run its code to the end."""
    plain = inspect.unwrap(function) if callable(function) else function
    return (
        inspect.isgeneratorfunction(plain)
        or inspect.iscoroutinefunction(plain)
        or inspect.isasyncgenfunction(plain)
    )


def _name(target: Any) -> str:
    return f"the function {getattr(target, '__qualname__', type(target).__name__)!r}"
