"""Ten models of different kinds: training under ``keep_fp32`` is what the trial said it would be.

Bit-equal, but where a value's format cannot be told from the tape (``NEARLY``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
import torch
from curing import AUTOCAST, PURE, Job, Result, far, kept
from ten_models import SAMPLES
from torch import Tensor

from fp16doctor.apply.keep_fp32 import keep_fp32
from fp16doctor.replay.trial import run_trial
from fp16doctor.schema.policy import AS_RUN

# In units of the format's eps, relative to the largest gradient.
NEARLY = {
    # GRU makes its initial state in the format of its input: fp32 once the LSTM is kept.
    ("recurrent", AUTOCAST, ("lstm",)): 4,
    # One value goes into kept and other ops of one line: in which format the parts of its
    # gradient are added up is decided by autograd, and no tape tells.
    ("experts", AUTOCAST, ("router",)): 1,
    ("experts", AUTOCAST, ("experts.1",)): 1,
    ("experts", PURE, ("router",)): 1,
    ("experts", PURE, ("experts.1",)): 1,
    ("structured", AUTOCAST, ("heads",)): 1,
    ("residual", AUTOCAST, ("blocks.1.norm",)): 1,
    ("residual", PURE, ("blocks.1.norm",)): 1,
}
TOO_LARGE = 2.0**18  # a loss whose gradients overflow in fp16
CURED = {"mlp": ("inp", "out")}  # every gradient that overflowed belongs to it


class Applied(Job):
    """Trains under ``keep_fp32`` itself."""

    def real(self, keep: Iterable[str] = ()) -> Result:
        torch.manual_seed(0)
        model = self.model()
        if self.form == PURE:
            model = model.to(self.dtype)
        return self._train(keep_fp32(model, keep) if keep else model)


def cases() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for name, sample in SAMPLES.items():
        for form in (AUTOCAST, PURE):
            for keep in sample.keeps:
                yield name, form, keep


def nonfinite(gradients: dict[str, Tensor]) -> int:
    return sum(int((~g.isfinite()).sum()) for g in gradients.values())


def finite(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same without inf and NaN, flat: the tape's widest view may have another shape."""
    return {n: g.flatten().nan_to_num(0, 0, 0) for n, g in gradients.items()}


def job_of(name: str, form: str, factor: float) -> Applied:
    sample = SAMPLES[name]
    return Applied(sample.model, sample.loss(factor), form, sample.dtype)


def test_there_are_ten() -> None:
    assert len(SAMPLES) == 10
    assert {c[:2] for c in cases()} == {(n, f) for n in SAMPLES for f in (AUTOCAST, PURE)}


@pytest.mark.parametrize("factor", [1.0, TOO_LARGE])
@pytest.mark.parametrize(("name", "form", "keep"), list(cases()))
def test_training_gives_what_the_trial_gave(
    name: str, form: str, keep: tuple[str, ...], factor: float
) -> None:
    job = job_of(name, form, factor)
    (tape,), real = job.tapes(), job.real(keep)
    trial = run_trial(tape, kept(*keep))
    assert trial.nonfinite["gradients"] == nonfinite(real.gradients)
    bound = NEARLY.get((name, form, keep), 0) * torch.finfo(job.dtype).eps
    assert far(finite(trial.gradients), finite(real.gradients)) <= bound
    assert trial.loss is not None
    assert trial.loss == (pytest.approx(real.losses[0], rel=1e-2) if bound else real.losses[0])


@pytest.mark.parametrize("form", [AUTOCAST, PURE])
@pytest.mark.parametrize("name", SAMPLES)
def test_the_trial_as_run_has_no_noise(name: str, form: str) -> None:
    """The measure: without a keep-list the replay is the run, bit by bit."""
    job = job_of(name, form, 1.0)
    (tape,), real = job.tapes(), job.real()
    trial = run_trial(tape, AS_RUN)
    assert far(finite(trial.gradients), finite(real.gradients)) == 0
    assert trial.loss == real.losses[0]


@pytest.mark.parametrize("form", [AUTOCAST, PURE])
def test_the_large_loss_does_overflow_and_a_list_can_cure_it(form: str) -> None:
    """So that equal counts are not all 0, and not all of the run without a list."""
    job = job_of("mlp", form, TOO_LARGE)
    assert nonfinite(job.real().gradients) > 0
    assert nonfinite(job.real(CURED["mlp"]).gradients) == 0


def test_a_kept_module_shares_its_weights_in_fp32() -> None:
    """A parameter has one format: the embedding that is tied to a kept head is kept as well."""
    job = job_of("tied", PURE, 1.0)
    model = job.real(("head",)).model
    assert model.head.weight is model.tokens.weight
    assert {n: p.dtype for n, p in model.named_parameters() if p.dtype is torch.float32} == {
        "tokens.weight": torch.float32
    }
    assert model.tokens(torch.zeros(1, dtype=torch.long)).dtype is torch.float32
