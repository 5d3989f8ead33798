"""Networks that Fixup is not for: the reason, and the cure for them.

Must not know plans.
"""

from __future__ import annotations

from fp16doctor.apply.flow import Flow, Value
from fp16doctor.apply.residuals import (
    Residual,
    attentions,
    normalisations,
    normalised_stream,
)
from fp16doctor.errors import FixupError


def refuse(flow: Flow, found: tuple[Residual, ...]) -> None:
    """Raise FixupError where the branches are none that the paper's rules hold for."""
    if not found:
        raise FixupError(
            "no residual branch was found in the forward pass (an addition one operand of which "
            "comes from the other through a layer); for a plain network use "
            "torch.nn.init.kaiming_normal_",
            "fixup-no-branches",
        )
    for one in found:
        _refuse_attention(flow, one)
    for one in found:
        _refuse_normalisation(flow, one)
    _refuse_normalised_stream(flow, found)
    for one in found:
        _refuse_layers(flow, one)


def _refuse_attention(flow: Flow, one: Residual) -> None:
    products = attentions(flow, one)
    if not products:
        return
    normed = bool(normalisations(flow, one))
    cure = (
        "multiply the initial weights of the output projections by 1/√(2N), N the number of blocks"
        if normed
        else "T-Fixup (attention value, output and feed-forward weights × 0.67·N^(−1/4), N the "
        "number of encoder layers) is the rule for it"
    )
    raise FixupError(
        f"the branch {_where(flow, one)} multiplies two values ({_op(products[0])} in "
        f"{_path(products[0])}): attention is outside Fixup's derivation; {cure}",
        "fixup-attention",
    )


def _refuse_normalisation(flow: Flow, one: Residual) -> None:
    norms = normalisations(flow, one)
    if norms:
        raise FixupError(
            f"the branch {_where(flow, one)} is normalised ({_op(norms[0])} in "
            f"{_path(norms[0])}): Fixup replaces normalisation and is not needed beside it; set "
            "the gain of the last normalisation of each branch to 0 (zero_init_residual)",
            "fixup-normalised",
        )


def _refuse_normalised_stream(flow: Flow, found: tuple[Residual, ...]) -> None:
    norm = normalised_stream(flow, found)
    if norm is not None:
        raise FixupError(
            f"the stream is normalised between two branches ({_op(norm)} in {_path(norm)}): "
            "Fixup replaces normalisation and is not needed beside it; remove it first, or keep "
            "the initialisation as it is",
            "fixup-normalised",
        )


def _refuse_layers(flow: Flow, one: Residual) -> None:
    names = sorted(_names(flow, one))
    computed = [x.weight for v, x in flow.layers() if v.number in one.layers and x.computed]
    if computed:
        raise FixupError(
            f"the branch {_where(flow, one)} computes the weight of a layer from "
            f"`{computed[0]}` (weight or spectral norm): remove that parametrisation first",
            "fixup-computed-weight",
        )
    used = next((n for n in names if n in flow.other_uses), None)
    if used is not None:
        raise FixupError(
            f"the branch {_where(flow, one)} uses `{used}` in a layer, and "
            f"{flow.other_uses[used]} uses it too; give each its own weight",
            "fixup-shared-weight",
        )
    if one.holds and not one.last:
        return  # it ends in an inner branch, whose zeros leave the stream as it is
    if one.closing.obstacle:
        raise FixupError(
            f"the last layer of the branch {_where(flow, one)} cannot start at 0: "
            f"{one.closing.obstacle}; end the branch with its last layer",
            "fixup-branch-end",
        )
    if one.depth == 1 and not one.holds:
        _refuse_recurrence(flow, one)
        raise FixupError(
            f"the branch {_where(flow, one)} has one layer (m = 1), for which L^(−1/(2m−2)) is not "
            "defined; multiply the branch by a learned scalar that starts at 0 (ReZero, SkipInit)",
            "fixup-one-layer",
        )


def _refuse_recurrence(flow: Flow, one: Residual) -> None:
    """One layer of the same weight at every addition is a recurrent cell."""
    weights = [layer.weight for _, layer in flow.layers()]
    name = next((n for n in _names(flow, one) if weights.count(n) > 1), None)
    if name is not None:
        raise FixupError(
            f"the branch {_where(flow, one)} has one layer, and its weight `{name}` is used "
            f"{weights.count(name)} times: a recurrent cell is no residual network; use "
            "torch.nn.init.orthogonal_ for it",
            "fixup-recurrent",
        )


def _names(flow: Flow, one: Residual) -> list[str]:
    return [layer.weight for n in one.layers if (layer := flow.values[n].layer) is not None]


def _where(flow: Flow, one: Residual) -> str:
    return f"that is added in {_path(flow.values[one.addition])}"


def _path(value: Value) -> str:
    path = value.call.site.module_path if value.call is not None else None
    return f"`{path}`" if path else "the root module"


def _op(value: Value) -> str:
    return value.call.op if value.call is not None else value.op
