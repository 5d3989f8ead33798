"""A cure in the words of others: with fp16doctor, Hugging Face, FSDP."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import torch
from curing import Job
from deep import Deep, classified
from torch import nn

from fp16doctor.prescribe.paste import pasted
from fp16doctor.prescribe.paste_forms import (
    ACCELERATE,
    FP16DOCTOR,
    FSDP,
    HUGGING_FACE,
    LIGHTNING,
    forms_of,
)
from fp16doctor.prescribe.remedies.storage import PARAMETERS
from fp16doctor.schema.prescription import Remedy, RemedyKind


def keep(*targets: str) -> dict[str, str]:
    return forms_of(Remedy(RemedyKind.FP32_KEEP, "keep them in fp32", target=targets))


def test_the_short_form_does_what_plain_torch_does() -> None:
    """Both are run on the same model: the same loss, the same gradients."""
    targets = ("module:blocks.1", "module:head")

    def trained(code: str) -> list[Any]:
        def patched() -> nn.Module:
            model = Deep(1, 1e6, 1)
            exec(code, {"torch": torch, "model": model})
            return model

        result = Job(patched, classified).real()
        assert torch.isfinite(torch.tensor(result.losses)).all()
        return [result.losses, *(g.tolist() for g in result.gradients.values())]

    assert trained(keep(*targets)[FP16DOCTOR]) == trained(pasted(targets, "cpu"))


def test_hugging_face_takes_leaf_names_and_says_so() -> None:
    text = keep("module:encoder.0.wo", "module:encoder.1.wo", "module:head")[HUGGING_FACE]
    assert "_keep_in_fp32_modules = ['wo', 'head']" in text
    assert "leaf names: every module of the model that is called so" in text
    assert "their inputs need .float() as well" in text
    assert HUGGING_FACE not in keep("module:blocks.1")  # "1" would name one of every list


def test_fsdp_gets_a_group_for_each_kept_module() -> None:
    text = keep("module:a.b", "module:head")[FSDP]
    assert text.index("keep_fp32(model, ['a.b', 'head'])") < text.index("fully_shard(model.get")
    assert FSDP not in keep("module:blocks.*")  # no one module


@pytest.mark.parametrize(
    "targets", [(), ("line:train.py:3",), ("module:a", "op:aten.mul"), ("module:",)]
)
def test_lines_and_ops_have_no_other_form(targets: tuple[str, ...]) -> None:
    assert keep(*targets) == {}


@pytest.mark.parametrize(("value", "flag"), [("bf16", True), ("fp32", False)])
def test_another_format(value: str, flag: bool) -> None:
    forms = forms_of(Remedy(RemedyKind.DTYPE, f"train in {value}", value=value))
    assert forms[HUGGING_FACE] == f"TrainingArguments(fp16=False, bf16={flag})"
    dtype = "bfloat16" if flag else "float32"
    assert forms[FSDP].startswith(f"MixedPrecisionPolicy(param_dtype=torch.{dtype}, reduce_dtype=")


@pytest.mark.parametrize(
    ("value", "accelerate", "lightning"),
    [("bf16", "bf16", "bf16-mixed"), ("fp32", "no", "32-true")],
)
def test_frameworks_are_told_a_format_in_their_own_words(
    value: str, accelerate: str, lightning: str
) -> None:
    forms = forms_of(Remedy(RemedyKind.DTYPE, f"train in {value}", value=value))
    assert forms[ACCELERATE] == f'Accelerator(mixed_precision="{accelerate}")'
    assert forms[LIGHTNING] == f'Trainer(precision="{lightning}")'


def test_master_weights_are_told_to_frameworks() -> None:
    title, change = PARAMETERS
    forms = forms_of(Remedy(RemedyKind.STORAGE, title, change=change, value="fp32"))
    assert forms[LIGHTNING] == 'Trainer(precision="bf16-mixed")'
    assert forms[HUGGING_FACE].startswith("TrainingArguments(bf16=True)")
    assert forms_of(Remedy(RemedyKind.STORAGE, "keep the tensor in fp32", value="fp32")) == {}


def test_a_loss_scale_has_none() -> None:
    assert forms_of(Remedy(RemedyKind.LOSS_SCALE, "start at 1024", value={})) == {}


def test_every_form_can_be_pasted() -> None:
    remedies = [Remedy(RemedyKind.DTYPE, "", value=v) for v in ("bf16", "fp32")]
    texts = [t for r in remedies for t in forms_of(r).values()]
    texts += keep("module:a.b", "module:c").values()
    assert len(texts) == 11
    for text in texts:
        ast.parse(text)
