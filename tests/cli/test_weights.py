"""``fp16doctor weights`` on small checkpoints of every kind."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import numpy as np
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


def names(path: Path) -> list[str]:
    return [t.name for t in read_checkpoint(path, ["fp16"]).tensors]


def test_a_pickled_module_is_read_by_the_names_of_its_state_dict(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    torch.save({"net": net, "epoch": 1}, tmp_path / "model.pt")
    wanted = [f"net.{k}" for k, v in net.state_dict().items() if v.is_floating_point()]
    assert names(tmp_path / "model.pt") == wanted


class Evil:
    """Its pickle asks for a call."""

    def __init__(self, module: str, name: str, argument: str) -> None:
        self.call = getattr(__import__(module), name), (argument,)

    def __reduce__(self) -> object:
        return self.call


def test_no_code_of_a_pickle_runs(tmp_path: Path) -> None:
    path, trace = tmp_path / "model.pt", tmp_path / "ran"
    torch.save(
        {"w": torch.ones(2), "x": Evil("builtins", "eval", f"open({str(trace)!r}, 'w')")}, path
    )
    assert names(path) == ["w"]
    assert not trace.exists()


def test_what_not_even_a_stand_in_may_answer_is_refused(tmp_path: Path) -> None:
    path, trace = tmp_path / "model.pt", tmp_path / "ran"
    torch.save({"w": torch.ones(2), "x": Evil("os", "system", f"touch {trace}")}, path)
    with pytest.raises(CheckpointError, match=r"refused: .*unsafe-checkpoint"):
        read_checkpoint(path, ["fp16"])
    assert not trace.exists()


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_torchscript_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), path)
    with pytest.raises(CheckpointError, match=r"TorchScript.*unsafe-checkpoint"):
        read_checkpoint(path, ["fp16"])


def test_plain_objects_beside_the_tensors_cost_nothing(tmp_path: Path) -> None:
    state = {
        "args": argparse.Namespace(lr=0.1),
        "best": np.float64(0.5),
        "history": np.ones(3),
        "w": torch.ones(2),
    }
    torch.save(state, tmp_path / "model.pt")
    assert names(tmp_path / "model.pt") == ["w"]


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_are_measured_by_their_values(tmp_path: Path) -> None:
    sparse = torch.sparse_coo_tensor([[0, 1]], torch.tensor([1e6, 1.0]), (9,))
    torch.save({"s": sparse, "r": torch.eye(2).to_sparse_csr()}, tmp_path / "model.pt")
    found = read_checkpoint(tmp_path / "model.pt", ["fp16"])
    assert [(t.name, t.numel, t.fits[0].n_overflow) for t in found.tensors] == [
        ("s.values", 2, 1),
        ("r.values", 2, 0),
    ]


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(2, dtype=torch.complex64), torch.empty(2, device="meta"), torch.ones(2).bool()],
    ids=["complex", "meta", "bool"],
)
def test_tensors_of_other_kinds_are_counted(tmp_path: Path, tensor: torch.Tensor) -> None:
    torch.save({"other": tensor}, tmp_path / "model.pt")
    found = read_checkpoint(tmp_path / "model.pt", ["fp16"])
    assert (found.tensors, found.n_other) == ((), 1)
    assert "fp16: there is no floating-point value to cast" in run(tmp_path / "model.pt").output


def sharded(folder: Path) -> Path:
    parts = {"l.0": "model-00001-of-00002.safetensors", "l.1": "model-00002-of-00002.safetensors"}
    for name, part in parts.items():
        save_file({name: torch.full((2,), 1e6)}, folder / part)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": parts}))
    return index


def test_an_index_and_its_folder_are_read_part_by_part(tmp_path: Path) -> None:
    index = sharded(tmp_path)
    assert names(index) == names(tmp_path) == ["l.0", "l.1"]
    assert "2 floating-point tensors" in run(tmp_path).output


@pytest.mark.parametrize("part", ["gone.safetensors", "../model.safetensors", "/etc/hostname"])
def test_an_index_leads_to_no_other_folder(tmp_path: Path, part: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": part}}))
    with pytest.raises(CheckpointError, match="not there beside it"):
        read_checkpoint(index, ["fp16"])


@pytest.mark.parametrize("text", ["{}", "[]", '{"weight_map": 3}', "no json"])
def test_an_index_without_a_map_is_told(tmp_path: Path, text: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(text)
    with pytest.raises(CheckpointError, match="unreadable-checkpoint"):
        read_checkpoint(index, ["fp16"])


def test_a_folder_without_weights_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is a folder that holds none of .*unreadable"):
        read_checkpoint(tmp_path, ["fp16"])


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
