"""A new GradScaler is made in every step.

What it checks:
    `GradScaler(…)` in the loop that its `step` is in, at the same depth.

Why it matters:
    The scale lives in the scaler. Made anew, it starts at its initial value in every step: where
    that value overflows, every step is skipped and nothing is learned.

Example:
    for x, y in loader:
        scaler = torch.amp.GradScaler("cuda")
        scaler.scale(criterion(model(x), y)).backward()
        scaler.step(optimizer)

Remedy:
    Make one scaler before the loop.

References:
    PyTorch documentation, Automatic Mixed Precision examples, "Typical Mixed Precision Training"
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.beside_run import scale_not_carried
from fp16doctor.diagnose.script_reading.amp import makes_scaler
from fp16doctor.diagnose.script_reading.patch import insert_before, remove
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.tree import receiver, spelled
from fp16doctor.diagnose.script_rule import Suspicion, script_rule
from fp16doctor.schema.finding import Severity


@script_rule(code="FD732", name="scaler-made-in-loop", stands=scale_not_carried)
def scaler_made_in_loop(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per scaler that is made in the loop it steps in."""
    for node in script.tree.nodes:
        if not isinstance(node, ast.Assign) or not makes_scaler(script, node.value):
            continue
        place, name = script.place(node), spelled(node.targets[0])
        steps = [c for c in script.methods("step") if spelled(receiver(c)) == name and c.args]
        inside = [s for s in steps if script.place(s).loop is place.loop]
        # Under a condition of its own it may be made once.
        always = any(script.place(s).sides() >= place.sides() for s in inside)
        if place.loop is not None and always:
            made = script.source(node)
            yield Suspicion(
                node=node,
                what=f"`{name}` is made anew in every turn of the loop that it steps in",
                reason=(
                    "The loss scale starts at its initial value each time: where that overflows, "
                    "every step is skipped."
                ),
                advice="make one scaler before the loop",
                severity=Severity.ERROR,
                edits=[
                    insert_before(script.lines, place.loops[-1], made),
                    remove(script.lines, node),
                ],
            )
