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


# fp32 list, forward overloads and their backwards as the dispatcher sees them.
FP32_LIST = frozenset(
    [
        "acos",
        "asin",
        "cosh",
        "erfinv",
        "exp",
        "expm1",
        "log",
        "log10",
        "log2",
        "log1p",
        "reciprocal",
        "rsqrt",
        "sinh",
        "tan",
        "pow",
        "softplus",
        "softplus_backward",
        "native_layer_norm",
        "native_layer_norm_backward",
        "native_group_norm",
        "native_group_norm_backward",
        "_fused_rms_norm",
        "_fused_rms_norm_backward",
        "frobenius_norm",
        "nuclear_norm",
        "cosine_similarity",
        "cosine_embedding_loss",
        "nll_loss_forward",
        "nll_loss_backward",
        "nll_loss2d_forward",
        "nll_loss2d_backward",
        "hinge_embedding_loss",
        "kl_div",
        "l1_loss",
        "smooth_l1_loss",
        "smooth_l1_loss_backward",
        "huber_loss",
        "huber_loss_backward",
        "mse_loss",
        "mse_loss_backward",
        "margin_ranking_loss",
        "multilabel_margin_loss",
        "soft_margin_loss",
        "soft_margin_loss_backward",
        "triplet_margin_loss",
        "multi_margin_loss",
        "binary_cross_entropy_with_logits",
        "dist",
        "cdist",
        "_cdist_forward",
        "_pdist_forward",
        "renorm",
        "logsumexp",
        "upsample_nearest2d",
        "upsample_bilinear2d",
        "upsample_bicubic2d",
        "prod",
        "_softmax",
        "_softmax_backward_data",
        "_log_softmax",
        "_log_softmax_backward_data",
        "cumprod",
        "cumsum",
        "sum",
        "norm",
        "linalg_vector_norm",
        "linalg_matrix_norm",
    ]
)


def runs_in_fp32(op: str) -> bool:
    """Tell whether CUDA's autocast runs the op in fp32 whatever it is given."""
    parts = op.split(".")
    return len(parts) > 1 and parts[1] in FP32_LIST


def takes_lower_precision(op: str) -> bool:
    """Tell whether the op ``aten.mm.default`` casts wider inputs to the format it runs in."""
    parts = op.split(".")
    return len(parts) > 1 and parts[1] in LOWER_PRECISION
