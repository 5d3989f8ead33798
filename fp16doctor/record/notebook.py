"""From the file a notebook's cell is compiled as to the number the reader sees beside it.

Must not import IPython: without it there is no cell.
"""

from __future__ import annotations

import sys
from typing import Any


def cell_of(path: str) -> str:
    """Return ``cell 3`` for the cell that IPython ran as In[3]; "" for any other file.

    A kernel compiles cells as files that are not there, below ``ipykernel_<process>``; IPython
    keeps which is which in its compiler, under a private name.
    """
    if "ipykernel_" not in path and not path.startswith("<ipython-input"):
        return ""
    try:
        shell: Any = sys.modules["IPython"].get_ipython()
        number = shell.compile._filename_map[path]
    except (KeyError, AttributeError, TypeError):
        return ""
    return f"cell {number}"
