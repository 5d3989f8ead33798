"""A script for a GPU, scanned where there is none, as a user calls it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parents[1]
Done = subprocess.CompletedProcess[str]


def python(folder: Path, *command: str) -> Done:
    hidden = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        cwd=folder,
        env={**os.environ, **hidden},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def scan(folder: Path, script: Path, *arguments: str, options: tuple[str, ...] = ()) -> Done:
    options = ("--budget", "10", *options)
    return python(folder, "-m", "fp16doctor", "scan", *options, str(script), *arguments)


def saved(folder: Path, stem: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / f"fp16doctor-{stem}.json").read_text())
    return document


def slugs(document: dict[str, Any]) -> set[str]:
    return {warning["slug"] for warning in document["warnings"]}


def loud(document: dict[str, Any]) -> list[str]:
    return [f["code"] for f in document["findings"] if f["severity"] != "note"]


def test_an_overflow_is_found_where_it_is_and_a_cure_is_verified(tmp_path: Path) -> None:
    done = scan(tmp_path, SCRIPTS / "gpu_overflowing.py")
    assert (done.returncode, done.stdout) == (0, "trained True 1\n"), done.stderr
    document = saved(tmp_path, "gpu_overflowing")
    site = document["findings"][0]["site"]
    assert document["findings"][0]["code"] == "FD101"
    assert (site["op"], site["module_path"]) == ("aten.addmm.default", "down")
    assert site["source"]["text"].strip() == "wide = self.down(hidden)"
    chosen = document["recommendation"]["prescriptions"]
    assert chosen
    verdicts = {document["prescriptions"][i]["verification"]["verdict"] for i in chosen}
    assert verdicts == {"verified"}
    assert document["replay"]["fidelity"]["bit_equal"]
    run = document["run"]
    assert run["device"] == "cpu, simulating cuda"
    assert (run["autocast"], run["loss_scaling"]) == (["cuda float16"], "GradScaler")
    said = " ".join(done.stderr.split())
    assert said.count("never proof that it cannot overflow on a GPU") == 1
    (limit,) = (w["message"] for w in document["warnings"] if w["slug"] == "cuda-simulated")
    assert "the largest bound K · amax · amax of a partial sum" in limit


def test_without_simulation_it_ends_as_it_does_under_python(tmp_path: Path) -> None:
    script = SCRIPTS / "gpu_overflowing.py"
    plain = python(tmp_path, str(script))
    done = scan(tmp_path, script, options=("--device", "cpu"))
    assert done.returncode == plain.returncode == 1
    assert "Torch not compiled with CUDA enabled" in plain.stderr or "NVIDIA" in plain.stderr
    document = saved(tmp_path, "gpu_overflowing")
    assert document["run"]["device"] == "cpu"
    assert "cuda-simulated" not in slugs(document)


def test_the_lists_are_those_of_the_device_that_is_asked_for(tmp_path: Path) -> None:
    """On CUDA this script is sound; on the CPU its exp overflows."""
    done = scan(tmp_path, SCRIPTS / "gpu_or_cpu.py", "cuda", "7")
    document = saved(tmp_path, "gpu_or_cpu")
    assert done.returncode == 7  # its own
    assert document["run"]["device"] == "cpu, simulating cuda"
    assert loud(document) == []
    assert document["recommendation"]["status"] == "none_needed"
    assert scan(tmp_path, SCRIPTS / "gpu_or_cpu.py", "cpu").returncode == 0
    document = saved(tmp_path, "gpu_or_cpu")
    assert document["run"]["device"] == "cpu"
    assert "FD101" in loud(document)


def test_a_script_that_chooses_the_cpu_keeps_its_choice_and_its_bits(tmp_path: Path) -> None:
    plain = python(tmp_path, str(SCRIPTS / "gpu_or_cpu.py"))
    done = scan(tmp_path, SCRIPTS / "gpu_or_cpu.py")
    assert done.stdout == plain.stdout
    assert done.stdout.endswith("cpu\n")
    assert saved(tmp_path, "gpu_or_cpu")["run"]["device"] == "cpu"


def test_on_demand_the_device_is_there_from_the_start(tmp_path: Path) -> None:
    done = scan(tmp_path, SCRIPTS / "gpu_or_cpu.py", options=("--device", "cuda"))
    assert done.stdout.endswith("cuda\n")
    document = saved(tmp_path, "gpu_or_cpu")
    assert document["run"]["device"] == "cpu, simulating cuda"
    assert loud(document) == []


def test_an_exception_after_a_request_is_the_scripts_own(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nx = torch.ones(2, 3).cuda()\nprint(x.sum().item())\n"
        "raise ValueError('of the script')\n"
    )
    done = scan(tmp_path, script)
    assert (done.returncode, done.stdout) == (1, "6.0\n")
    assert done.stderr.rstrip().endswith("ValueError: of the script") or (
        "ValueError: of the script" in done.stderr
    )
    assert "fp16doctor/simulate" not in done.stderr


def test_a_request_that_no_file_spells_out_is_told(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\ntorch.ones(2).to('cu' + 'da')\n")
    assert scan(tmp_path, script).returncode == 1
    assert "cuda-not-simulated" in slugs(saved(tmp_path, "train"))
    assert scan(tmp_path, script, options=("--device", "cuda")).returncode == 0
