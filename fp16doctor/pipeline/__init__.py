"""From a watched run to a diagnosis. Knows every stage; the stages do not know each other."""

from fp16doctor.pipeline.options import ScanOptions, Trouble
from fp16doctor.pipeline.session import Session
from fp16doctor.pipeline.what_if import what_if

__all__ = ["ScanOptions", "Session", "Trouble", "what_if"]
