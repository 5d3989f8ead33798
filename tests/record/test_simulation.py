"""A run on a simulated device: when, what is said of it, and that nothing stays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fp16doctor.record import simulation
from fp16doctor.record.script import Target, prepare
from fp16doctor.record.simulation import (
    AT_ONCE,
    NEVER,
    PREPARED,
    UNNAMED,
    WANTED,
    Simulation,
)

pytestmark = pytest.mark.skipif(
    not hasattr(torch.library, "get_kernel"), reason="this torch cannot call a replaced kernel"
)


@pytest.mark.parametrize(
    ("device", "text", "there", "when"),
    [
        ("auto", "x.cuda()", False, PREPARED),
        ("auto", "x.cuda()", True, NEVER),
        ("auto", "x + 1", False, UNNAMED),
        ("cpu", "x.cuda()", False, NEVER),
        ("auto", "import lightning as L\nL.Trainer(precision='16-mixed')", False, WANTED),
        ("auto", "import lightning as L\nL.Trainer(accelerator='gpu')", False, WANTED),
        ("auto", "from transformers import Trainer\nA(fp16=True)", False, WANTED),
        ("auto", "from accelerate import A\nA(mixed_precision='fp16')", False, WANTED),
        ("auto", "from accelerate import A\nA(mixed_precision='bf16')", False, UNNAMED),
        ("auto", "A(fp16=True)", False, UNNAMED),
        ("cuda", "x + 1", False, AT_ONCE),
        ("cuda", "x + 1", True, NEVER),
    ],
)
def test_when(
    device: str,
    text: str,
    there: bool,
    when: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simulation, "_cuda_is_there", lambda: there)
    (tmp_path / "train.py").write_text(text)
    script = prepare(Target(str(tmp_path / "train.py"), False, ()))
    assert simulation.simulation_for(device, script) == when


def kernel() -> str:
    return repr(torch.library.get_kernel("aten::mm", "CPU"))


def softmax_dtype() -> torch.dtype:
    with torch.autocast("cpu", torch.float16):
        return torch.zeros(2).half().softmax(0).dtype


@pytest.mark.parametrize("when", [NEVER, UNNAMED, PREPARED])
def test_without_a_request_arithmetic_and_lists_are_as_they_were(when: str) -> None:
    before = kernel()
    run = Simulation(when)
    run.start(lambda: pytest.fail("nobody asked"))
    try:
        assert (kernel(), softmax_dtype()) == (before, torch.float16)
        with run.arithmetic():
            assert kernel() == before
    finally:
        run.stop()
    assert run.device == ""
    assert list(run.cautions()) == []


def test_a_request_and_its_end() -> None:
    before, calls = kernel(), dict(vars(torch.cuda))
    run = Simulation(PREPARED)
    run.start(lambda: None)
    try:
        a = torch.full((2, 4), 3.0).half().cuda()
        assert run.device == "cuda"
        with torch.autocast("cuda"):
            assert a.softmax(0).dtype is torch.float32
            a @ a.T
        assert softmax_dtype() is torch.float16  # a region for the CPU has the CPU's list
        assert kernel() != before
    finally:
        run.stop()
    assert (kernel(), softmax_dtype()) == (before, torch.float16)
    assert {k for k, v in calls.items() if vars(torch.cuda)[k] is not v} == set()
    with run.arithmetic():  # replays of the run have it once more
        assert kernel() != before
    assert kernel() == before
    (caution,) = run.cautions()
    assert caution.slug == "cuda-simulated"
    assert caution.message.endswith("is 36 (K = 4), below the fp16 maximum 65504")


def test_the_request_of_a_script_that_names_none_is_noted() -> None:
    if torch.backends.cuda.is_built():
        pytest.skip("with CUDA built in, asking for a device may start the driver")
    run = Simulation(UNNAMED)
    run.start(lambda: None)
    try:
        with pytest.raises(AssertionError, match="not compiled with CUDA"):
            torch.zeros(1).to("cu" + "da")
    finally:
        run.stop()
    assert [caution.slug for caution in run.cautions()] == ["cuda-not-simulated"]


def test_a_framework_that_finds_no_gpu_is_told() -> None:
    wanted = Simulation(WANTED)
    wanted.start(lambda: None)
    wanted.stop()
    (said,) = wanted.cautions()
    assert said.slug == "cuda-not-simulated"
    assert "--device cuda" in said.message
