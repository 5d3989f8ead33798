"""Where a scan imports its own parts from once the script has changed ``sys.path``.

Must not know what is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def import_path(path: list[str]) -> Iterator[None]:
    """Import from ``path``: an html.py beside the script is not the one that reports need."""
    scripts = sys.path
    sys.path = list(path)
    try:
        yield
    finally:
        sys.path = scripts
