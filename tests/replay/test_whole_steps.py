"""Whole training steps are replayed to the bit, and their reference stays close to them."""

from __future__ import annotations

import pytest
import torch
from replaying import sink, watch
from torch import nn
from whole_steps import STEPS, TRAININGS

from fp16doctor.schema.trace import EventKind


@pytest.mark.parametrize("name", TRAININGS)
def test_as_run_is_bit_equal_and_the_reference_agrees(name: str) -> None:
    seen = watch(TRAININGS[name])
    assert len(seen.trained) == (STEPS if name != "hand_written_update" else 1)  # no optimizer
    for trace in seen.trained:
        assert trace.fidelity.bit_equal, trace.fidelity
        assert trace.fidelity.compared > 0
        assert not trace.opaque
        assert {e.kind for e in trace.events} <= {EventKind.INTENDED}
        assert {reason for _, reason in trace.pinned} <= {
            "random",
            "data-dependent shape: indices as in the run",
        }
        for state in trace.sinks:
            assert state.error is None or state.error < 0.1, state


def sparse_embedding() -> object:
    embed = nn.Embedding(12, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(list(embed.parameters()), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        embed(torch.randint(0, 12, (3,))).pow(2).sum().backward()
        optimizer.step()
    return embed, optimizer


def test_ops_on_sparse_tensors_take_their_results_from_the_recording() -> None:
    seen = watch(sparse_embedding)
    assert len(seen.trained) == STEPS
    for trace in seen.trained:
        assert trace.fidelity.bit_equal, trace.fidelity
        assert trace.opaque
        assert not trace.events


def test_without_reference_only_the_fidelity_is_measured() -> None:
    seen = watch(TRAININGS["accumulation"], with_reference=False)
    for trace in seen.trained:
        assert trace.reference == "none"
        assert trace.fidelity.bit_equal
        assert not trace.sinks
        assert trace.loss is not None


def test_gradients_of_a_scaled_loss_are_compared_with_the_scale_in() -> None:
    seen = watch(TRAININGS["transformer_fp16_scaler"])
    (first, *_) = seen.trained
    assert first.loss is not None
    assert first.loss / 128 == pytest.approx(3.0, rel=0.3)
    gradients = sink(first, "gradients")
    applied = sink(first, "applied gradients")
    assert gradients.amax_reference is not None
    assert applied.amax_reference is not None
    assert gradients.amax_reference > 10 * applied.amax_reference
