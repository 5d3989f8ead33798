"""A recommended cure as a patch: each kind on a small script, against the script edited by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from apply_running import LOOP, MODEL, FileLines, line_of, ran, same
from torch.utils._python_dispatch import TorchDispatchMode

from fp16doctor.apply.script_patch import ScriptPatch, patch_for
from fp16doctor.errors import ApplyError
from fp16doctor.schema.diagnosis import Diagnosis, ReplaySummary
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.location import OpSite, Phase, SourceLine
from fp16doctor.schema.prescription import (
    Prescription,
    Recommendation,
    RecommendationStatus,
    Remedy,
    RemedyKind,
    Verdict,
    Verification,
)
from fp16doctor.schema.recording import Outcome, OutcomeKind, RunInfo


def patch(
    remedy: Remedy, *, code: str = "FD101", line: int = 0, scaling: str = "none", half: str = ""
) -> ScriptPatch:
    """The patch for one recommended remedy that treats one finding."""
    source = SourceLine("train.py", line, "<module>")
    site = OpSite(0, Phase.OPTIMIZER, "aten.add_.Tensor", 0, source=source)
    run = RunInfo(
        "train.py", (), Outcome(OutcomeKind.FINISHED), "0", "2", "3", "cpu", "", 1.0,
        loss_scaling=scaling, parameters_by_dtype=((half, 9),) if half else (),
    )  # fmt: skip
    diagnosis = Diagnosis(
        run, (), (), (),
        (Finding(code, "name", Severity.ERROR, Fault.OVERFLOW, "what", "cause", site),),
        (Prescription(remedy, (0,), Verification(Verdict.VERIFIED)),),
        Recommendation(RecommendationStatus.PRESCRIBED, remedy.title, (0,)),
        ReplaySummary((), None),
    )  # fmt: skip
    return patch_for(diagnosis, FileLines("train.py"))


def patched(text: str, found: ScriptPatch) -> dict[str, Any]:
    return ran(text, found.outer(), found.inner())


AUTOCAST = (
    MODEL
    + """
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
def step_loss(net, x, y):
    with torch.autocast("cpu", dtype=torch.float16):
        return F.cross_entropy(net(x), y)
"""
    + LOOP.replace("loss.backward()", "scaler.scale(loss).backward()").replace(
        "opt.step()", "scaler.step(opt); scaler.update()"
    )
)
STORED = (
    MODEL
    + """
net = Net().to(torch.bfloat16)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def step_loss(net, x, y):
    return F.cross_entropy(net(x.to(torch.bfloat16)).float(), y)
