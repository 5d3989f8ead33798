"""Code to paste for another format, where no line of the script is known to change.

Must not know what the format is to cure.
"""

from __future__ import annotations

_BLOCK = "with torch.autocast(DEVICE, {}):\n    ...  # forward and loss; or model.{}()"
FORMAT_CODE = {
    "bf16": _BLOCK.format("dtype=torch.bfloat16", "bfloat16"),
    "fp32": _BLOCK.format("enabled=False", "float"),
}
