"""One forward pass of a live model, read as calls; the model is left as it was.

Must not know what is looked for in them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from fp16doctor.apply.flow import Flow
from fp16doctor.errors import FixupError
from fp16doctor.schema.location import OpSite, Phase
from fp16doctor.schema.tape import OpCall, TensorRef


def flow_of(model: nn.Module, example_inputs: Any) -> Flow:
    """Return the dataflow of ``model(*example_inputs)``.

    ``example_inputs`` is a tensor, a tuple or list of positional arguments, or a dict of keyword
    arguments. Random state, buffers and training flags are put back.

    Raises:
        FixupError: the model does not run on them, or has parameters without a shape yet.
    """
    if any(nn.parameter.is_lazy(p) for p in model.parameters()):
        raise FixupError(
            "the model has parameters without a shape (lazy modules); run one batch through it "
            "first",
            "fixup-lazy",
        )
    calls = _Calls(model)
    args, kwargs = _arguments(example_inputs)
    with ExitStack() as stack:
        stack.enter_context(_left_alone(model))
        stack.enter_context(calls.paths())
        stack.enter_context(torch.no_grad())
        stack.enter_context(calls)
        try:
            model(*args, **kwargs)
        except Exception as error:
            raise FixupError(
                f"a forward pass was tried with the example inputs, and {type(error).__name__} was "
                f"met: {error}; pass inputs that the model takes: (x,) or a dict of keywords",
                "fixup-forward",
            ) from error
    return Flow(calls.calls, calls.parameters, calls.buffers)


def _arguments(given: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if isinstance(given, Mapping):
        return (), given
    return (given if isinstance(given, (tuple, list)) else (given,)), {}


@contextmanager
def _left_alone(model: nn.Module) -> Iterator[None]:
    """Put back what a forward pass may change: draws, running statistics, flags."""
    flags = [(m, m.training) for m in model.modules()]
    slots = [(m, dict(m._buffers)) for m in model.modules()]
    kept = [(b, b.clone()) for b in model.buffers()]
    drawn = random.getstate()
    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(drawn)
        with torch.no_grad():
            for buffer, value in kept:
                if not torch.equal(buffer, value):  # NaN too: it is written again
                    buffer.copy_(value)
        for module, buffers in slots:
            module._buffers.clear()
            module._buffers.update(buffers)
        for module, training in flags:
            module.training = training


class _Calls(TorchDispatchMode):
    """Notes every call with its tensors as references to storages."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[OpCall] = []
        self._held: list[Any] = []  # a freed storage's address would be given out again
        self._numbers: dict[int, int] = {}
        self._names = {id(m): name for name, m in model.named_modules()}
        self._stack: list[str] = []
        self.parameters: dict[int, tuple[str, ...]] = {}
        for name, parameter in model.named_parameters():
            number = self._number(parameter)
            self.parameters[number] = (*self.parameters.get(number, ()), name)
        self.buffers = {self._number(b) for b in model.buffers()} - self.parameters.keys()

    @contextmanager
    def paths(self) -> Iterator[None]:
        """Know which module is running."""

        def enter(module: nn.Module, args: Any) -> None:
            self._stack.append(self._names.get(id(module), ""))

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self._stack.pop()

        handles = (
            register_module_forward_pre_hook(enter),
            register_module_forward_hook(leave, always_call=True),
        )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        out = func(*args, **given)
        place = self._stack[-1] if self._stack else None
        index = len(self.calls)
        self.calls.append(
            OpCall(
                index=index,
                op=str(func),
                args=self._referenced(args),
                kwargs=self._referenced(given),
                outputs=self._referenced(out),
                mutates=tuple(self._written(func, args, given)),
                site=OpSite(-1, Phase.FORWARD, str(func), index, module_path=place),
            )
        )
        return out

    def _referenced(self, nest: Any) -> Any:
        return tree_map(lambda x: self._ref(x) if isinstance(x, Tensor) else x, nest)

    def _ref(self, x: Tensor) -> TensorRef:
        dtype = str(x.dtype).removeprefix("torch.")
        shape, strided = tuple(x.shape), x.layout is torch.strided
        stride = tuple(x.stride()) if strided else (0,) * len(shape)
        return TensorRef(self._number(x), 0, dtype, shape, stride, 0, str(x.device))

    def _number(self, x: Tensor) -> int:
        held = x.untyped_storage() if x.layout is torch.strided else x
        key = held._cdata if x.layout is torch.strided else id(x)
        if key not in self._numbers:
            self._held.append(held)
            self._numbers[key] = len(self._numbers)
        return self._numbers[key]

    def _written(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Iterator[int]:
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[place] if place < len(args) else kwargs.get(argument.name)
                for x in value if isinstance(value, (list, tuple)) else (value,):
                    if isinstance(x, Tensor):
                        yield self._number(x)