"""
    + LOOP
)


def test_a_module_of_a_keep_list() -> None:
    kept = patch(Remedy(RemedyKind.FP32_KEEP, "keep", target=("module:mid",)))
    edited = AUTOCAST.replace(
        "net = Net()", "from fp16doctor import keep_fp32\nnet = keep_fp32(Net(), ['mid'])"
    )
    assert same(patched(AUTOCAST, kept), ran(edited))
    assert kept.missed() == ()


def test_a_module_of_a_keep_list_whose_results_are_cast_back() -> None:
    remedy = Remedy(RemedyKind.FP32_KEEP, "keep", target=("module:mid",), value="bfloat16")
    kept = patch(remedy, half="bfloat16")
    edited = STORED.replace(
        "net = Net().to(torch.bfloat16)",
        "from fp16doctor import keep_fp32\n"
        "net = keep_fp32(Net().to(torch.bfloat16), ['mid'], outputs=torch.bfloat16)",
    )
    assert edited != STORED
    assert same(patched(STORED, kept), ran(edited))
    assert kept.missed() == ()


@pytest.mark.parametrize("kind", ["line", "op"])
def test_a_place_whose_results_are_cast_back(kind: str) -> None:
    """The scores of the line are cast once; a bare product takes them in bf16."""
    text = STORED.replace("torch.tanh(self.inp(x))", "self.grown(self.inp(x))").replace(
        "    def forward(self, x):",
        """    def grown(self, h):
        a = torch.exp(h)
        return a @ self.mid.weight + a

    def forward(self, x):""",
    )
    target = "op:aten.exp"
    if kind == "line":
        target = f"line:train.py:{line_of(text, 'a = torch.exp(h)')}"
    remedy = Remedy(RemedyKind.FP32_KEEP, "keep", target=(target,), value="bfloat16")
    kept = patch(remedy, half="bfloat16")
    edited = text.replace("torch.exp(h)", "torch.exp((h).float()).to(torch.bfloat16)")
    got = patched(text, kept)
    assert kept.missed() == ()
    if kind == "line":  # below autograd exp keeps the rounded result for its backward
        assert same(got, ran(edited))
    assert got["losses"][0] == ran(edited)["losses"][0]


def test_a_place_that_the_run_never_came_by_is_named() -> None:
    kept = patch(Remedy(RemedyKind.FP32_KEEP, "keep", target=("module:gone", "line:train.py:999")))
    assert same(patched(AUTOCAST, kept), ran(AUTOCAST))
    assert kept.missed() == ("module:gone", "line:train.py:999")


def test_another_format_with_and_without_a_loss_scale() -> None:
    edited = AUTOCAST.replace("float16", "bfloat16")
    assert same(
        patched(AUTOCAST, patch(Remedy(RemedyKind.DTYPE, "train in bf16", value="bf16"))),
        ran(edited),
    )
    without = Remedy(RemedyKind.DTYPE, "train in bf16 without a loss scale", value="bf16")
    got = patched(AUTOCAST, patch(without))
    assert not got["scaler"].is_enabled()
    assert same(got, ran(edited.replace("init_scale=16.0", "enabled=False")))


def test_another_format_of_a_model_that_is_stored_in_16_bits() -> None:
    half = STORED.replace("bfloat16", "float16").replace("Net().to(torch.float16)", "Net().half()")
    assert same(
        patched(half, patch(Remedy(RemedyKind.DTYPE, "train in bf16", value="bf16"))), ran(STORED)
    )


def test_the_loss_scale_of_a_scaler() -> None:
    remedy = Remedy(RemedyKind.LOSS_SCALE, "scale", value={"low": 1, "recommended": 8, "high": 9})
    assert same(
        patched(AUTOCAST, patch(remedy, scaling="GradScaler")),
        ran(AUTOCAST.replace("16.0", "8.0")),
    )


def test_the_loss_scale_of_a_script_that_has_its_own_or_none() -> None:
    remedy = Remedy(RemedyKind.LOSS_SCALE, "scale", value={"low": 1, "recommended": 64, "high": 99})
    assert patch(remedy, scaling="by hand, 1024").loss_factor == 1 / 16
    assert patch(remedy).loss_factor == 64
    with pytest.raises(ApplyError, match="several"):
        patch(remedy, scaling="by hand, 2; by hand, 4")


def test_master_weights_and_autocast_around_the_model() -> None:
    remedy = Remedy(RemedyKind.STORAGE, "keep the parameters in fp32", value="fp32")
    edited = STORED.replace("Net().to(torch.bfloat16)", "Net()").replace(
        "net(x.to(torch.bfloat16)).float()", "forward(x).float()"
    )
    edited = edited.replace(
        "def step_loss",
        """def forward(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return net(x)

def step_loss""",
    )
    got = patched(STORED, patch(remedy, code="FD301", half="bfloat16"))
    assert same(got, ran(edited))
    assert not torch.is_autocast_enabled("cpu")


def test_the_tensor_that_a_line_updates() -> None:
    text = """
    import torch
    average = torch.zeros(3, dtype=torch.bfloat16)
    for step in range(2000):
        average.mul_(0.999).add_(torch.ones(3).to(average.dtype), alpha=0.001)
    """
    remedy = Remedy(RemedyKind.STORAGE, "keep the tensor in fp32", value="fp32")
    found = patch(remedy, code="FD302", line=line_of(text, "mul_"))
    edited = ran(text.replace("bfloat16", "float32"))["average"]
    assert torch.equal(patched(text, found)["average"], edited)
    assert found.missed() == ()


def test_initial_weights_are_set_before_the_first_forward() -> None:
    code = "with torch.no_grad():\n    model.get_submodule('mid').weight.zero_()"
    remedy = Remedy(RemedyKind.FIXUP_INIT, "init", change=code, target=("module:mid*",))
    edited = AUTOCAST.replace("net = Net()", "net = Net(); nn.init.zeros_(net.mid.weight)")
    assert same(patched(AUTOCAST, patch(remedy)), ran(edited))


def test_a_change_of_code_is_refused() -> None:
    with pytest.raises(ApplyError, match="code-fix"):
        patch(Remedy(RemedyKind.CODE_FIX, "divide"))


@pytest.mark.parametrize("ending", ["raise ValueError('x')", "import sys; sys.exit(3)"])
def test_nothing_is_left_behind_however_the_script_ends(ending: str) -> None:
    hooks = (
        torch.nn.modules.module._global_forward_pre_hooks,
        torch.nn.modules.module._global_forward_hooks,
    )
    targets = ("module:mid", "op:aten.tanh", "line:train.py:3")
    found = patch(Remedy(RemedyKind.FP32_KEEP, "keep", target=targets))
    with pytest.raises((ValueError, SystemExit)):
        patched(f"{AUTOCAST}\n{ending}\n", found)
    assert not any(hooks)
    assert torch._C._len_torch_function_stack() == 0
    assert torch._C._len_torch_dispatch_stack() == 0


def test_code_of_the_script_that_runs_in_backward_is_under_the_cure_too() -> None:
    checkpointed = STORED.replace(
        "net(x.to(torch.bfloat16))",
        "checkpoint(lambda h: net(h.to(torch.bfloat16)), x, use_reentrant=False)",
    )
    checkpointed = "from torch.utils.checkpoint import checkpoint\n" + checkpointed
    fp32 = checkpointed.replace("bfloat16", "float32")
    remedy = Remedy(RemedyKind.DTYPE, "train in fp32", value="fp32")
    assert same(patched(checkpointed, patch(remedy)), ran(fp32))


class HandsOn(TorchDispatchMode):
    """Sees every op and changes none, as a recorder does."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_under_the_cure_changes_nothing() -> None:
    remedy = Remedy(RemedyKind.STORAGE, "keep the parameters in fp32", value="fp32")
    found = patch(remedy, code="FD301", half="bfloat16")
    watched = ran(STORED, found.outer(), HandsOn(), found.inner())
    assert same(watched, patched(STORED, patch(remedy, code="FD301", half="bfloat16")))


CLIPPED = AUTOCAST.replace(
    "scaler.step(opt)",
    "torch.nn.utils.clip_grad_norm_(net.parameters(), 0.01); scaler.step(opt)",
)


def test_gradients_are_unscaled_before_they_are_clipped() -> None:
    edited = CLIPPED.replace("torch.nn.utils.clip", "scaler.unscale_(opt); torch.nn.utils.clip")
    remedy = Remedy(RemedyKind.CODE_FIX, "call `scaler.unscale_`")
    assert same(patched(CLIPPED, patch(remedy, code="FD402")), ran(edited))
    assert same(patched(edited, patch(remedy, code="FD402")), ran(edited))  # once in a step
    assert not same(ran(CLIPPED), ran(edited))


def test_what_backward_makes_on_a_line_gets_the_loss_scale() -> None:
    text = """
    import torch
    class Ride(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()
        @staticmethod
        def backward(ctx, gradient):
            return gradient + torch.ones_like(gradient)  # injected
    net = torch.nn.Linear(2, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    scaler.scale(Ride.apply(net(torch.ones(1, 2))).sum()).backward()
    scaler.unscale_(opt)
    gradient = net.bias.grad.item()
    """
    place = f"line:train.py:{line_of(text, 'injected')}"
    remedy = Remedy(RemedyKind.CODE_FIX, "multiply by the scale", target=(place,))
    found = patch(remedy, code="FD409")
    assert ran(text)["gradient"] == 1 + 1 / 256
    assert patched(text, found)["gradient"] == 2.0
    assert found.missed() == ()


def test_a_plain_step_becomes_the_scalers() -> None:
    plain = AUTOCAST.replace("scaler.step(opt); scaler.update()", "opt.step()").replace(
        "losses = []", "losses = []; schedule = torch.optim.lr_scheduler.ConstantLR(opt, 1.0)"
    )
    edited = plain.replace("opt.step()", "scaler.step(opt); scaler.update()")
    remedy = Remedy(RemedyKind.CODE_FIX, "replace `opt.step()` by `scaler.step(opt)`")
    found = patch(remedy, code="FD403")
    assert same(patched(plain, found), ran(edited))
    assert found.missed() == ()
    assert not same(ran(plain), ran(edited))


def test_a_script_that_updates_the_scaler_itself_goes_on_doing_so() -> None:
    plain = AUTOCAST.replace("scaler.step(opt); scaler.update()", "opt.step(); scaler.update()")
    edited = plain.replace("opt.step()", "scaler.step(opt)")
    found = patch(Remedy(RemedyKind.CODE_FIX, "replace `opt.step()`"), code="FD403")
    assert same(patched(plain, found), ran(edited))
    assert found.missed() == ()


def test_one_of_two_optimizers_is_stepped_by_the_scaler_already() -> None:
    two = AUTOCAST.replace(
        "scaler.step(opt); scaler.update()",
        "scaler.step(other); opt.step(); scaler.update()",
    ).replace(
        "opt = torch.optim.SGD(net.parameters(), lr=0.1)",
        "opt, other = (torch.optim.SGD(p, lr=0.1) for p in "
        "(list(net.parameters())[:1], list(net.parameters())[1:]))",
    )
    edited = two.replace("opt.step();", "scaler.step(opt);")
    assert "scaler.step(other); scaler.step(opt)" in edited
    found = patch(Remedy(RemedyKind.CODE_FIX, "replace `opt.step()`"), code="FD403")
    assert same(patched(two, found), ran(edited))
    assert not same(ran(two), ran(edited))
