"""Another format as a diff of the script's own lines, and the model by its own name."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType

import pytest
from torch import nn

from fp16doctor.pipeline.own_formats import with_own_formats
from fp16doctor.pipeline.own_lines import ScriptText
from fp16doctor.pipeline.own_model import with_own_model
from fp16doctor.prescribe.remedies.change_dtype import dtype_remedy
from fp16doctor.record.model_name import model_name
from fp16doctor.schema.prescription import Prescription, Remedy, RemedyKind, Verdict, Verification

TRIED = Verification(Verdict.VERIFIED)
TRAIN = 'import torch\n\nwith torch.autocast("cpu", dtype=torch.float16):\n    loss = net(x)\n'


def change(text: str, name: str) -> str:
    cure = Prescription(dtype_remedy(name, "cpu"), (0,), TRIED)
    (found,) = with_own_formats([cure], ScriptText("train.py", text))
    return found.remedy.change


def test_the_format_of_the_autocast_that_is_there_is_changed() -> None:
    assert '+with torch.autocast("cpu", dtype=torch.bfloat16):' in change(TRAIN, "bf16")
    off = '+with torch.autocast("cpu", dtype=torch.float16, enabled=False):'
    assert off in change(TRAIN, "fp32")


def test_an_autocast_without_a_format_is_given_one() -> None:
    text = TRAIN.replace(", dtype=torch.float16", "")
    assert '+with torch.autocast("cpu", dtype=torch.bfloat16):' in change(text, "bf16")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "model.to(args.dtype)\n",
        TRAIN.replace("torch.float16", "args.dtype"),
        "with torch.autocast(\n",
    ],
    ids=["no text", "no autocast", "a variable", "no Python"],
)
def test_where_the_text_leaves_a_doubt_the_code_stays_general(text: str) -> None:
    assert change(text, "bf16") == dtype_remedy("bf16", "cpu").change


def test_a_change_that_names_a_cast_as_well_is_not_cut_to_autocast() -> None:
    remedy = dtype_remedy("fp32", "cpu")
    more = replace(remedy, change=f"{remedy.change}\n# train.py:9: .float() in place of .half()")
    (found,) = with_own_formats([Prescription(more, (0,), TRIED)], ScriptText("train.py", TRAIN))
    assert found.remedy.change == more.change


def test_a_cast_of_the_script_is_changed_with_its_autocast() -> None:
    text = TRAIN.replace("net(x)", "net(x.half()).to(torch.half)")
    remedy = dtype_remedy("bf16", "cpu")
    said = "# and at train.py:4 `.bfloat16()` in place of `.half()`"
    more = replace(remedy, change=f"{remedy.change}\n{said}")
    (found,) = with_own_formats([Prescription(more, (0,), TRIED)], ScriptText("train.py", text))
    assert "+    loss = net(x.bfloat16()).to(torch.bfloat16)" in found.remedy.change
    assert '+with torch.autocast("cpu", dtype=torch.bfloat16):' in found.remedy.change


@pytest.mark.parametrize(
    ("old", "bf16", "fp32"),
    [
        ("model.half()", "model.bfloat16()", "model.float()"),
        ("y = x.to(d, torch.half)", "y = x.to(d, torch.bfloat16)", "y = x.to(d, torch.float32)"),
        ("y = f(x.half().half())", "y = f(x.bfloat16().bfloat16())", "y = f(x.float().float())"),
    ],
)
def test_without_autocast_every_cast_is_another(old: str, bf16: str, fp32: str) -> None:
    assert f"+{bf16}" in change(f"import torch\n{old}\n", "bf16")
    assert f"+{fp32}" in change(f"import torch\n{old}\n", "fp32")


def named(code: str, name: str = "net") -> str:
    remedy = Remedy(RemedyKind.FP32_KEEP, "keep it", change=code, forms={"FSDP": code})
    (found,) = with_own_model([Prescription(remedy, (0,), TRIED)], name)
    assert found.remedy.forms == {"FSDP": found.remedy.change}
    return found.remedy.change


def test_code_gets_the_name_of_the_model_and_its_comments_and_paths_do_not() -> None:
    assert named("keep_fp32(model, ['model.a'])  # a model") == (
        "keep_fp32(net, ['model.a'])  # a model"
    )
    assert named("m = model.get_submodule('x')") == "m = net.get_submodule('x')"
    assert named("self.model.float()") == "self.model.float()"
    assert named("- y = model(x)\n+ y = model(x).float()") == (
        "- y = model(x)\n+ y = model(x).float()"
    )
    assert named("keep_fp32(model)", "") == "keep_fp32(model)"


def test_the_name_is_that_of_the_one_model_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    net, frozen = nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)
    main = ModuleType("__main__")
    main.__dict__.update(net=net, teacher=frozen, _hidden=net, x=1)
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert model_name([net, frozen]) == "net"
    assert model_name([net, nn.Linear(1, 1)]) == ""
    assert model_name([nn.Linear(2, 2)]) == ""
    main.__dict__["same"] = net
    assert model_name([net]) == ""
