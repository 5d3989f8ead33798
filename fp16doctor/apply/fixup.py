"""``fixup_``: Fixup's initial weights for a model as it is.

Must not know how branches are found.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fp16doctor.apply.fixup_plan import FixupPlan, plan_of
from fp16doctor.apply.fixup_scalars import add_scalars, layers_for_scalars
from fp16doctor.apply.one_forward import flow_of
from fp16doctor.errors import FixupError


def fixup_(
    model: nn.Module,
    example_inputs: Any,
    *,
    dry_run: bool = False,
    scalars: bool = False,
    generator: torch.Generator | None = None,
) -> FixupPlan:
    """Initialise a residual network without normalisation by Fixup; return what was set.

    The branches are found in one forward pass of ``model`` on ``example_inputs``: a tensor, a
    tuple of positional arguments or a dict of keyword arguments. Weights of convolutions and
    matrix products are drawn in fp32 and rounded once to their storage format: N(0, 2/fan_out)
    outside the branches, × L^(−1/(2m−2)) inside them, 0 for the last layer of each branch and for
    the classifier; biases beside them are 0 (arXiv 1901.09321, section 3, rules 1 and 2). What
    the plan names as skipped, and parameters of other ops, stay as they are.

    ``scalars`` adds rule 3: a multiplier of 1 for each branch and biases of 0 around its layers,
    as parameters of the layers themselves; see ``parameter_groups`` for their learning rate.
    ``dry_run`` changes nothing: ``print(fixup_(model, x, dry_run=True))`` shows the plan.

    On the first step all gradients but the classifier's are exactly 0, by design: the first
    update makes the classifier, the next ones the last layers of the branches differ from 0.

    Raises:
        FixupError: no residual branch was found; or one is normalised, has attention, one layer,
            or an end that cannot start at 0; or a weight has two roles; or ``model`` is none, or a
            ScriptModule. Nothing is changed then.
    """
    _check(model)
    flow = flow_of(model, example_inputs)
    plan = plan_of(flow)
    chosen = layers_for_scalars(model, flow, plan) if scalars else ()
    if not dry_run:
        _set_weights(model, plan, generator)
        add_scalars(model, chosen)
    return plan


def drawn(plan: FixupPlan, name: str, shape: Any, generator: torch.Generator | None) -> Tensor:
    """Return one parameter's initial values in fp32; ask for them in the order of their names."""
    std = plan.stds[name]
    if std == 0.0:
        return torch.zeros(shape)
    device = generator.device if generator is not None else "cpu"
    return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).mul_(std)


def _check(model: object) -> None:
    if isinstance(model, torch.jit.ScriptModule) or not isinstance(model, nn.Module):
        kind = model.__name__ if isinstance(model, type) else type(model).__name__
        raise FixupError(
            f"fixup_ was given a {kind}, whose forward pass cannot be followed; pass the nn.Module"
            " itself, before it is scripted",
            "not-a-model",
        )


def _set_weights(model: nn.Module, plan: FixupPlan, generator: torch.Generator | None) -> None:
    with torch.no_grad():
        for name in sorted(plan.stds):
            parameter = model.get_parameter(name)
            parameter.copy_(drawn(plan, name, parameter.shape, generator))
