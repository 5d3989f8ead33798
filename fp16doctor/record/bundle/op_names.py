"""Which ops a bundle may name.

A name is looked up in torch's own registry and nowhere else: nothing is imported for it. Ops that
open files, write to the terminal or draw seeds are in the same registry, so an op must compute:
its schema takes or gives tensors, and names no file.

Must not know tapes.
"""

from __future__ import annotations

import re
from functools import cache

import torch

NAMESPACES = ("aten", "prims", "mkldnn", "mkl", "quantized")
_NAME = re.compile(r"[a-z]\w*\.\w+\.\w+", re.ASCII)
_FILES = ("filename", "path", "file")
# They take tensors, and do something else than compute.
_NOT_COMPUTING = frozenset(("save", "from_file", "set_data", "record_stream", "warn", "_print"))


@cache
def why_not(name: str) -> str:
    """Return why a bundle may not name an op, "" where it may."""
    if not _NAME.fullmatch(name):
        return "is no name of an op"
    namespace, op, overload = name.split(".")
    if namespace not in NAMESPACES:
        return f"belongs to {namespace!r}, and a bundle replays ops of {', '.join(NAMESPACES)}"
    try:
        schema = getattr(getattr(getattr(torch.ops, namespace), op), overload)._schema
    except (AttributeError, RuntimeError):
        return f"is not known to torch {torch.__version__}"
    if op in _NOT_COMPUTING or any(a.name in _FILES for a in schema.arguments):
        return "does more than compute"
    kinds = [str(a.type) for a in (*schema.arguments, *schema.returns)]
    return "" if any("Tensor" in kind for kind in kinds) else "works on no tensors"


@cache
def argument_names(name: str) -> frozenset[str]:
    """Return what the arguments of a known op are called."""
    namespace, op, overload = name.split(".")
    schema = getattr(getattr(getattr(torch.ops, namespace), op), overload)._schema
    return frozenset(a.name for a in schema.arguments)
