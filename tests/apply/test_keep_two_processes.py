"""Two processes train one model with a kept module; gradients are those of both batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

WORKER = Path(__file__).with_name("two_ranks.py")
ROOT = Path(__file__).parents[2]
EPS = torch.finfo(torch.bfloat16).eps
LOW, WIDE = "torch.bfloat16", "torch.float32"
KEPT = (2, 3)  # weight and bias of the module in the middle


Found = dict[str, dict[str, list[object]]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """What the two ranks print; they meet by a file, so that no port is taken."""
    store = tmp_path_factory.mktemp("ranks") / "store"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), str(store)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        done = [rank.communicate(timeout=110) for rank in running]
    finally:
        for rank in running:
            rank.kill()
    assert [rank.returncode for rank in running] == [0, 0], done
    return [json.loads(out) for out, _ in done]


def test_under_ddp_gradients_are_those_of_both_bit_by_bit(ranks: list[Found]) -> None:
    for found in ranks:
        assert found["ddp"] == {
            "formats": [LOW, LOW, WIDE, WIDE, LOW, LOW],
            "far": [0.0] * 6,
        }


def test_under_fsdp_the_kept_module_has_its_group_in_fp32(ranks: list[Found]) -> None:
    for found in ranks:
        assert found["fsdp"]["formats"] == [LOW, WIDE, LOW]
        for place, far in enumerate(found["fsdp"]["far"]):
            assert isinstance(far, float)
            assert far <= (1e-6 if place in KEPT else 2 * EPS)
