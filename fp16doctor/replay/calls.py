"""Takes a recorded call apart and runs it: arguments, generator, results beside references.

Must not know which formats the tensors are in.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fp16doctor.replay import op_traits
from fp16doctor.replay.environment import is_float_ref
from fp16doctor.schema.tape import OpCall, TensorRef, refs_in

ToTensor = Callable[[TensorRef], Tensor]
ToDtype = Callable[[torch.dtype], torch.dtype]
_HALF = (torch.float16, torch.bfloat16)
Arguments = tuple[list[Any], dict[str, Any]]


def arguments(call: OpCall, tensor: ToTensor, wide: ToDtype | None = None) -> Arguments:
    """Return the call's arguments with tensors in place of references.

    ``wide`` maps dtype arguments; a generator argument is replaced by one in the recorded state.
    A reference that is given twice (``x.mul_(x)``) is one tensor.
    """
    tensor = cache(tensor)
    args = [_rebuild(a, tensor, wide) for a in call.args]
    kwargs = {k: _rebuild(v, tensor, wide) for k, v in call.kwargs.items()}
    _unset_half_to_float(call, args)
    if call.generator is not None:
        generator = torch.Generator(call.generator)
        generator.set_state(call.rng)
        args = [generator if isinstance(a, torch.Generator) else a for a in args]
        kwargs = {k: generator if isinstance(v, torch.Generator) else v for k, v in kwargs.items()}
    return args, kwargs


def _unset_half_to_float(call: OpCall, args: list[Any]) -> None:
    place = op_traits.half_to_float_argument(call.op)
    if place is not None and place < len(args) and args[0].dtype not in _HALF:
        args[place] = False


def _rebuild(value: Any, tensor: ToTensor, wide: ToDtype | None) -> Any:
    if isinstance(value, TensorRef):
        return tensor(value)
    if isinstance(value, (list, tuple)):
        return [_rebuild(v, tensor, wide) for v in value]
    if isinstance(value, torch.dtype) and wide is not None:
        return wide(value)
    return value


def invoke(call: OpCall, given: Arguments) -> Any:
    """Run the op, a random one from the generator state it had; raises what the op raises."""
    op = op_traits.resolve(call.op)
    if call.rng is not None:
        _restore_generator(call)
    args, kwargs = given
    if op_traits.wants_grad_mode(call.op):
        with torch.enable_grad():
            return op(*args, **kwargs)
    return op(*args, **kwargs)


def _restore_generator(call: OpCall) -> None:
    """Put the default generator into the state it had in front of a random op."""
    if call.generator is not None:
        return
    if call.rng.numel() > 64:  # a CPU generator's state takes 5 KB, a CUDA generator's 16 bytes
        torch.default_generator.set_state(call.rng)
        return
    ref = next(iter(refs_in((call.args, call.kwargs, call.outputs))))
    device = torch.device(ref.device or "cuda")
    torch.cuda.default_generators[device.index or 0].set_state(call.rng)


def paired(recorded: Any, result: Any) -> list[tuple[TensorRef, Tensor]]:
    """Match references and tensors of two nests of the same shape."""
    if isinstance(recorded, TensorRef):
        return [(recorded, result)] if isinstance(result, Tensor) else []
    if isinstance(recorded, dict):
        return [p for k, v in recorded.items() for p in paired(v, result[k])]
    if isinstance(recorded, (list, tuple)) and isinstance(result, (list, tuple)):
        return [p for a, b in zip(recorded, result, strict=False) for p in paired(a, b)]
    return []


def given_pairs(call: OpCall, given: Arguments) -> list[tuple[TensorRef, Tensor]]:
    """Match the references and the tensors of the arguments."""
    return paired((call.args, call.kwargs), (list(given[0]), given[1]))


def written_pairs(call: OpCall, given: Arguments) -> list[tuple[TensorRef, Tensor]]:
    """Match the references and the tensors of the arguments that the call wrote."""
    written = set(written_refs(call))
    return [(r, t) for r, t in given_pairs(call, given) if r in written] if written else []


def addresses(given: Arguments) -> set[int]:
    """Return the storages of all tensor arguments."""
    return {t.untyped_storage()._cdata for t in tensors_in(given)}


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in a nest, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors_in(v)]
    return []


def outputs_of(call: OpCall) -> list[TensorRef]:
    """Return what a call makes: its outputs, then what it writes in place and does not return."""
    refs = refs_in(call.outputs)
    seen = {r.storage for r in refs}
    return refs + [r for r in written_refs(call) if r.storage not in seen]


def written_refs(call: OpCall) -> list[TensorRef]:
    """Return the arguments that a call writes in place.

    Those the schema names; where it names none of a written storage, all that lie in it.
    """
    if not call.mutates:
        return []
    positions, names = op_traits.written_arguments(call.op)
    named = [call.args[i] for i in positions if i < len(call.args)]
    named += [call.kwargs[n] for n in names if n in call.kwargs]
    written = set(call.mutates)
    found = [r for r in refs_in(named) if r.storage in written]
    rest = written - {r.storage for r in found}
    return found + [r for r in refs_in((call.args, call.kwargs)) if r.storage in rest]


def float_inputs(call: OpCall) -> list[TensorRef]:
    """Return the floating inputs whose values the call reads."""
    refs = refs_in((call.args, call.kwargs))
    if op_traits.overwrites(call.op):
        written = set(call.mutates)
        refs = [r for r in refs if r.storage not in written]
    return [r for r in refs if is_float_ref(r)]
