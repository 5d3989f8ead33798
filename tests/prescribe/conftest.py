"""Makes the observations of the diagnose tests and the trainings of the replay tests importable."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("diagnose", "replay", "prescribe"):
    sys.path.insert(0, str(Path(__file__).parent.parent / folder))
