"""A safetensors file as any other file of the user's: safetensors itself makes it private.

Must not know what is in it.
"""

from __future__ import annotations

import stat
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


def save(tensors: dict[str, Tensor], path: Path, about: dict[str, str] | None = None) -> None:
    """Write tensors by name; a new file may be read by whom the user's umask lets.

    Raises what safetensors and the file system raise.
    """
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    save_file(tensors, path, metadata=about)
    path.chmod(mode)
