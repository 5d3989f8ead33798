"""Keeps modules or functions in fp32 inside a model that runs in 16 bits.

Inputs are cast up, autocast is off inside, parameters and buffers are stored in fp32, outputs stay
in fp32. Nothing on the model is a closure: it can be copied, saved and loaded.

Must not know how a keep-list is found.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import ContextDecorator
from typing import Any, TypeVar, overload

from torch import nn
from torch.overrides import TorchFunctionMode

from fp16doctor.apply.kept_call import computes, in_fp32
from fp16doctor.apply.quiet_autocast import no_autocast
from fp16doctor.apply.values import HALF, to_dtype, to_fp32
from fp16doctor.errors import ApplyError
from fp16doctor.schema.policy import in_module

Module = TypeVar("Module", bound=nn.Module)
Function = TypeVar("Function", bound=Callable[..., Any])


class Fp32Region(ContextDecorator, TorchFunctionMode):
    """Computes every torch call of the block in fp32; also a decorator for a function."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one call with its 16-bit arguments in fp32."""
        kwargs = kwargs or {}
        return in_fp32(func, args, kwargs) if computes(func) else func(*args, **kwargs)

    def _recreate_cm(self) -> Fp32Region:
        return type(self)()  # each call of a decorated function has its own


class Fp32Forward:
    """Stands in front of one module's ``forward``; saved and copied with the module."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.replaced = module.__dict__.get("forward")  # an instance's own, None for the class's

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module on its inputs in fp32, without autocast."""
        forward = self.replaced or functools.partial(type(self.module).forward, self.module)
        with no_autocast():
            return forward(*to_fp32(args), **to_fp32(kwargs))


@overload
def keep_fp32(target: Module, patterns: Iterable[str]) -> Module: ...
@overload
def keep_fp32(target: Function) -> Function: ...
@overload
def keep_fp32() -> Fp32Region: ...
def keep_fp32(target: Any = None, patterns: Iterable[str] | None = None) -> Any:
    """Keep modules of a model, a function, or a block of code in fp32.

    ``keep_fp32(model, ["blocks.2.ffn", "head*"])`` keeps modules with everything below them, and
    has every other module that stores 16-bit parameters cast its inputs to its own format; it
    returns the model. ``@keep_fp32`` keeps a function, ``with keep_fp32():`` a block.

    Args:
        target: A model, a function, or nothing.
        patterns: Names of modules as in ``model.named_modules()``; * and ? stand for any text.

    Raises:
        ApplyError: no-such-module, a pattern that names no module of the model.
    """
    if isinstance(target, nn.Module):
        return _keep_modules(target, tuple(patterns or ()))
    if target is None:
        return Fp32Region()
    return Fp32Region()(target)


def covered(model: nn.Module, pattern: str) -> Iterator[nn.Module]:
    """Yield the topmost modules that a pattern names."""
    above: list[str] = []
    for name, module in model.named_modules():
        plain = ".".join(part for part in name.split(".") if part != "_orig_mod")
        if any(plain.startswith(a + ".") for a in above):
            continue
        if name and in_module(pattern, plain):
            above.append(plain)
            yield module


def _keep_modules(model: Module, patterns: tuple[str, ...]) -> Module:
    found = {p: tuple(covered(model, p)) for p in patterns}
    missing = [p for p, modules in found.items() if not modules]
    if missing:
        raise ApplyError(
            f"no module of {type(model).__name__} is called {missing[0]!r}; take a name from "
            "model.named_modules()",
            "no-such-module",
        )
    for modules in found.values():
        for module in modules:
            _keep(module)
    _cast_where_it_goes_on(model)
    return model


def _keep(module: nn.Module) -> None:
    module.float()
    if not isinstance(module.__dict__.get("forward"), Fp32Forward):
        module.__dict__["forward"] = Fp32Forward(module)


def _cast_where_it_goes_on(model: nn.Module) -> None:
    """Have modules that store 16 bits cast their own inputs: a kept one hands on fp32."""
    for module in model.modules():
        own = {p.dtype for p in module.parameters(recurse=False)}
        known = own_format in module._forward_pre_hooks.values()
        if own & set(HALF) and not known:
            module.register_forward_pre_hook(own_format, with_kwargs=True)


def own_format(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Cast a module's inputs to the format of its own parameters."""
    own = next(p.dtype for p in module.parameters(recurse=False))
    return to_dtype(args, own), to_dtype(kwargs, own)
