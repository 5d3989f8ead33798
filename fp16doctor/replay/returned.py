"""Values that kept ops made, as those see them and as they are once cast back on leaving.

Must not know which ops are kept.
"""

from __future__ import annotations

from fp16doctor.replay.environment import Environment, Live, in_recorded_format
from fp16doctor.schema.tape import TensorRef


class Returned:
    """Two forms of a storage of one replay: fp32 inside the kept place, rounded once outside."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._made: set[int] = set()
        self._inside: dict[int, Live] = {}
        self._outside: dict[int, Live] = {}

    def made(self, refs: list[TensorRef]) -> None:
        """Note what a kept op of forward computed."""
        self._made.update(r.storage for r in refs)

    def show(self, refs: list[TensorRef], *, inside: bool) -> None:
        """Have the replay see the form that an op inside or outside a kept place is given."""
        for number in {r.storage for r in refs} & self._made:
            live = self._env.live(number)
            if live is None:
                continue
            if number not in self._inside and not inside:
                self._inside[number] = live
                self._outside[number] = in_recorded_format(live)
            if number in self._inside:
                self._env.put(number, (self._inside if inside else self._outside)[number])
