"""What dotted names of torch mean to mixed precision.

Must not know a script; numbers of formats are those of IEEE binary16 and bfloat16.
"""

from __future__ import annotations

FLOAT16, BFLOAT16, FLOAT32 = "float16", "bfloat16", "float32"
DTYPES = {
    "torch.float16": FLOAT16,
    "torch.half": FLOAT16,
    "torch.bfloat16": BFLOAT16,
    "torch.float32": FLOAT32,
    "torch.float": FLOAT32,
    "torch.float64": FLOAT32,
    "torch.double": FLOAT32,
}
FP16_MAX = 65504.0
FP16_UNDERFLOW = 2.0**-25  # the largest magnitude that a cast to fp16 rounds to zero
FP16_UNIT_ROUNDOFF = 2.0**-11

_AMP = ("torch.amp", "torch.cuda.amp", "torch.cpu.amp")
_FILES = {"autocast": "autocast_mode", "GradScaler": "grad_scaler"}


def _spellings(name: str) -> set[str]:
    return {f"{a}.{name}" for a in _AMP} | {f"{a}.{_FILES[name]}.{name}" for a in _AMP}


AUTOCASTS = _spellings("autocast") | {"torch.autocast"}
SCALERS = _spellings("GradScaler") | {
    "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler"
}
CLIPS = {
    f"torch.nn.utils.{place}{name}"
    for place in ("", "clip_grad.")
    for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "clip_grad_value")
}
# Optimizers that divide by a root of a squared gradient, and their default eps.
EPS_OPTIMIZERS = {
    "Adam": 1e-8,
    "AdamW": 1e-8,
    "NAdam": 1e-8,
    "RAdam": 1e-8,
    "RMSprop": 1e-8,
}
DEFAULT_EPS = {**EPS_OPTIMIZERS, "Adamax": 1e-8, "Adagrad": 1e-10, "Adadelta": 1e-6}
# torch.optim names that are no optimizers.
_NOT_OPTIMIZERS = ("torch.optim.lr_scheduler.", "torch.optim.swa_utils.")


def optimizer_name(dotted: str) -> str:
    """``Adam`` for ``torch.optim.Adam`` and ``torch.optim.adam.Adam``; empty for anything else."""
    last = dotted.rpartition(".")[2]
    if not dotted.startswith("torch.optim.") or dotted.startswith(_NOT_OPTIMIZERS):
        return ""
    return last if last[:1].isupper() and last != "Optimizer" else ""


def is_scheduler(dotted: str) -> bool:
    """Whether the name makes a learning-rate schedule of torch, by its class or by a function."""
    made = dotted.startswith("transformers.") and "schedule" in dotted.rpartition(".")[2]
    return dotted.startswith("torch.optim.lr_scheduler.") or made


def loss_name(dotted: str) -> str:
    """``cross_entropy`` or ``CrossEntropyLoss`` for torch's own losses; empty otherwise."""
    last = dotted.rpartition(".")[2]
    if dotted.startswith("torch.nn.functional.") and last in _LOSS_FUNCTIONS:
        return last
    return last if dotted.startswith("torch.nn.") and last.endswith("Loss") else ""


_LOSS_FUNCTIONS = {
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy",
    "huber_loss",
    "l1_loss",
    "mse_loss",
    "nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
}
