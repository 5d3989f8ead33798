"""Lines that write files are found in a script's source."""

from __future__ import annotations

import pytest

from fp16doctor.cli.saves import first_saving_line


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch\ntorch.save(model, 'm.pt')", (2, "torch.save")),
        ("model.save_pretrained('out')", (1, "model.save_pretrained")),
        ("x = 1\nif x:\n    trainer.save('a')", (3, "trainer.save")),
        ("from torch import save\n\nsave(m, 'x')", (3, "save")),
        ("open('log', 'w')", (1, "open")),
        ("open('log', mode='a')", (1, "open")),
        ("with open('log', 'r+b') as f: pass", (1, "open")),
        ("def late():\n    torch.save(1)\nopen('x', 'w')", (2, "torch.save")),
        ("open('data')", None),
        ("open('data', 'rb')", None),
        ("open('data', mode)", None),
        ("save = 3\nsaved(1)", None),
        ("x = (", None),
        ("x = 1\x00", None),
        (None, None),
        (b"\xef\xbb\xbftorch.save(1)", (1, "torch.save")),
    ],
)
def test_first_saving_line(source: str | bytes | None, found: tuple[int, str] | None) -> None:
    assert first_saving_line(source) == found
