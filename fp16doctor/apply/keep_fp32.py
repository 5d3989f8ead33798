"""Keeps modules or functions in fp32 inside a model that runs in 16 bits.

Inputs are cast up, autocast is off inside, parameters and buffers are stored in fp32, outputs stay
in fp32. Nothing on the model is a closure: it can be copied, saved and loaded.

Must not know how a keep-list is found.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import ContextDecorator
from typing import Any, TypeVar, cast, overload

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.overrides import TorchFunctionMode

from fp16doctor.apply.keep_targets import (
    check_function,
    check_module,
    check_outputs,
    checked_patterns,
)
from fp16doctor.apply.kept_call import computes, in_fp32, is_plain_view
from fp16doctor.apply.kept_module import keep, own_format
from fp16doctor.apply.sharded import sharded_around
from fp16doctor.apply.values import HALF, to_fp32
from fp16doctor.errors import ApplyError
from fp16doctor.schema.policy import in_module
from fp16doctor.schema.wrappers import plain_names

Module = TypeVar("Module", bound=nn.Module)
Function = TypeVar("Function", bound=Callable[..., Any])

_CONTAINERS = (nn.ModuleList, nn.ModuleDict)
_MISSING = "no module of {} is called {!r}; take a name from model.named_modules()"
_NEVER_CALLED = (
    "{0!r} was to be kept in fp32, and its forward is never called: nn.MultiheadAttention reads "
    "its weights itself; keep {1!r}"
)
_SHARED = (
    "a parameter was to be stored in fp32, and the module {0!r}, with modules of its own that stay "
    "in 16 bits, computes on it as {1!r}; keep {0!r} or take the parameter out of it"
)
_SHARDED = (
    "{0!r} was to be kept in fp32, and FSDP has sharded its parameters already, in a group that "
    "has one dtype; call keep_fp32 first, then fully_shard on {0!r} with "
    "mp_policy=MixedPrecisionPolicy(param_dtype=torch.float32), then on the model"
)


class Fp32Region(ContextDecorator, TorchFunctionMode):
    """Computes every torch call of the block in fp32; also a decorator for a function."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one call with its 16-bit arguments in fp32."""
        kwargs = kwargs or {}
        if not computes(func) or is_plain_view(func, args):
            return func(*args, **kwargs)
        return in_fp32(func, args, kwargs)

    def __call__(self, func: Function) -> Function:
        """Return ``func`` with each call in a block of its own, and its results in fp32."""
        inner = super().__call__(func)

        @functools.wraps(func)
        def kept(*args: Any, **kwargs: Any) -> Any:
            return to_fp32(inner(*args, **kwargs))  # a view of what was given is still in 16 bits

        return cast(Function, kept)

    def _recreate_cm(self) -> Fp32Region:
        return type(self)()  # each call of a decorated function has its own


@overload
def keep_fp32(
    target: Module, patterns: Iterable[str], *, outputs: torch.dtype | None = None
) -> Module: ...
@overload
def keep_fp32(target: Function) -> Function: ...
@overload
def keep_fp32() -> Fp32Region: ...
def keep_fp32(
    target: Any = None,
    patterns: Iterable[str] | None = None,
    *,
    outputs: torch.dtype | None = None,
) -> Any:
    """Keep modules of a model, a function, or a block of code in fp32.

    ``keep_fp32(model, ["blocks.2.ffn", "head*"])`` keeps modules with everything below them and
    returns the model. ``@keep_fp32`` keeps a function, ``with keep_fp32():`` a block.

    A kept module gets its floating inputs in fp32 (tensors of any shape, also in tuples, lists,
    dicts and dataclasses; fp16 and bf16 are cast, all else stays), runs without autocast, stores
    parameters and buffers in fp32, and returns what it computes, in fp32. Whoever takes that
    casts it: autocast where it has an op on its 16-bit list, else every module that computes on
    16-bit parameters casts its own inputs. A product of the script's own, in a model stored in 16
    bits, is nobody's to cast: ``outputs=torch.bfloat16`` has kept modules return that format.
    A parameter has one format: in a model stored in 16
    bits, a module that shares one with a kept module is kept as well.

    Parameters stay the same objects, under the same names, so that an optimizer may be made
    before; call it before the optimizer's first step, whose 16-bit state is not widened. The
    model can be copied, saved, pickled, wrapped in DDP and compiled; ``model.half()`` and
    ``.to(dtype)`` afterwards leave kept modules in fp32, bit by bit. Under FSDP call it before
    ``fully_shard``, and give each kept module a group of its own, as a group has one dtype:
    ``fully_shard(model.head, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float32))``.

    Args:
        target: A model, a function, or nothing.
        patterns: Names of modules as in ``model.named_modules()``, with or without what DDP or
            ``torch.compile`` puts between; * and ? stand for any text.
        outputs: Format of the floating results of kept modules; None leaves them in fp32.

    Raises:
        ApplyError: no-such-module, a pattern that names no module of the model, or none is given;
            never-called, a projection whose weights ``nn.MultiheadAttention`` reads itself;
            already-sharded, FSDP manages the module; shared-parameter, the kept parameter is also
            one of a module with modules of its own; script-module, its code is fixed;
            leaves-its-block, a generator or a coroutine; not-a-model, not-a-pattern, not-a-format,
            an argument that is none. Nothing is changed then. A call of a kept module raises
            kept-in-16-bits, where its parameters no longer are fp32.
    """
    if isinstance(target, nn.Module):
        check_outputs(outputs)
        return _keep_modules(target, checked_patterns(patterns), outputs)
    if target is None and patterns is None and outputs is None:
        return Fp32Region()
    check_function(target, patterns, outputs)
    return Fp32Region()(target)


