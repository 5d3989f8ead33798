"""Autocast's op lists as data: which ops take lower-precision inputs whatever they are given.

Source: aten/src/ATen/autocast_mode.h of torch 2.13, the lower-precision lists of CUDA and CPU,
spelled as the overloads that reach the dispatcher. Must not know policies.
"""

from __future__ import annotations

# Matrix products, convolutions, attention, recurrent cells, and their backwards: their tensor
# arguments have one dtype, so that what arrives wider is cast to the format they ran in.
LOWER_PRECISION = frozenset(
    (
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "addbmm",
        "mv",
        "addmv",
        "addr",
        "matmul",
        "linear",
        "linear_backward",
        "convolution",
        "convolution_backward",
        "convolution_overrideable",
        "_convolution",
        "prelu",
        "_prelu_kernel",
        "_prelu_kernel_backward",
        "mkldnn_convolution",
        "mkldnn_rnn_layer",
        "mkldnn_rnn_layer_backward",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_backward",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_efficient_attention_backward",
        "_scaled_dot_product_attention_math",
        "_trilinear",
        "dot",
        "vdot",
    )
)


def takes_lower_precision(op: str) -> bool:
    """Tell whether the op ``aten.mm.default`` casts wider inputs to the format it runs in."""
    parts = op.split(".")
    return len(parts) > 1 and parts[1] in LOWER_PRECISION
