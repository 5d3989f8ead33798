"""The public names of fp16doctor, each loaded when it is first asked for.

Importing the package must not import torch: reports are rendered where there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from os import PathLike

    from fp16doctor.apply.fixup import fixup_
    from fp16doctor.apply.fixup_scalars import parameter_groups
    from fp16doctor.apply.keep_fp32 import keep_fp32
    from fp16doctor.profiler import profile
    from fp16doctor.schema.diagnosis import Diagnosis

__version__ = "0.1.0"

__all__ = [
    "Diagnosis",
    "__version__",
    "fixup_",
    "keep_fp32",
    "load_diagnosis",
    "parameter_groups",
    "profile",
]


def load_diagnosis(path: str | PathLike[str]) -> Diagnosis:
    """Read the JSON file at ``path`` that ``fp16doctor scan`` wrote.

    Raises:
        DiagnosisFileError: the file cannot be read, is not JSON, or is no diagnosis that this
            version of fp16doctor knows.
    """
    from pathlib import Path

    from fp16doctor.schema.codec import load

    return load(Path(path))


# name -> the module that holds it
_LAZY = {
    "Diagnosis": "fp16doctor.schema.diagnosis",
    "fixup_": "fp16doctor.apply.fixup",
    "keep_fp32": "fp16doctor.apply.keep_fp32",
    "parameter_groups": "fp16doctor.apply.fixup_scalars",
    "profile": "fp16doctor.profiler",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """List the names that are not loaded yet as well, for help and completion."""
    return sorted({*globals(), *__all__})