def covered(model: nn.Module, pattern: str) -> Iterator[nn.Module]:
    """Yield the topmost modules that a pattern names and that are called."""
    return (module for _, module in _covered(model, pattern))


def _covered(model: nn.Module, pattern: str) -> Iterator[tuple[str, nn.Module]]:
    """A ModuleList is named, and what it holds is called."""
    above: list[str] = []
    plain_name = plain_names(model.named_modules())
    for name, module in model.named_modules():
        if any(name.startswith(a + ".") for a in above):
            continue
        named = in_module(pattern, plain_name(name)) or in_module(pattern, name)
        if name and named and not isinstance(module, _CONTAINERS):
            above.append(name)
            yield name, module


def _keep_modules(model: Module, patterns: tuple[str, ...], outputs: torch.dtype | None) -> Module:
    if isinstance(model, torch.jit.ScriptModule):
        check_module(type(model).__name__, model)
    found: dict[str, nn.Module] = {}
    for pattern in patterns or ("",):
        named = dict(_covered(model, pattern)) if pattern else {}
        if not named:
            raise ApplyError(_MISSING.format(type(model).__name__, pattern), "no-such-module")
        found |= named
    for name, module in found.items():
        _refuse(model, name, module)
    sharing = _sharing(model, found.values())
    for module in (*found.values(), *sharing):
        keep(module, outputs)
    _cast_where_it_goes_on(model)
    return model


def _refuse(model: nn.Module, name: str, module: nn.Module) -> None:
    """Raise ApplyError where a module cannot be kept by what can be done to it."""
    check_module(name, module)
    if isinstance(module, NonDynamicallyQuantizableLinear):
        raise ApplyError(_NEVER_CALLED.format(name, name.rpartition(".")[0]), "never-called")
    if sharded_around(model, name):
        raise ApplyError(_SHARDED.format(name), "already-sharded")


def _sharing(model: nn.Module, kept: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the modules outside the kept ones that have one of their 16-bit parameters."""
    inside = {id(m) for top in kept for m in top.modules()}
    shared = {id(p) for top in kept for p in top.parameters() if p.dtype in HALF}
    found = []
    for name, module in model.named_modules():
        own = module.named_parameters(recurse=False)
        names = [n for n, p in own if id(p) in shared and id(module) not in inside]
        if names and any(True for _ in module.children()):
            raise ApplyError(_SHARED.format(name, names[0]), "shared-parameter")
        found += [module] * bool(names)
    return found


def _cast_where_it_goes_on(model: nn.Module) -> None:
    """Have modules that compute on 16 bits cast their own inputs: a kept one hands on fp32."""
    for module in model.modules():
        known = own_format in module._forward_pre_hooks.values()
        if isinstance(module, torch.jit.ScriptModule):
            continue  # its formats are fixed, and so is what it is given
        if not known and next(module.parameters(recurse=False), None) is not None:
            module.register_forward_pre_hook(own_format, with_kwargs=True)
