"""Scripts of Hugging Face's Trainer and accelerate, and of Lightning, as a user scans them.

They need `pip install '.[frameworks]'` and `pytest -m slow`; models are built from a
configuration, nothing is loaded.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # half a minute each, most of it imports

ROOT = Path(__file__).parents[2]
MODEL = """
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 16)
        with torch.no_grad():
            self.up.weight.mul_(factor)

    def forward(self, x):
        h = self.embedding(x)
        h = self.norm(h + self.down(F.relu(self.up(h)).square()))
        return self.head(h)


def loss_of(model, x):
    return F.cross_entropy(model(x).flatten(0, 1).float(), x.flatten())


def batches():
    return torch.randint(0, 16, (24, 4), generator=torch.Generator().manual_seed(0))
"""
ACCELERATE = """
import sys
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from model import Net, batches, loss_of

accelerator = Accelerator(mixed_precision=sys.argv[1])
torch.manual_seed(0)
model = Net(float(sys.argv[2]))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(batches(), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x in loader:
    with accelerator.accumulate(model):
        loss = loss_of(model, x)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    print(loss.item())
"""
LIGHTNING = """
import sys
import lightning as L
import torch
from torch.utils.data import DataLoader
from model import Net, batches, loss_of


class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net(float(sys.argv[2]))

    def training_step(self, batch, index):
        loss = loss_of(self.net, batch)
        print(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=float(sys.argv[3]))


L.seed_everything(0)
trainer = L.Trainer(
    max_epochs=1,
    accelerator="auto",
    precision=sys.argv[1],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Lit(), DataLoader(batches(), batch_size=4))
"""
TRAINER = """
import sys
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from transformers import set_seed
from model import batches

set_seed(0)
config = BertConfig(
    vocab_size=16, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=16, max_position_embeddings=8,
)
model = BertForSequenceClassification(config)
pure = sys.argv[1] == "pure"
if pure:
    model.bfloat16()
data = [{"input_ids": x, "labels": x[0] % 2} for x in batches()]
arguments = TrainingArguments(
    output_dir="out", per_device_train_batch_size=4, max_steps=5, logging_steps=1, report_to=[],
    use_cpu=True, save_strategy="no", bf16=not pure, learning_rate=1e-5 if pure else 1e-3,
    disable_tqdm=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=data)
trainer.train()
print([entry["loss"] for entry in trainer.state.log_history if "loss" in entry], file=sys.stderr)
"""
SCRIPTS = {"accelerate": ACCELERATE, "lightning": LIGHTNING, "transformers": TRAINER}


@dataclass(frozen=True)
class Done:
    """A scan that has ended."""

    status: int
    stdout: str
    document: dict[str, Any]

    @property
    def codes(self) -> list[str]:
        """Findings that demand something."""
        found = self.document["findings"]
        return [f["code"] for f in found if f["severity"] != "note"]

    @property
    def leading(self) -> dict[str, Any]:
        """The most important finding."""
        found: dict[str, Any] = self.document["findings"][0]
        return found

    @property
    def line(self) -> str:
        """File of the user's own line of the leading finding."""
        site = self.leading["site"]
        name: str = (site["caller"] or site["source"])["file"]
        return name


def python(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**environment, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def written(folder: Path, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install '.[frameworks]'")
    (folder / "model.py").write_text(MODEL)
    (folder / "train.py").write_text(SCRIPTS[package])


def scanned(folder: Path, *arguments: str, device: str = "auto") -> Done:
    options = ("--budget", "20", "--device", device)
    done = python(folder, "-m", "fp16doctor", "scan", *options, "train.py", *arguments)
    document = json.loads((folder / "fp16doctor-train.json").read_text())
    return Done(done.returncode, done.stdout, document)


SOUND = [
    ("accelerate", ("bf16", "1")),
    ("lightning", ("bf16-mixed", "1", "1e-3")),
    ("transformers", ("bf16",)),
]


@pytest.mark.parametrize(("package", "arguments"), SOUND, ids=[p for p, _ in SOUND])
def test_a_sound_script_runs_as_without_and_nothing_is_said(
    package: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    written(tmp_path, package)
    plain = python(tmp_path, "train.py", *arguments)
    done = scanned(tmp_path, *arguments)
    assert done.status == plain.returncode == 0, plain.stderr
    if package != "transformers":  # its Trainer prints how long it took
        assert done.stdout == plain.stdout
    assert done.codes == []
    assert done.document["replay"]["fidelity"]["bit_equal"]


FP16 = [("accelerate", ("fp16", "3e3"), "down"), ("lightning", ("16-mixed", "3e3", "1e-3"), "net.")]


@pytest.mark.parametrize(("package", "arguments", "name"), FP16, ids=[p for p, *_ in FP16])
def test_an_overflow_on_a_simulated_gpu_is_placed_in_the_users_model(
    package: str, arguments: tuple[str, ...], name: str, tmp_path: Path
) -> None:
    written(tmp_path, package)
    done = scanned(tmp_path, *arguments, device="cuda")
    assert done.codes[0] == "FD101"
    assert done.leading["site"]["module_path"].startswith(name)
    assert done.line == "model.py"
    assert done.document["recommendation"]["status"] == "prescribed"


TRUE_BF16 = [("lightning", ("bf16-true", "1", "1e-6")), ("transformers", ("pure",))]


@pytest.mark.parametrize(("package", "arguments"), TRUE_BF16, ids=[p for p, _ in TRUE_BF16])
def test_updates_lost_in_bf16_are_told_at_the_users_line(
    package: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    written(tmp_path, package)
    done = scanned(tmp_path, *arguments)
    assert done.codes == ["FD301"]
    assert done.line == "train.py"
    cures = {
        p["remedy"]["kind"]: p["verification"]["verdict"] for p in done.document["prescriptions"]
    }
    assert cures["storage"] == "verified"


@pytest.mark.parametrize("package", ["accelerate"])
def test_fp16_that_a_framework_has_on_a_gpu_only_is_told(package: str, tmp_path: Path) -> None:
    written(tmp_path, package)
    script = (tmp_path / "train.py").read_text().replace("sys.argv[1]", "'fp16'")
    (tmp_path / "train.py").write_text(script)
    done = scanned(tmp_path, "fp16", "1")
    assert "cuda-not-simulated" in [w["slug"] for w in done.document["warnings"]]
