#!/usr/bin/env python3
"""Compare scripts under plain Python and under ``fp16doctor scan``: output, parameters, status.

    python benchmarks/same_bits.py SCRIPT [SCRIPT …]

Each script runs twice in a process and folder of its own. Compared are its standard output, its
exit status, the bits of every parameter and buffer of every module it made, and the state of the
default generator at its end. Exit status 0 if all are equal.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# Runs in the script's process before it: remembers modules as they are made, hashes at exit.
PROBE = """
import atexit, hashlib, os, torch
made, init = [], torch.nn.Module.__init__
def remember(self, *args, **kwargs):
    init(self, *args, **kwargs)
    made.append(self)
torch.nn.Module.__init__ = remember
def write():
    digest = hashlib.sha256()
    with torch.no_grad():
        for module in made:
            for t in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                digest.update(t.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    digest.update(torch.default_generator.get_state().numpy())
    with open(os.environ["PROBE_OUT"], "w") as out:
        out.write(f"{len(made)} modules {digest.hexdigest()}")
atexit.register(write)
"""


def run(command: list[str], folder: Path) -> tuple[int, bytes, str]:
    """Return exit status, standard output, and what the probe saw."""
    (folder / "sitecustomize.py").write_text(PROBE)
    path = os.pathsep.join(p for p in (str(folder), os.environ.get("PYTHONPATH")) if p)
    seen = folder / "probe.txt"
    env = dict(os.environ, PYTHONPATH=path, PROBE_OUT=str(seen))
    env.setdefault("OMP_NUM_THREADS", "1")
    done = subprocess.run(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return done.returncode, done.stdout, seen.read_text() if seen.exists() else "no probe"


def same(script: Path) -> bool:
    """Run one script both ways and print how they compare."""
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
        plain = run([sys.executable, str(script)], Path(a))
        scan = [sys.executable, "-m", "fp16doctor", "scan", "-q", str(script)]
        watched = run(scan, Path(b))
    differs = [
        name
        for name, x, y in zip(("status", "stdout", "parameters"), plain, watched, strict=True)
        if x != y
    ]
    digest = hashlib.sha256(plain[1]).hexdigest()[:8]
    verdict = f"DIFFERS: {', '.join(differs)}" if differs else "same"
    print(
        f"{script.parent.name}/{script.name:30s} {verdict:30s} {digest} {plain[2][:28]}", flush=True
    )
    return not differs


def main() -> int:
    """Compare the scripts on the command line."""
    scripts = [Path(p).resolve() for p in sys.argv[1:]]
    results = [same(s) for s in scripts]
    print(f"{sum(results)} of {len(results)} the same")
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
