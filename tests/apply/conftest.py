"""Makes the helpers of the tests of this folder importable."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("replay", "apply"):
    sys.path.insert(0, str(Path(__file__).parent.parent / folder))
