"""``python -m fp16doctor``: the same as the ``fp16doctor`` command.

Must not know the commands; ``cli.main`` does.
"""

from __future__ import annotations

from fp16doctor.cli.main import main

if __name__ == "__main__":
    main()
