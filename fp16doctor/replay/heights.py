"""The amax at one place over consecutive steps.

Must not know what a height means.
"""

from __future__ import annotations

from fp16doctor.replay.calls import outputs_of
from fp16doctor.replay.environment import is_float_ref
from fp16doctor.replay.solo import SoloPlayer
from fp16doctor.replay.trajectory import follow
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.policy import PrecisionPolicy
from fp16doctor.schema.tape import OpCall, Tape


def heights(
    tapes: tuple[Tape, ...], policy: PrecisionPolicy, site: OpSite
) -> tuple[tuple[int, float], ...]:
    """Return (step, amax) of what the op of a module or a line makes, replayed as one run.

    The largest where a step runs it several times; steps that do not run it are left out.
    """
    found: dict[int, float] = {}

    def look(call: OpCall, player: SoloPlayer) -> None:
        if not _is_at(call.site, site):
            return
        for ref in outputs_of(call):
            if is_float_ref(ref) and player.env.has(ref.storage):
                value = player.env.tensor(ref)
                amax = float(value.abs().max()) if value.numel() else 0.0
                found[player.tape.step] = max(amax, found.get(player.tape.step, 0.0))

    follow(tapes, policy, look=look)
    return tuple(sorted(found.items()))


def _is_at(mine: OpSite, site: OpSite) -> bool:
    """By op and module; outside all modules by its line."""
    if (mine.op, mine.phase, mine.module_path) != (site.op, site.phase, site.module_path):
        return False
    return bool(site.module_path) or mine.source == site.source
