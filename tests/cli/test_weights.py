"""``fp16doctor weights`` on small checkpoints of every kind."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from fp16doctor.cli.weights import weights
from fp16doctor.errors import CheckpointError, UsageError
from fp16doctor.record.checkpoint import read_checkpoint

VALUES = [
    1.0,
    65519.0,
    65520.0,
    2.0**-14,
    2.0**-15,
    2.0**-25,
    1e-9,
    0.0,
    float("nan"),
    float("inf"),
]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(weights, [str(a) for a in arguments], standalone_mode=False)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "model.pt"
    inner = {"a.weight": torch.tensor(VALUES), "step": torch.tensor(3)}
    torch.save({"model": inner, "ema": [torch.ones(2)]}, path)
    return path


def test_counts_are_those_of_the_cast(checkpoint: Path) -> None:
    found = read_checkpoint(checkpoint, ["fp16", "bf16"])
    first = found.tensors[0]
    assert [t.name for t in found.tensors] == ["model.a.weight", "ema.0"]
    assert (found.n_other, first.n_nonfinite, first.amax, first.amin_nonzero) == (
        1,
        2,
        65520.0,
        pytest.approx(1e-9),
    )
    fp16, bf16 = first.fits
    assert (fp16.n_overflow, fp16.n_subnormal, fp16.n_zero) == (1, 1, 2)
    assert bf16.harmless


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20)
)
def test_a_native_cast_gives_the_same_counts(values: list[float]) -> None:
    import tempfile

    tensor = torch.tensor(values, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "w.safetensors")
        save_file({"w": tensor}, path)
        (fit,) = read_checkpoint(path, ["fp16"]).tensors[0].fits
    cast = tensor.half()
    size = cast.abs()
    assert fit.n_overflow == int(torch.isinf(cast).sum())
    assert fit.n_zero == int(((cast == 0) & (tensor != 0)).sum())
    assert fit.n_subnormal == int(((size > 0) & (size < 2.0**-14)).sum())


def test_the_table_lists_tensors_with_a_loss_and_sums_up(checkpoint: Path) -> None:
    lines = run(checkpoint).output.splitlines()
    assert lines[0].split()[:4] == ["tensor", "shape", "stored", "amax"]
    assert [line.split()[0] for line in lines[1:2]] == ["model.a.weight"]
    assert "ema.0" not in "".join(lines)
    (fp16,) = [line for line in lines if line.startswith("fp16:")]
    assert "1 of 12" in fp16
    assert "above the maximum 65504" in fp16
    assert "bf16: every value is in the normal range" in lines
    assert "ema.0" in run("--all", checkpoint).output


def test_safetensors_is_known_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    save_file({"w": torch.full((3,), 1e30, dtype=torch.bfloat16)}, path)
    document = json.loads(run("--json", "--to", "fp16", path).output)
    (tensor,) = document["tensors"]
    assert (tensor["name"], tensor["dtype"], tensor["fits"][0]["n_overflow"]) == (
        "w",
        "bfloat16",
        3,
    )


def test_saturation_counts_as_overflow(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"w": torch.tensor([448.0, 1000.0])}, path)
    (fit,) = read_checkpoint(path, ["fp8_e4m3"]).tensors[0].fits
    assert fit.n_overflow == 1


def test_a_module_is_refused_and_its_code_not_run(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(torch.nn.Linear(2, 2), path)
    with pytest.raises(
        CheckpointError, match=r"refused: .*torch\.nn\.modules\.linear.*unsafe-checkpoint"
    ):
        read_checkpoint(path, ["fp16"])


@pytest.mark.parametrize(
    "content", [b"hello there", b"", b"PK\x03\x04broken", b"\x10\0\0\0\0\0\0\0{"]
)
def test_another_file_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=re.escape("[unreadable-checkpoint]")):
        read_checkpoint(path, ["fp16"])


def test_no_tensor_no_table(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"epoch": 3}, path)
    with pytest.raises(CheckpointError, match="empty-checkpoint"):
        read_checkpoint(path, ["fp16"])


def test_usage_errors(checkpoint: Path, tmp_path: Path) -> None:
    assert isinstance(run(tmp_path / "nowhere.pt").exception, UsageError)
    assert isinstance(run("--to", "fp17", checkpoint).exception, UsageError)
