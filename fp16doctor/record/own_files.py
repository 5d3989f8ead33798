"""Which of the files that Python has imported are the user's own and took part in the run.

Must not read them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import ModuleType

from fp16doctor.record.source_lines import SourceLines


def own_files(lines: SourceLines) -> list[str]:
    """Return the paths of imported files below the script's folder, the nearest first.

    Only those whose code ran an op: what no step went through says nothing about the run.
    """
    return sorted(set(_imported(lines)), key=lambda path: (path.count(os.sep), path))


def _imported(lines: SourceLines) -> Iterator[str]:
    for module in list(sys.modules.values()):
        if not isinstance(module, ModuleType):
            continue
        # Past a lazy module's own __getattr__, which might import.
        path = object.__getattribute__(module, "__dict__").get("__file__")
        if isinstance(path, str) and path.endswith(".py") and lines.ran(path):
            yield os.path.realpath(path)
