"""Whether the file that a diagnosis names is what its command line would run.

A diagnosis may come from anywhere: it must not have Python run a tool of the standard library or of
an installed package on arguments of its choice. Must not know what is run.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from fp16doctor.schema.start import ScanStart

_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")


def is_own(start: ScanStart, script: str) -> bool:
    """Tell whether ``start.file`` is the script or module of that name, and no installed one."""
    file = Path(os.path.realpath(start.file))
    if any(file.is_relative_to(os.path.realpath(p)) for p in _places()):
        return False
    if not start.is_module:
        named = os.path.realpath(os.path.join(start.folder, script))
        return file in (Path(named), Path(named, "__main__.py"))
    parts = script.split(".")
    if parts[0] in sys.stdlib_module_names:
        return False
    tails = (Path(*parts).with_suffix(".py"), Path(*parts, "__main__.py"))
    return any(file.parts[-len(t.parts) :] == t.parts for t in tails)


def _places() -> list[str]:
    paths = sysconfig.get_paths()
    return [paths[name] for name in _INSTALLED if name in paths]
