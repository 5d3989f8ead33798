"""Backward kernels that torch cannot differentiate, written out in ops that it can.

Must not know tapes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from fp16doctor.replay.op_traits import base


def written_out(op: str) -> Callable[..., tuple[Tensor, ...]] | None:
    """Return a function that takes the op's arguments and gives its results, with a graph."""
    return _WRITTEN_OUT.get(base(op))


def _attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    """Gradients of attention in its written form; heads (B, H, T, D), without dropout."""
    q, k, v = (t if t.requires_grad else t.detach().requires_grad_() for t in (q, k, v))
    with sdpa_kernel(SDPBackend.MATH):
        again = F.scaled_dot_product_attention(
            q, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale
        )
    return torch.autograd.grad(again, (q, k, v), grad, create_graph=True)


_WRITTEN_OUT: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
