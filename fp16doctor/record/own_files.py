"""Which of the files that Python has imported are the user's own, beside the script.

Must not read them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import ModuleType

from fp16doctor.record.source_lines import SourceLines


def own_files(lines: SourceLines) -> list[str]:
    """Return the paths of imported Python files below the script's folder, the nearest first."""
    return sorted(set(_imported(lines)), key=lambda path: (path.count(os.sep), path))


def _imported(lines: SourceLines) -> Iterator[str]:
    for module in list(sys.modules.values()):
        if not isinstance(module, ModuleType):
            continue
        # Past a lazy module's own __getattr__, which might import.
        path = object.__getattribute__(module, "__dict__").get("__file__")
        if isinstance(path, str) and path.endswith(".py") and lines.is_below_root(path):
            yield os.path.realpath(path)
