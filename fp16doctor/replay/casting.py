"""How one op is carried out in other formats than the recorded ones, and what if it cannot be.

In this order: the op itself on the policy's own values; with indices and masks as in the run, where
a shape depends on them; in the recorded formats; the run's results.

Must not know lockstep or births.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fp16doctor.errors import ReplayError
from fp16doctor.replay import op_traits
from fp16doctor.replay.calls import (
    Arguments,
    ToTensor,
    arguments,
    invoke,
    paired,
    written_pairs,
    written_refs,
)
from fp16doctor.replay.environment import (
    Environment,
    ShapeDiffers,
    is_float_dtype,
    is_float_ref,
    torch_dtype,
)
from fp16doctor.schema.tape import OpCall, TensorRef, refs_in

if TYPE_CHECKING:
    from fp16doctor.replay.player import Player

# What an op raises where it does not run on the tensors it is given.
REFUSALS = (
    RuntimeError,
    TypeError,
    ValueError,
    IndexError,
    AttributeError,
    AssertionError,
    ReplayError,
)


def play(call: OpCall, player: Player, partner: Player) -> None:
    """Run one op in the player's formats; ``partner`` is the run, past this op already."""
    if op_traits.is_draw(call.op):
        _take_over(call, player, partner, "random")
    elif op_traits.is_dropout(call.op):
        _dropout(call, player, partner)
    elif op_traits.is_unscale(call.op):
        _unscale(call, player.env)
    elif op_traits.keeps_format(call.op):
        run_in_recorded_format(call, player)
    else:
        _try(call, player, partner)


def _try(call: OpCall, player: Player, partner: Player) -> None:
    env = player.env
    try:
        _run(call, player, arguments(call, env.tensor, env.wide))
    except (ShapeDiffers, *REFUSALS) as error:
        if _try_discrete(call, player, partner):
            return
        if isinstance(error, ShapeDiffers):
            _take_over(call, player, partner, "data-dependent shape")
        else:
            _without_own_formats(call, player, partner, error)


def _run(call: OpCall, player: Player, given: Arguments) -> None:
    player.take(call, given, _in_formats(player.env, call.outputs, invoke(call, given)))


def _in_formats(env: Environment, recorded: Any, result: Any) -> Any:
    """Return a result whose floating tensors have the formats that stand for the recorded ones.

    An op that chooses the format by itself (a quotient of integers) knows nothing of a policy.
    """
    if isinstance(result, (list, tuple)) and isinstance(recorded, (list, tuple)):
        return [_in_formats(env, a, b) for a, b in zip(recorded, result, strict=False)]
    if not (isinstance(result, Tensor) and isinstance(recorded, TensorRef)):
        return result
    wide = env.wide(torch_dtype(recorded.dtype))
    return result.to(wide) if is_float_dtype(wide) else result


def _try_discrete(call: OpCall, player: Player, partner: Player) -> bool:
    """Run with indices and masks as in the run, if they differ there; True where it worked."""
    choose = _discrete_from(call, partner.env, player.env)
    if choose is None:
        return False
    try:
        _run(call, player, arguments(call, choose, player.env.wide))
    except (ShapeDiffers, *REFUSALS):
        return False
    player.pin(call, "data-dependent shape: indices as in the run")
    return True


def _discrete_from(call: OpCall, run: Environment, own: Environment) -> ToTensor | None:
    """Return where to take arguments from; None where no index or mask differs from the run's."""
    written = set(call.mutates)
    discrete = [
        r
        for r in refs_in((call.args, call.kwargs))
        if not is_float_ref(r) and r.storage not in written
    ]
    theirs = {r for r in discrete if not torch.equal(run.tensor(r), own.tensor(r))}
    if not theirs:
        return None
    return lambda ref: run.tensor(ref) if ref in theirs else own.tensor(ref)


def _without_own_formats(call: OpCall, player: Player, partner: Player, error: Exception) -> None:
    try:
        run_in_recorded_format(call, player)
        player.pin(call, "runs in its recorded format only")
    except (ShapeDiffers, *REFUSALS):
        reason = f"does not run in {player.policy.name}: {_brief(error)}"
        _take_over(call, player, partner, reason)


def run_in_recorded_format(call: OpCall, player: Player) -> None:
    """Round the inputs to the recorded formats, run the op there, keep the results wide."""
    env = player.env
    given = arguments(call, env.recorded_form)
    result = invoke(call, given)
    env.bind(paired(call.outputs, _in_formats(env, call.outputs, result)), set())
    for ref, tensor in written_pairs(call, given):
        _store(env, ref, tensor)


def _take_over(call: OpCall, player: Player, partner: Player, reason: str) -> None:
    """Use the run's results for this op."""
    player.pin(call, reason)
    env, written = player.env, set(call.mutates)
    for ref in written_refs(call):
        _store(env, ref, partner.env.tensor(ref))
    outputs = [r for r in refs_in(call.outputs) if r.storage not in written]
    env.bind([(r, _as_in(env, r, partner.env.tensor(r))) for r in outputs], set())
    if call.index in partner.scalars:
        player.scalars[call.index] = partner.scalars[call.index]


def _as_in(env: Environment, ref: TensorRef, value: Tensor) -> Tensor:
    return value.to(env.wide(torch_dtype(ref.dtype)), copy=True)


def _store(env: Environment, ref: TensorRef, value: Tensor) -> None:
    target = env.tensor(ref)
    target.copy_(value)
    env.write_back(ref, target)


def _dropout(call: OpCall, player: Player, partner: Player) -> None:
    """The run's mask on the policy's own values; (input, p, train) -> (output, mask)."""
    refs: list[TensorRef] = refs_in(call.outputs)
    x, mask = player.env.tensor(call.args[0]), partner.env.tensor(refs[1]).clone()
    player.env.bind([(refs[0], dropped(call, x, mask)), (refs[1], mask)], set())


def dropped(call: OpCall, x: Tensor, mask: Tensor) -> Tensor:
    """Return ``x`` with ``mask`` applied as ``native_dropout(x, p, train)`` does."""
    p, train = float(call.args[1]), call.args[2]
    scale = 1.0 if train is False else 0.0 if p == 1 else 1 / (1 - p)
    return x * mask * scale


def _unscale(call: OpCall, env: Environment) -> None:
    """GradScaler's kernel in any format: divide, and note whether anything was non-finite.

    Source: aten/src/ATen/native/cuda/AmpKernels.cu, _amp_foreach_non_finite_check_and_unscale_.
    """
    gradients, found, inverse = call.args
    found_inf = env.tensor(found)
    for ref in gradients:
        gradient = env.tensor(ref)
        bad = (~torch.isfinite(gradient)).any().to(found_inf.dtype)
        found_inf.copy_(torch.maximum(found_inf, bad))  # nothing is read from the device
        gradient.mul_(env.tensor(inverse).to(gradient.dtype))
        env.write_back(ref, gradient)


def _brief(error: Exception) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__
