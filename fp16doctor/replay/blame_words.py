"""The one sentence of an error budget, made of measured shares only.

Must not know how they are measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from fp16doctor.schema.blame import BlamedOp, ErrorBudget
from fp16doctor.schema.spelling import number, plain

WORTH_A_WORD = 0.01  # share of the error below which no op is named
MOST_OF_IT = 0.8  # share of the error that is called most of it


def finite_sentence(ops: Sequence[BlamedOp], whole: ErrorBudget) -> str:
    """Say how few ops make most of it.

    ``3 of 412 ops make 80 % of the squared gradient error of step 5: 0.012 as run, 0.0054 without
    their own errors``.
    """
    joint = [(n + 1, o.cumulative) for n, o in enumerate(ops) if o.cumulative is not None]
    if not joint:
        return ""
    size, share = next((x for x in joint if x[1] >= MOST_OF_IT), max(joint, key=lambda x: x[1]))
    if share < WORTH_A_WORD:
        return (
            f"none of the {len(ops)} leading ops of {whole.n_ops} makes 1 % of the squared "
            f"{whole.quantity} of step {whole.step}, {number(whole.total)} as run"
        )
    total, rest = number(whole.total), number(whole.total * max(1 - share, 0.0) ** 0.5)
    many = whole.n_ops != 1
    verb, own = ("makes", "its own error") if size == 1 else ("make", "their own errors")
    few = f"{size} of {whole.n_ops} op{'s' * many}"
    parts = f"{few} {verb} {_percent(share)} of the squared {whole.quantity}"
    tail = "" if share >= MOST_OF_IT else "; the rest is spread over the others"
    return f"{parts} of step {whole.step}: {total} as run, {rest} without {own}{tail}"


def births_sentence(ops: Sequence[BlamedOp], whole: ErrorBudget, *, finite: bool) -> str:
    """``1 birth has to go: with it in fp32 none of 1024 gradient elements stays non-finite``."""
    if not ops:
        return ""  # no time was left to follow one
    size, total = len(ops), int(whole.total)
    later = max(size - whole.n_ops, 0)
    what = f"{size} birth{'s' * (size != 1)} of inf or NaN {'has' if size == 1 else 'have'} to go"
    hidden = f", {later} of them hidden behind others" if later else ""
    if whole.quantity == "non-finite loss":
        end = "the loss of step {} is finite" if finite else "the loss of step {} is still not"
        end = end.format(whole.step)
    else:
        stay = "none" if finite else str(round(total * (1 - (ops[-1].cumulative or 0.0))))
        end = f"{stay} of {total} non-finite gradient elements of step {whole.step} stay so"
    if not finite:
        what = f"{size} birth{'s' * (size != 1)} of inf or NaN {'is' if size == 1 else 'are'} known"
    return f"{what}{hidden}: in fp32 there, {end}"


def _percent(share: float) -> str:
    percent = min(100 * share, 100.0)
    return f"{percent:.0f} %" if percent >= 10 else f"{plain(percent, 2)} %"
