"""A script that ends in a call which fp16 refuses: its bundle holds the way there, and the call."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from refusing import Masking, scanned, train
from torch import Tensor

from fp16doctor.errors import BundleError, ReplayError
from fp16doctor.pipeline.repro import excerpt_of
from fp16doctor.pipeline.what_if import what_if
from fp16doctor.record.bundle import read_bundle, write_bundle
from fp16doctor.report.repro_script import render_repro
from fp16doctor.schema.bundle import Bundle
from fp16doctor.schema.excerpt import Shows
from fp16doctor.schema.what_if import Question


def filled(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask, -1e9)


def filled_in_place(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill_(mask, -1e9)


def added(scores: Tensor, mask: Tensor) -> Tensor:
    return scores + torch.full((4, 4), 1e6, dtype=scores.dtype)


def of_other_sizes(scores: Tensor, mask: Tensor) -> Tensor:
    return scores + torch.ones(3)


def bundle_of(masking: Masking) -> Bundle:
    session, diagnosis = scanned(lambda: train(masking))
    return session.bundle(diagnosis)


@pytest.mark.parametrize(
    ("masking", "op"),
    [(filled, "masked_fill"), (filled_in_place, "masked_fill_"), (added, "full")],
)
def test_the_call_is_shown_with_torch_alone(masking: Masking, op: str, tmp_path: Path) -> None:
    write_bundle(tmp_path / "a", bundle_of(masking))
    bundle = read_bundle(tmp_path / "a")
    assert bundle.tape.refused
    assert bundle.origin.finding is not None
    found = excerpt_of(bundle)
    assert (found.shows, found.lines[-1].op.split(".")[1]) == (Shows.REFUSED, op)
    assert all(t.numel() == 1 for t in found.given.values())
    script = tmp_path / "short.py"
    script.write_text(render_repro(found, bundle.origin, None), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-I", str(script)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("raises in float16, runs in float32: value cannot be converted")
    script.write_text(script.read_text(encoding="utf-8").replace("float16", "bfloat16"))
    again = subprocess.run([sys.executable, str(script)], capture_output=True, text=True,
                           timeout=60, check=False)  # fmt: skip
    assert "AssertionError: the fault does not show here" in again.stderr


def test_a_call_that_no_format_takes_shows_no_fault_of_a_format() -> None:
    with pytest.raises(BundleError, match=r"tried aten\.add.*\[no-fault-shown\]"):
        excerpt_of(bundle_of(of_other_sizes))


def test_it_has_no_end_that_a_replay_could_be_held_against() -> None:
    with pytest.raises(ReplayError, match=r"step 0 ended in a call that raised.*\[step-raised\]"):
        what_if(bundle_of(filled), Question("bf16", (), None, "fp32"))


def test_a_tape_without_ops_cannot_have_ended_in_one(tmp_path: Path) -> None:
    bundle = bundle_of(filled)
    empty = replace(bundle, tape=replace(bundle.tape, ops=(), snapshots={}, leaves={}))
    with pytest.raises(BundleError, match="its last op raised, and it has none"):
        write_bundle(tmp_path / "a", empty)
