"""Which ops and tensors a keep rule covers."""

from __future__ import annotations

import pytest

from fp16doctor.replay.keep import covers, covers_tensor
from fp16doctor.schema.location import OpSite, Phase, SourceLine
from fp16doctor.schema.policy import KeepRule

LIBRARY = SourceLine("/lib/attention.py", 7, "Attention.forward")
OWN = SourceLine("src/train.py", 40, "Net.forward.<locals>.<lambda>")


def site(**more: object) -> OpSite:
    known: dict[str, object] = {"module_path": "net.blocks.1.ffn", "source": OWN}
    return OpSite(0, Phase.FORWARD, "aten.mul.Tensor", 3, **(known | more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "covered"),
    [
        ("module:net.blocks.1.ffn", True),
        ("module:net.blocks.1", True),
        ("module:net", True),
        ("module:net.blocks.*", True),
        ("module:net.blocks.*.ffn", True),
        ("module:net.blocks.10", False),
        ("module:net.blocks.1.ff", False),
        ("module:blocks.1", False),
        ("module:", False),
        ("op:aten.mul", True),
        ("op:aten.mul.Tensor", True),
        ("op:aten.mu", False),
        ("op:aten.mul.Scalar", False),
        ("line:src/train.py:40", True),
        ("line:train.py:40", True),
        ("line::40", True),
        ("line:train.py:4", False),
        ("line:rain.py:40", False),
        ("function:train.py:Net.forward", True),
        ("function::Net.forward", True),
        ("function:train.py:Net", False),
        ("function:train.py:forward", False),
        ("function:other.py:Net.forward", False),
        ("anything:else", False),
    ],
)
def test_rules(pattern: str, covered: bool) -> None:
    assert covers(KeepRule(pattern), site()) is covered


def test_lines_and_functions_of_the_user_cover_what_a_library_runs_for_them() -> None:
    inside = site(source=LIBRARY, caller=OWN)
    assert covers(KeepRule("line:train.py:40"), inside)
    assert covers(KeepRule("function:train.py:Net.forward"), inside)
    assert covers(KeepRule("line:attention.py:7"), inside)


def test_a_module_covers_backward_and_never_the_update() -> None:
    from dataclasses import replace

    rule = KeepRule("module:net")
    assert covers(rule, replace(site(), phase=Phase.BACKWARD))
    assert not covers(rule, replace(site(), phase=Phase.OPTIMIZER))
    assert covers(KeepRule("line:train.py:40"), replace(site(), phase=Phase.OPTIMIZER))


def test_outside_of_modules_no_module_covers() -> None:
    assert not covers(KeepRule("module:*"), site(module_path=None))
    assert not covers(KeepRule("line:train.py:40"), site(source=None))


def test_tensors_of_a_module() -> None:
    rule = KeepRule("module:net.blocks.1")
    assert covers_tensor(rule, "net.blocks.1.ffn.weight")
    assert covers_tensor(rule, "net.blocks.1.scale")
    assert not covers_tensor(rule, "net.blocks.10.weight")
    assert not covers_tensor(KeepRule("line:train.py:40"), "net.blocks.1.scale")


@pytest.mark.parametrize(
    ("module", "function", "covered"),
    [
        ("Linear", "Net.forward", False),  # self.fc(x) * 2: the product alone
        ("Net", "Net.forward", True),
        ("FFN", "gelu", True),  # a function that a module calls
        ("LayerNorm", "LayerNorm.forward", True),  # the user's own class of that name
        (None, "<module>", True),
    ],
)
def test_a_line_is_what_it_computes_itself(
    module: str | None, function: str, covered: bool
) -> None:
    line = SourceLine("train.py", 40, function)
    rule = KeepRule("line:train.py:40")
    assert covers(rule, site(source=line, module_class=module)) is covered
    assert covers(rule, site(source=line, module_class=module, module_path=""))
