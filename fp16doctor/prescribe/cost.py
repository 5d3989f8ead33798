"""What a keep-list costs: its share of the floating-point work and of the bytes written.

Must not know how a keep-list is found.
"""

from __future__ import annotations

from math import prod

from fp16doctor.replay.environment import torch_dtype
from fp16doctor.replay.keep import kept_ops
from fp16doctor.schema.policy import KeepRule
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in


def cost_of(tape: Tape, rules: tuple[KeepRule, ...]) -> dict[str, float]:
    """Return {"flops_share", "bytes_share"} of the ops that ``rules`` moves to fp32."""
    kept = kept_ops(tape, rules)
    flops = [_flops(c) for c in tape.ops]
    size = [_bytes(c) for c in tape.ops]
    return {
        "flops_share": sum(flops[i] for i in kept) / (sum(flops) or 1.0),
        "bytes_share": sum(size[i] for i in kept) / (sum(size) or 1.0),
    }


def _flops(call: OpCall) -> float:
    """Two per multiply-add of products and convolutions, one per element of anything else."""
    name = call.op.split(".")[1] if "." in call.op else call.op
    outs = refs_in(call.outputs)
    size = float(sum(prod(r.shape) for r in outs[:1]))
    inputs = [r for r in refs_in(call.args) if r.shape]
    if name in ("mm", "bmm", "mv") and inputs:
        return 2 * size * inputs[0].shape[-1]
    if name in ("addmm", "baddbmm", "addmv") and len(inputs) > 1:
        return 2 * size * inputs[-2].shape[-1]
    if name == "convolution" and len(inputs) > 1:
        return 2 * size * prod(inputs[1].shape[1:])
    if name == "convolution_backward" and len(inputs) > 2:
        return 4 * prod(inputs[0].shape) * prod(inputs[2].shape[1:])
    if name.startswith("mkldnn_rnn_layer") and len(inputs) > 2:
        products = prod(inputs[0].shape[:-1]) * (prod(inputs[1].shape) + prod(inputs[2].shape))
        return 4.0 * products if name.endswith("backward") else 2.0 * products
    if "scaled_dot_product" in name and len(inputs) > 1:
        return 4 * size * inputs[1].shape[-2]
    return size


def _bytes(call: OpCall) -> float:
    return float(sum(_size(r) for r in refs_in(call.outputs)))


def _size(ref: TensorRef) -> int:
    return prod(ref.shape) * torch_dtype(ref.dtype).itemsize
