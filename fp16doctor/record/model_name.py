"""What the script calls its model.

Must not know what is written with the name.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from torch import nn

_WRAPPED = ("module", "_orig_mod")


def model_name(roots: Sequence[nn.Module]) -> str:
    """Return the one name of the one model among the script's own, "" where there is none.

    A name counts whose value is the model or a wrapper (DDP, a compiled module) around it.
    """
    space = getattr(sys.modules.get("__main__"), "__dict__", {})
    trained = [r for r in roots if any(p.requires_grad for p in r.parameters())]
    if len(trained) != 1:
        return ""
    names = [n for n, value in list(space.items()) if _is_model(value, trained[0])]
    public = [n for n in names if not n.startswith("_")]
    return public[0] if len(public) == 1 else ""


def _is_model(value: object, root: nn.Module) -> bool:
    if value is root:
        return True
    inner = vars(value).get("_modules", {}) if isinstance(value, nn.Module) else {}
    return len(inner) == 1 and any(inner.get(name) is root for name in _WRAPPED)
