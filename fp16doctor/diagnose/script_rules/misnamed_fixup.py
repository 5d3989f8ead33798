"""An initialisation that is called Fixup and is Kaiming's.

What it checks:
    A function whose name holds "fixup" and that fills weights with `kaiming_normal_` or
    `kaiming_uniform_`, where no weight of the file is set to zero and nothing is raised to a
    negative power of the depth.

Why it matters:
    Fixup sets the last layer of each residual branch and the classifier to zero and multiplies the
    other layers of a branch by L^(−1/(2m−2)), L branches of m layers. Without that, the variance
    of a residual network without normalisation doubles with every block.

Example:
    def fixup_init(m):
        nn.init.kaiming_normal_(m.weight)

Remedy:
    Zero the last layer of each branch, scale the others by the depth, add scalar biases and
    multipliers; or call it what it is.

References:
    Zhang, Dauphin, Ma, "Fixup Initialization", arXiv 1901.09321
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fp16doctor.diagnose.beside_run import values_grew
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.tree import mentions, method, receiver
from fp16doctor.diagnose.script_rule import Suspicion, script_rule

_KAIMING = {
    f"torch.nn.init.{name}"
    for name in ("kaiming_normal_", "kaiming_uniform_", "kaiming_normal", "kaiming_uniform")
}


@script_rule(code="FD727", name="misnamed-fixup", stands=values_grew)
def misnamed_fixup(script: Script) -> Iterator[Suspicion]:
    """Yield one suspicion per Kaiming initialisation under the name of Fixup."""
    if "fixup" not in script.text.lower() or _scaled_by_depth(script) or _zeroes_weights(script):
        return
    for call, name in script.dotted_calls:
        function = script.tree.function(call)
        named = isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        if name in _KAIMING and named and "fixup" in function.name.lower():  # type: ignore[union-attr]
            yield Suspicion(
                node=call,
                what=f"`{function.name}` is Kaiming's initialisation, not Fixup",  # type: ignore[union-attr]
                reason=(
                    "Fixup sets the last layer of each residual branch to zero and scales the "
                    "others by a power of the number of branches; neither is done here."
                ),
                advice=(
                    "zero the last layer of each branch and multiply the others by "
                    "L^(−1/(2m−2)), or name the function after Kaiming"
                ),
            )


def _scaled_by_depth(script: Script) -> bool:
    """A negative power, as in ``depth ** -0.5``."""
    for node in script.tree.nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            if any(isinstance(n, ast.USub) for n in ast.walk(node.right)):
                return True
        elif isinstance(node, ast.Call) and script.name(node) in ("math.pow", "numpy.power"):
            return True
    return False


def _zeroes_weights(script: Script) -> bool:
    for call in script.calls:
        name = script.name(call)
        target = call.args[0] if call.args else None
        if name.startswith("torch.nn.init.") and target is not None:
            zero = name.endswith("zeros_") or (
                name.endswith("constant_")
                and len(call.args) > 1
                and script.number(call.args[1]) == 0
            )
            if zero and mentions(target, "weight"):
                return True
        elif method(call) in ("zero_", "fill_") and mentions(receiver(call), "weight"):
            return True
    return False
