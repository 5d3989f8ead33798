"""A bundle written by one process replays bit-equal in another."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bundling import FIVE, bundles_of, one_linear
from torch import nn

from fp16doctor.errors import BundleError
from fp16doctor.record.bundle import read_bundle, write_bundle
from fp16doctor.record.bundle.devices import on_this_machine, placed
from fp16doctor.replay.outcome import repeat
from fp16doctor.schema.bundle import Bundle
from fp16doctor.schema.tape import OpCall, TensorRef, refs_in

ROOT = Path(__file__).parents[3]


def test_five_trainings_replay_bit_equal_in_another_process(tmp_path: Path) -> None:
    expected = []
    for training in FIVE:
        torch.manual_seed(3)
        bundle = bundles_of(training)[1]
        write_bundle(tmp_path / f"{training.__name__}.fp16doctor", bundle)
        loss = repeat(bundle.tape, bundle.outcome).loss
        expected.append(f"{training.__name__} {len(bundle.outcome)} 0 {loss!r}")
        assert len(bundle.outcome) > 5
    paths = [tmp_path / f"{t.__name__}.fp16doctor" for t in FIVE]
    helpers = [ROOT, Path(__file__).parent, Path(__file__).parents[1], ROOT / "tests" / "replay"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, helpers))}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("bundling.py")), *map(str, paths)],
        env=environment, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == expected, done.stderr


def test_an_outcome_that_is_not_the_steps_own_is_told() -> None:
    (bundle,) = bundles_of(one_linear)
    number, weight = next((n, x) for n, x in bundle.tape.leaves.items() if x.name == "weight")
    other = replace(weight, data=weight.data.clone().fill_(1))
    tape = replace(bundle.tape, leaves={**bundle.tape.leaves, number: other})
    seen = repeat(tape, bundle.outcome)
    assert seen.differing > 0
    assert seen.first is not None
    assert seen.first.op == "aten.sum.default"  # the first that is still there at the end


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    (bundle,) = bundles_of(one_linear)
    path = tmp_path / "a.fp16doctor"
    size = write_bundle(path, bundle)
    again = read_bundle(path)
    assert size == path.stat().st_size
    assert list(tmp_path.iterdir()) == [path]
    assert again.tape.listing() == bundle.tape.listing()
    plain = [replace(c, rng=None) for c in bundle.tape.ops]
    assert [replace(c, rng=None) for c in again.tape.ops] == plain
    assert (again.tape.losses, again.tape.gradients) == (bundle.tape.losses, bundle.tape.gradients)
    assert again.origin == bundle.origin
    assert again.outcome == bundle.outcome
    names = [(n, x.name, x.is_parameter, x.is_buffer) for n, x in bundle.tape.leaves.items()]
    assert [(n, x.name, x.is_parameter, x.is_buffer) for n, x in again.tape.leaves.items()] == names


def test_tied_weights_keep_their_names(tmp_path: Path) -> None:
    def tied() -> None:
        model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 4, bias=False))
        model[1].weight = model[0].weight
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        model(torch.arange(4)).sum().backward()
        optimizer.step()

    (bundle,) = bundles_of(tied)
    path = tmp_path / "a.fp16doctor"
    write_bundle(path, bundle)
    for tape in (bundle.tape, read_bundle(path).tape):
        names = [(x.name, x.also) for x in tape.leaves.values() if x.is_parameter]
        assert names == [("0.weight", ("1.weight",))]


def test_equal_random_states_are_written_once(tmp_path: Path) -> None:
    def run() -> None:
        w = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        x = torch.rand(3, generator=torch.Generator().manual_seed(1))
        y = torch.rand(3, generator=torch.Generator().manual_seed(1))
        (w * x * y).sum().backward()
        optimizer.step()

    (bundle,) = bundles_of(run)
    size = write_bundle(tmp_path / "a", bundle)
    assert sum(c.rng is not None for c in bundle.tape.ops) == 2
    state = torch.get_rng_state().numel()
    assert state < size < 2 * state
    again = read_bundle(tmp_path / "a")
    assert repeat(again.tape, again.outcome).differing == 0


def test_a_step_of_a_gpu_is_moved_to_the_cpu() -> None:
    def on_gpu(call: OpCall) -> OpCall:
        def ref(value: TensorRef) -> TensorRef:
            return replace(value, device="cuda:0")

        args = tuple(ref(a) if isinstance(a, TensorRef) else a for a in call.args)
        kwargs = {k: torch.device("cuda:0") if k == "device" else v for k, v in call.kwargs.items()}
        outputs = ref(call.outputs) if isinstance(call.outputs, TensorRef) else call.outputs
        rng = None if call.rng is None else torch.zeros(16, dtype=torch.uint8)
        return replace(call, args=args, kwargs=kwargs, outputs=outputs, rng=rng)

    def run() -> None:
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        model(torch.rand(2, 3)).sum().backward()
        optimizer.step()

    (bundle,) = bundles_of(run)
    tape = replace(bundle.tape, ops=tuple(map(on_gpu, bundle.tape.ops)))
    moved = placed(Bundle(tape, bundle.origin, bundle.outcome), {"cuda:0": "cpu"})
    assert moved.moved == ("cuda:0",)
    found = [r.device for c in moved.tape.ops for r in refs_in((c.args, c.outputs))]
    assert set(found) == {"cpu"}
    first, second = (repeat(moved.tape, {}) for _ in range(2))
    assert first.loss == second.loss is not None
    assert on_this_machine(bundle) is bundle


def test_bytes_go_where_the_references_are() -> None:
    (bundle,) = bundles_of(one_linear)
    moved = placed(bundle, {"cpu": "meta"})
    assert {leaf.data.device.type for leaf in moved.tape.leaves.values()} == {"meta"}
    devices = {v for c in moved.tape.ops for k, v in c.kwargs.items() if k == "device"}
    assert devices <= {torch.device("meta"), None}
    found = {r.device for c in moved.tape.ops for r in refs_in((c.args, c.outputs))}
    assert found == {"meta", ""}  # of what an op makes the tape does not say where it is
    assert moved.moved == ()


def test_a_tape_that_cannot_be_replayed_elsewhere_is_not_written(tmp_path: Path) -> None:
    (bundle,) = bundles_of(one_linear)
    ops = (replace(bundle.tape.ops[0], op="mylib.fast_norm.default"), *bundle.tape.ops[1:])
    with pytest.raises(BundleError, match=r"mylib\.fast_norm.*\[unfit-for-bundle\]"):
        write_bundle(tmp_path / "a", replace(bundle, tape=replace(bundle.tape, ops=ops)))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    (bundle,) = bundles_of(one_linear)
    with pytest.raises(BundleError, match=r"\[bundle-not-written\]"):
        write_bundle(tmp_path / "none" / "a", bundle)


def test_the_device_that_was_simulated_is_kept(tmp_path: Path) -> None:
    bundle = bundles_of(one_linear)[0]
    for device in ("cuda", ""):
        kept = replace(bundle, tape=replace(bundle.tape, device=device))
        write_bundle(tmp_path / "step.fp16doctor", kept)
        assert read_bundle(tmp_path / "step.fp16doctor").tape.device == device
