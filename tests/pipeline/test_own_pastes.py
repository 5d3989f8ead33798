"""What is to be pasted comes with its place: a diff of the script, or a comment that says where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fp16doctor.apply.line_edit import edits_in, patched_text
from fp16doctor.pipeline.own_lines import ScriptText
from fp16doctor.pipeline.own_pastes import with_own_places
from fp16doctor.schema.prescription import Prescription, Remedy, RemedyKind, Verdict, Verification

SCRIPT = """\
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        a = x.exp() @ x
        b = a @ x
        return a + b

net = Net()
opt = torch.optim.SGD(net.parameters(), lr=1.0)
with torch.autocast(net.device, dtype=torch.float16):
    loss = net(x)
"""
CODE = "module = model.get_submodule('a')\nmodule.forward = f"
SHORT = "import fp16doctor\n\nfp16doctor.keep_fp32(model, ['a'])"
HELPER = (
    "# above the function or class that the lines below stand in\n+ def to(x):\n+     return x\n"
)
EDIT = "# train.py:6\n- a = x.exp() @ x\n+ a = x"


def cautioned(slug: str, said: str) -> None:
    raise AssertionError(f"{slug}: {said}")


def placed(change: str, text: str = SCRIPT, model: str = "net", **more: object) -> Remedy:
    remedy = replace(Remedy(RemedyKind.FP32_KEEP, "", change=change), **more)  # type: ignore[arg-type]
    cure = Prescription(remedy, (0,), Verification(Verdict.VERIFIED))
    (found,) = with_own_places([cure], ScriptText("train.py", text), "/none", model, cautioned)
    return found.remedy


def result(change: str, text: str = SCRIPT) -> str:
    assert change.startswith("--- a/train.py\n+++ b/train.py\n")
    return patched_text(text, edits_in(change)) or ""


def test_code_for_the_model_goes_in_front_of_its_optimizer() -> None:
    new = result(placed(CODE).change)
    own = CODE.replace("model.", "net.")
    assert new == SCRIPT.replace("opt = ", f"{own}\nopt = ")
    short = placed(CODE, forms={"fp16doctor": SHORT, "FSDP": SHORT}).forms
    assert result(short["fp16doctor"]) == SCRIPT.replace(
        "opt = ", "import fp16doctor\nfp16doctor.keep_fp32(net, ['a'])\nopt = "
    )
    assert short["FSDP"] == SHORT


@pytest.mark.parametrize(
    ("text", "at"),
    [
        (SCRIPT.replace("opt = torch.optim.SGD", "opt = make"), ""),
        (SCRIPT.replace("Net()\n", "DistributedDataParallel(Net())\n"), ""),
        (SCRIPT.replace("loss = ", "module = "), " (train.py:11)"),
        ("", ""),
    ],
    ids=["no optimizer of torch", "wrapped", "a name that is taken", "no text"],
)
def test_where_a_diff_is_in_doubt_a_comment_says_where(text: str, at: str) -> None:
    said = f"# once the model is made, before its optimizer{at}:\n{CODE}"
    assert placed(CODE, text, "").change == said


def test_the_optimizer_of_a_function_and_of_an_attribute() -> None:
    text = (
        "import torch\nclass T:\n    def go(self):\n        self.net = Net()\n"
        "        self.opt = torch.optim.SGD(self.net.parameters(), lr=1.0)\n"
    )
    new = result(placed(CODE, text, "").change, text)
    assert "        module = self.net.get_submodule('a')\n        module.forward = f\n" in new


def test_an_edit_of_a_line_is_a_diff() -> None:
    assert result(placed(EDIT).change) == SCRIPT.replace("a = x.exp() @ x", "a = x")
    unknown = EDIT.replace("train.py", "other.py")
    assert placed(unknown).change == unknown


def test_neighbours_share_their_block() -> None:
    block = "with torch.autocast('cpu', enabled=False):"
    one, two = (
        f"# train.py:{n}\n- {line}\n+ {block}\n+     {new}"
        for n, line, new in (
            (6, "a = x.exp() @ x", "a = x.float().exp() @ x.float()"),
            (7, "b = a @ x", "b = a @ x.float()"),
        )
    )
    new = result(placed(f"{two}\n{one}").change)
    assert new.count("with torch.autocast('cpu'") == 0  # the script's own expression
    assert (
        "        with torch.autocast(net.device, enabled=False):\n"
        "            a = x.float().exp() @ x.float()\n"
        "            b = a @ x.float()\n"
    ) in new


def test_what_lines_need_stands_above_their_class() -> None:
    new = result(placed(HELPER + EDIT).change)
    assert "def to(x):\n    return x\n\n\nclass Net(nn.Module):" in new
    assert "        a = x\n" in new


def test_code_of_the_model_beside_a_line_goes_to_the_optimizer() -> None:
    head = "# above the optimizer, once the model is made\n"
    added = "".join(f"+ {line}\n" for line in CODE.splitlines())
    new = result(placed(head + added + EDIT).change)
    assert new == SCRIPT.replace("opt = ", f"{CODE.replace('model.', 'net.')}\nopt = ").replace(
        "a = x.exp() @ x", "a = x"
    )


def test_an_edit_that_is_not_all_there_is_to_do_is_no_diff() -> None:
    change = f"{EDIT}\n# train.py:8: `mm` of `z` gets fp32 and fp16: cast it"
    assert placed(change).change == change


def test_general_code_names_the_lines_that_it_is_for() -> None:
    code = "with torch.autocast('cpu', enabled=False):\n    ...  # forward and loss"
    text = SCRIPT.replace("loss = net(x)", "loss = net(x.half())") + "loss.backward()\n"
    change = placed(code, text, kind=RemedyKind.DTYPE).change
    head, _, rest = change.partition("\n")
    assert head == (
        "# casts to 16 bits: train.py:12, 13; the block ends in front of backward: train.py:14"
    )
    assert rest == code.replace("'cpu'", "net.device")


def test_a_function_gets_its_decorator() -> None:
    said = (
        "# train.py:Net.forward: put @fp16doctor.keep_fp32 on the line above its def "
        "(import fp16doctor), or call .float() on its inputs"
    )
    new = result(placed(said).change)
    assert "from torch import nn\nimport fp16doctor\n" in new
    assert "    @fp16doctor.keep_fp32\n    def forward(self, x):\n" in new
    assert placed(said.replace("Net.", "Other.")).change == said.replace("Net.", "Other.")


def test_a_file_beside_the_script_is_read(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("def f(x):\n    a = x.exp() @ x\n")
    edit = EDIT.replace("train.py:6", "other.py:2")
    cure = Prescription(
        Remedy(RemedyKind.FP32_KEEP, "", change=edit), (0,), Verification(Verdict.VERIFIED)
    )
    text = ScriptText("train.py", SCRIPT)
    (found,) = with_own_places([cure], text, str(tmp_path), "", cautioned)
    assert found.remedy.change.startswith("--- a/other.py\n")
