"""CUDA's autocast op lists as data, spelled as the schemas that autocast registers.

Source: aten/src/ATen/autocast_mode.h and .cpp of torch 2.13. Must not know how they are applied.
"""

from __future__ import annotations

# Inputs are cast to the region's format. The products and convolutions that the CPU's list has as
# well are left to the CPU's own entries.
LOWER_PRECISION: tuple[str, ...] = (
    *("_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc"),
    *("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "convolution"),
    *("prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv", "linalg_vecdot"),
    *("linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot"),
    *("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell"),
    *("rnn_tanh_cell", "rnn_relu_cell"),
    *("_scaled_dot_product_flash_attention", "scaled_dot_product_attention"),
)

# 16-bit inputs are cast to fp32.
FP32: tuple[str, ...] = (
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p"),
    *("reciprocal", "rsqrt", "sinh", "tan"),
    *("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus"),
    *("layer_norm", "native_layer_norm", "rms_norm", "group_norm"),
    *("frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity"),
    *("poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d"),
    *("hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss"),
    *("margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss"),
    *("triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits"),
    *("dist", "pdist", "cdist", "renorm", "logsumexp"),
    *("upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d"),
    *("_upsample_nearest_exact2d", "upsample_nearest3d", "_upsample_nearest_exact3d"),
    *("upsample_linear1d", "upsample_bilinear2d", "_upsample_bilinear2d_aa"),
    *("upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa"),
)

# Asked for their result in fp32 where the caller names no dtype.
FP32_RESULT: tuple[str, ...] = (
    *("prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum"),
    *("linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord"),
    *("sum", "sum.dim_IntList"),
)

# The same by another overload, one that takes a dtype.
FP32_OVERLOAD: dict[str, str] = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
}

# Inputs are cast to the widest of their formats.
PROMOTE: tuple[str, ...] = (
    *("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler"),
    *("index_put", "tensordot", "scatter_add"),
)

REFUSED: tuple[str, ...] = ("binary_cross_entropy",)
