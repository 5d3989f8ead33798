"""The tensors of an excerpt as a safetensors file of their own.

Must not know what they are given to.
"""

from __future__ import annotations

from pathlib import Path

import safetensors
from torch import Tensor

from fp16doctor.errors import OutputError
from fp16doctor.record.bundle.saved import save


def write_given(path: Path, given: dict[str, Tensor]) -> int:
    """Write tensors by name and return the file's size in bytes; raises OutputError."""
    try:
        save({name: t.contiguous() for name, t in given.items()}, path)
        return path.stat().st_size
    except (OSError, safetensors.SafetensorError) as error:
        raise OutputError(
            f"writing '{path}' failed: {error}; name another file with -o", "output-failed"
        ) from error
