"""Puts the trainings of other folders on the path."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
FOLDERS = ("pipeline", "record/bundle", "record", "replay", "prescribe")
sys.path[:0] = [str(TESTS / folder) for folder in FOLDERS]
