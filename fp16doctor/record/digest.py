"""The checksum by which a file is known again.

Must not know what is in the file.
"""

from __future__ import annotations

import hashlib
import os

_BLOCK = 1 << 20  # bytes read at a time: bundles may be larger than what memory is left


def sha256_of(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file in hexadecimal; raises OSError where it cannot be read."""
    whole = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(_BLOCK):
            whole.update(block)
    return whole.hexdigest()
