"""``apex.amp`` where it is not installed: opt levels as documented, and nothing that stays."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fp16doctor.simulate.apex_amp import ApexAmp
from fp16doctor.simulate.apex_import import ApexImport

HALF, WIDE = torch.float16, torch.float32
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("apex") is not None, reason="a real apex is installed"
)


@pytest.fixture
def amp() -> Iterator[ApexAmp]:
    amp = ApexAmp()
    yield amp
    amp.leave()


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def prepared(amp: ApexAmp, level: str, **options: Any) -> tuple[nn.Sequential, Any]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    amp.initialize(model, optimizer, opt_level=level, **options)
    return model, optimizer


def backward(amp: ApexAmp, model: nn.Module, optimizer: Any, x: Tensor, **options: Any) -> Tensor:
    loss = model(x).float().square().mean()
    with amp.scale_loss(loss, optimizer, **options) as scaled:
        scaled.backward()
    return loss


def gradients(amp: ApexAmp, optimizer: Any) -> list[Tensor]:
    return [p.grad.clone() for p in amp.master_params(optimizer) if p.grad is not None]


@pytest.mark.parametrize(
    ("level", "formats"),
    [
        ("O0", {WIDE}),
        ("O1", {WIDE}),
        ("O2", {HALF, WIDE}),
        ("O3", {HALF}),
    ],
)
def test_formats_of_the_weights(amp: ApexAmp, level: str, formats: set[torch.dtype]) -> None:
    model, optimizer = prepared(amp, level)
    assert {p.dtype for p in model.parameters()} == formats
    assert model[1].weight.dtype is (HALF if level == "O3" else WIDE)
    stepped = {p.dtype for p in amp.master_params(optimizer)}
    assert stepped == ({HALF} if level == "O3" else {WIDE})


def test_o1_casts_functions_outside_of_the_model_too(amp: ApexAmp) -> None:
    prepared(amp, "O1")
    x = torch.ones(2, 2)
    assert (x @ x).dtype is HALF
    with amp.disable_casts():
        assert (x @ x).dtype is WIDE
    amp.leave()
    assert (x @ x).dtype is WIDE


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_a_cast_model_takes_and_returns_fp32(amp: ApexAmp, level: str) -> None:
    model, _ = prepared(amp, level)
    seen: list[torch.dtype] = []
    model[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
    assert model(torch.randn(3, 4)).dtype is WIDE
    assert seen == [HALF]


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("scale", [None, 128.0])
def test_gradients_behind_the_block_carry_no_scale(
    amp: ApexAmp, level: str, scale: float | None
) -> None:
    x = torch.randn(3, 4)
    plain = net()
    plain(x).square().mean().backward()
    expected = [p.grad for p in plain.parameters()]
    model, optimizer = prepared(amp, level, loss_scale=scale)
    backward(amp, model, optimizer, x)
    found = gradients(amp, optimizer)
    assert all(g.dtype is WIDE for g in found)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("delay", [False, True])
def test_gradients_of_micro_batches_add_up(amp: ApexAmp, level: str, delay: bool) -> None:
    x = torch.randn(3, 4)
    model, optimizer = prepared(amp, level)
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 256.0}})
    backward(amp, model, optimizer, x)
    once = gradients(amp, optimizer)
    optimizer.zero_grad()
    assert gradients(amp, optimizer) == []
    backward(amp, model, optimizer, x, delay_unscale=delay)
    backward(amp, model, optimizer, x)
    twice = [2 * g for g in once]
    torch.testing.assert_close(gradients(amp, optimizer), twice, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_an_overflow_skips_the_step_and_halves_the_scale(amp: ApexAmp, level: str) -> None:
    model, optimizer = prepared(amp, level)
    before = [p.clone() for p in model.parameters()]
    x = torch.full((3, 4), 6e4)
    x[0] = 0
    backward(amp, model, optimizer, x * torch.tensor([1.0, 2.0, 1.0, 1.0]))
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] == 2.0**15


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_a_finite_step_moves_the_weights_of_the_model(amp: ApexAmp, level: str) -> None:
    model, optimizer = prepared(amp, level)
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 1.0}})
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)  # wraps the step
    before = model[0].weight.clone()
    backward(amp, model, optimizer, torch.randn(3, 4))
    optimizer.step()
    schedule.step()
    assert not torch.equal(before, model[0].weight)
    assert "step" in vars(optimizer)


def test_masters_keep_what_fp16_does_not(amp: ApexAmp) -> None:
    """An update of 2⁻¹³ of the weight is lost in fp16 and kept in the master."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-13)
    amp.initialize(model, optimizer, opt_level="O2", loss_scale=1.0)
    for _ in range(8):
        optimizer.zero_grad()
        with amp.scale_loss(model(torch.ones(1, 1)).sum(), optimizer) as scaled:
            scaled.backward()
        optimizer.step()
    assert model.weight.item() == 1 - 2.0**-10
    assert model.weight.dtype is HALF


def test_an_unknown_level_is_refused(amp: ApexAmp) -> None:
    with pytest.raises(RuntimeError, match="O4"):
        prepared(amp, "O4")


def test_switched_off_it_does_nothing(amp: ApexAmp) -> None:
    model, optimizer = prepared(amp, "O2", enabled=False)
    assert {p.dtype for p in model.parameters()} == {WIDE}
    backward(amp, model, optimizer, torch.randn(3, 4))
    assert len(gradients(amp, optimizer)) == 6


# -- the import ----------------------------------------------------------------------------------

NEEDED = {
    "plain": "from apex import amp",
    "module": "import apex.amp",
    "in a function": "def f():\n    from apex import amp\n    return amp\namp = f()",
    "raised again": (
        "try:\n    from apex import amp\nexcept ImportError:\n    raise ImportError('get apex')"
    ),
    "in a handler": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    from apex import amp",
}
SPARED = {
    "guarded": "try:\n    from apex import amp\nexcept ImportError:\n    amp = None",
    "guarded by all": "try:\n    import apex\nexcept:\n    apex = None",
    "asked": "import importlib.util\nassert importlib.util.find_spec('apex') is None",
    "suppressed": (
        "import contextlib\nwith contextlib.suppress(ImportError):\n    from apex import amp"
    ),
}


def run(text: str, folder: Path) -> ApexImport:
    path = folder / "script.py"
    path.write_text(text)
    finder = ApexImport()
    finder.start()
    try:
        exec(compile(text, str(path), "exec"), {"__name__": "__main__"})
    finally:
        finder.stop()
    assert finder not in sys.meta_path
    assert not {"apex", "apex.amp"} & sys.modules.keys()
    return finder


@pytest.mark.parametrize("text", NEEDED.values(), ids=NEEDED)
def test_a_script_that_needs_it_has_it(text: str, tmp_path: Path) -> None:
    assert run(text, tmp_path).amp is not None


@pytest.mark.parametrize("text", SPARED.values(), ids=SPARED)
def test_a_script_that_goes_on_without_gets_none(text: str, tmp_path: Path) -> None:
    assert run(text, tmp_path).amp is None


@pytest.mark.parametrize("text", ["import apexes", "from apex import parallel"])
def test_what_there_is_not_stays_an_import_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(ImportError):
        run(text, tmp_path)
