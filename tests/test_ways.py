"""Ways to train in several processes, as a user starts them: each run is the same as without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DDP = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
with torch.no_grad():
    model[0].weight.mul_(1e3)
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
for step in range(2):
    with torch.autocast("cpu", torch.float16):
        loss = model(torch.full((2, 4), 1e3)).float().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0:
        print(step, loss.item())
dist.destroy_process_group()
"""


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    paths = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, **paths, **variables},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Two processes under torchrun; the folder they ran in, and what they said."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "train.py").write_text(DDP)
    done = run(
        folder,
        *("-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"),
        *("--rdzv-endpoint", "localhost:0", "-m", "fp16doctor", "scan", "--budget", "20"),
        "train.py",
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout + "\n-- stderr --\n" + done.stderr


def test_each_rank_writes_its_own_report(ranks: tuple[Path, str]) -> None:
    folder, _ = ranks
    runs = {
        name: json.loads((folder / f"fp16doctor-{name}.json").read_text())["run"]
        for name in ("train", "train.rank1")
    }
    assert {n: (r["rank"], r["world_size"]) for n, r in runs.items()} == {
        "train": (0, 2),
        "train.rank1": (1, 2),
    }
    assert len(list(folder.glob("*.html"))) == 2


def test_rank_0_reports_and_says_that_it_is_one_of_two(ranks: tuple[Path, str]) -> None:
    _, said = ranks
    assert said.count("verdict") == 1
    assert "one rank of 2 was seen, rank 0" in said
    assert "fp16doctor, rank 1 of 2: error FD101" in said


def test_modules_have_the_names_they_have_without_the_wrapper(ranks: tuple[Path, str]) -> None:
    assert "the output of `0` (Linear) reaches" in ranks[1]
    assert "`module." not in ranks[1]


def test_a_second_run_by_itself_is_refused_among_several(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    command = ("-m", "fp16doctor", "scan", "--confirm", "train.py")
    done = run(tmp_path, *command, RANK="0", WORLD_SIZE="2")
    assert done.returncode == 2
    assert "[confirm-in-ranks]" in done.stderr


def test_a_launcher_is_put_in_front(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "fp16doctor", "scan", "-m", "torch.distributed.run", "train.py")
    assert done.returncode == 2
    assert "[launcher]" in done.stderr
    assert "torchrun --nproc-per-node N -m fp16doctor scan" in done.stderr


def test_training_in_processes_of_its_own_is_not_called_no_training(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch, multiprocessing\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('fork').Process(target=print, args=('trained',))\n"
        "    child.start()\n"
        "    child.join()\n"
    )
    done = run(tmp_path, "-m", "fp16doctor", "scan", "train.py")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "1 process that it started" in done.stderr
    assert "[other-processes]" in done.stderr
