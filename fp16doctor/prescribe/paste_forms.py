"""Other ways to write a cure: with fp16doctor, and in the words of Hugging Face, Lightning, FSDP.

A keep-list that is all modules, another format, fp32 master weights. ``keep_fp32`` does what was
tried; Hugging Face's list stores weights and no more, which the text says.

Must not know how a cure is found or tried.
"""

from __future__ import annotations

from dataclasses import replace

from fp16doctor.prescribe.remedies.storage import PARAMETERS
from fp16doctor.schema.prescription import Prescription, Remedy, RemedyKind

FP16DOCTOR, HUGGING_FACE, FSDP = "fp16doctor", "Hugging Face transformers", "FSDP"
ACCELERATE, LIGHTNING = "Hugging Face accelerate", "Lightning"

_KEEP = "import fp16doctor\n\nfp16doctor.keep_fp32(model, {}{})"
_FSDP_KEEP = """\
import fp16doctor
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

fp16doctor.keep_fp32(model, {0}{1})  # before fully_shard
for name in {0}:  # a group has one dtype
    policy = MixedPrecisionPolicy(param_dtype=torch.float32)
    fully_shard(model.get_submodule(name), mp_policy=policy)
# fully_shard of the layers and of the model: as before"""
_LEAVES = """\
# in the PreTrainedModel subclass; leaf names: every module of the model that is called so
_keep_in_fp32_modules = {0}  # for dtype=torch.float16
_keep_in_fp32_modules_strict = {0}  # for dtype=torch.bfloat16 too
# from_pretrained stores their weights in fp32 and no more: their inputs need .float() as well"""
_ARGUMENTS = "TrainingArguments(fp16=False, bf16={})"
_ACCELERATOR, _TRAINER = 'Accelerator(mixed_precision="{}")', 'Trainer(precision="{}")'
_MASTER_WEIGHTS = "TrainingArguments(bf16=True)  # and the model in torch.float32"
_POLICY = (
    "MixedPrecisionPolicy(param_dtype=torch.{}, reduce_dtype=torch.float32)  # of each fully_shard"
)


def with_forms(prescription: Prescription) -> Prescription:
    """Return a prescription whose remedy has its other forms."""
    remedy = prescription.remedy
    return replace(prescription, remedy=replace(remedy, forms=forms_of(remedy)))


def forms_of(remedy: Remedy) -> dict[str, str]:
    """Return who a form is for -> text to paste; it is empty where there is none but ``change``."""
    if remedy.kind is RemedyKind.FP32_KEEP:
        return _of_keep_list(remedy)
    if remedy.kind is RemedyKind.DTYPE and remedy.value in ("bf16", "fp32"):
        wide = remedy.value == "fp32"
        return {
            HUGGING_FACE: _ARGUMENTS.format(not wide),
            ACCELERATE: _ACCELERATOR.format("no" if wide else "bf16"),
            LIGHTNING: _TRAINER.format("32-true" if wide else "bf16-mixed"),
            FSDP: _POLICY.format("float32" if wide else "bfloat16"),
        }
    if remedy.kind is RemedyKind.STORAGE and remedy.title == PARAMETERS[0]:
        return {
            HUGGING_FACE: _MASTER_WEIGHTS,
            ACCELERATE: _ACCELERATOR.format("bf16"),
            LIGHTNING: _TRAINER.format("bf16-mixed"),
        }
    return {}


def _of_keep_list(remedy: Remedy) -> dict[str, str]:
    """Lines and ops have no name that another library could take."""
    targets = remedy.target
    back = f", outputs=torch.{remedy.value}" if remedy.value else ""
    lines = "".join(f"\n# {c}" for c in remedy.casts)
    names = [t.removeprefix("module:") for t in targets]
    if not names or not all(t.startswith("module:") and t != "module:" for t in targets):
        return {}
    forms = {FP16DOCTOR: _KEEP.format(names, back) + lines}
    leaves = list(dict.fromkeys(n.rpartition(".")[2] for n in names))
    if not any(leaf.isdigit() for leaf in leaves):  # a number in a list of modules is no name
        forms[HUGGING_FACE] = _LEAVES.format(leaves)
    if not any(c in n for n in names for c in "*?["):
        forms[FSDP] = _FSDP_KEEP.format(names, back) + lines
    return forms
