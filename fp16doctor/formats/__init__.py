"""Number formats as data: every format file of this folder is loaded, in name order.

Must not know torch, so that limits are at hand where there is none.
"""

from __future__ import annotations

import importlib
import pkgutil

from fp16doctor.formats.number_format import (
    NumberFormat,
    all_formats,
    format_of_dtype_name,
    get_format,
    register,
)

__all__ = ["NumberFormat", "all_formats", "format_of_dtype_name", "get_format", "register"]

# Tools of this folder; every other file in it is one format.
_TOOLS = frozenset({"binades", "number_format", "rounding", "scalar", "ulp"})

for _name in sorted({module.name for module in pkgutil.iter_modules(__path__)} - _TOOLS):
    importlib.import_module(f"{__name__}.{_name}")
