"""Scripts that end or read in unusual ways: the same output and status as under Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = """import torch
m = torch.nn.Linear(2, 1)
o = torch.optim.SGD(m.parameters(), lr=0.1)
for i in range(2):
    m(torch.ones(1, 2)).sum().backward()
    o.step()
print("trained", flush=True)
"""
SCRIPTS = {
    "hard exit": TRAIN + "import os\nos._exit(7)\n",
    "other folder": "import os, tempfile\nos.chdir(tempfile.mkdtemp())\n" + TRAIN,
    "encoding line": "# -*- coding: latin-1 -*-\nprint('caf\xe9')\n" + TRAIN,
    "standard input": TRAIN + "import sys\nprint(sys.stdin.read())\n",
    "given to exec": f"exec({TRAIN!r})\n",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_output_and_status_are_those_of_python(tmp_path: Path, name: str) -> None:
    (tmp_path / "train.py").write_bytes(SCRIPTS[name].encode("latin-1"))

    def done(*front: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, *front, "train.py"],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            input=b"given\n",
            capture_output=True,
            check=False,
        )

    plain, watched = done(), done("-m", "fp16doctor", "scan", "-q", "--budget", "0")
    assert plain.stdout
    assert (watched.stdout, watched.returncode) == (plain.stdout, plain.returncode)
    assert b"internal-error" not in watched.stderr
    assert (tmp_path / "fp16doctor-train.json").exists() is (name != "hard exit")
