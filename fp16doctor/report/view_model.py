"""What a report shows, as plain data: every string and number in here is ready for a reader.

Must not know how it is filled (``view``) or drawn (``html``, ``terminal``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PasteView:
    """One text to paste at the top."""

    title: str  # of the cure
    change: str  # the shortest text that does it, may have several lines
    kind: str  # "code", "diff of the script, for patch -p1", "in words"
    unproved: str  # "" where the cure was verified
    long: bool  # more lines than the top has room for


@dataclass(frozen=True, slots=True)
class AnswerView:
    """The four lines at the top, and what the script itself showed."""

    mark: str  # "error", "warning", "clear", "unknown": word and colour of the whole answer
    verdict: str
    place: str
    do: str
    proof: str
    confirm: str = ""  # "" where the script was not run again
    pastes: tuple[PasteView, ...] = ()  # what ``do`` asks for as text, where it can be pasted


@dataclass(frozen=True, slots=True)
class CodeLine:
    """One line of source, with what it is to the finding."""

    relation: str  # "", "called from", "reason"
    location: str  # train.py:40
    text: str  # as the user wrote it, "" where not recorded
    around: tuple[tuple[str, str, bool], ...] = ()  # (number, line, whether it is this one)


@dataclass(frozen=True, slots=True)
class FormView:
    """The same cure in the words of a library."""

    name: str  # the library
    change: str  # text to paste


@dataclass(frozen=True, slots=True)
class RemedyView:
    """One cure and its proof."""

    title: str
    change: str  # text to paste, may have several lines
    notes: tuple[str, ...]  # kind, target, value, cost
    verdict: str  # "verified", "refuted", "not verified"
    proof: str  # before -> after in one line, or the reason
    basis: str  # the same without the numbers that ``comparison`` has
    treats: str  # the findings it treats
    comparison: tuple[tuple[str, str, str], ...]  # quantity, before, after
    recommended: bool
    advised: tuple[FormView, ...] = ()  # the findings' advice in words, where this was tried for it
    number: int = 0  # 1-based place among all cures
    standing: str = ""  # "recommended"; "advised" where that was not verified; "" otherwise
    told: bool = False  # under an earlier finding, with its proof
    forms: tuple[FormView, ...] = ()
    reason: str = ""  # of the verdict, without numbers; "" where they are reason enough


@dataclass(frozen=True, slots=True)
class ChainBox:
    """One stage on the way from a fault to what it reaches."""

    label: str  # "reason", "birth", "place", "first NaN", "then", "inherited", "reaches"
    head: str  # an op, or what is reached
    place: str  # line and module, "" where it has none
    value: str  # a number with its limit, "" where none is known


@dataclass(frozen=True, slots=True)
class CureTable:
    """The numbers of all cures, one row each."""

    columns: tuple[str, ...]  # quantities
    numbers: tuple[tuple[tuple[str, str], ...], ...]  # (before, after), in the order of the cures
    rows: tuple[tuple[str, ...], ...]  # the same, each as one cell
    legend: tuple[tuple[str, str], ...]  # (column, what it means and which way is good)


@dataclass(frozen=True, slots=True)
class FindingView:
    """One finding in seven parts."""

    severity: str
    code: str
    name: str
    what: str
    where: str
    lines: tuple[CodeLine, ...]
    repeats: str  # "also at 3 other places: …", "" where none
    evidence: tuple[str, ...]
    cause: str
    chain: str  # first inf → first NaN → loss, "" where none
    boxes: tuple[ChainBox, ...]  # the same to be drawn, with what it reaches
    consequences: str  # what inherits it and what it reaches, "" where nothing
    folded: str  # codes of findings folded under this one
    advice: str  # "" where nothing is known
    remedies: tuple[RemedyView, ...]
    others: str  # how many cures are told elsewhere, and how they fared
    unproved: str  # why the advice is not verified, "" where a remedy carries its own proof
    explain: str  # a command


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of ready strings."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: str = ""  # what was cut, and where it can be found


@dataclass(frozen=True, slots=True)
class Meter:
    """A share as a bar and in words."""

    words: str
    percent: float | None  # 0 to 100: as far as the bar goes; None where nothing was measured


@dataclass(frozen=True, slots=True)
class BlameRow:
    """One op of the error budget."""

    op: str
    phase: str
    place: str
    share: Meter  # what goes without it
    joint: Meter  # what goes without it and the rows above


@dataclass(frozen=True, slots=True)
class BlameView:
    """The error budget of one step."""

    line: str  # how few ops make how much, "" where nothing was measured
    note: str  # why nothing, or not all of it, was measured
    table: Table  # the first column is the share as a bar
    rows: tuple[BlameRow, ...] = ()  # the same, to be drawn
    legend: tuple[tuple[str, str], ...] = ()  # (share, what it means)


@dataclass(frozen=True, slots=True)
class PictureView:
    """A drawing and the numbers behind it."""

    name: str  # id on the page
    title: str
    caption: str
    svg: str  # markup: what it shows of the run is escaped already
    table: Table


@dataclass(frozen=True, slots=True)
class Bar:
    """One column of a chart, in the units of its drawing."""

    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass(frozen=True, slots=True)
class ExplorerView:
    """Gradients by exponent, and what each loss scale does to them."""

    width: float
    height: float
    foot: float  # room for labels below
    column: float  # width of a binade
    bars: tuple[Bar, ...]
    ticks: tuple[tuple[float, str], ...]  # x, label
    window: tuple[float, float]  # x of the smallest subnormal and of the overflow threshold
    normal: float  # x of the smallest normal number
    power: int  # exponent of the loss scale that the window stands at
    most: int  # exponent of the largest scale
    said: str  # shares at that scale
    marks: str  # the window that a trial found, "" where none
    data: str  # JSON: [[[overflow, subnormal, flushed], sentence], …] by exponent of the scale
    table: Table
    format: str


@dataclass(frozen=True, slots=True)
class ReportView:
    """Everything a report shows."""

    title: str
    answer: AnswerView
    recommendation: str
    remedies: tuple[RemedyView, ...]
    cures: CureTable  # of the remedies
    no_remedies: str  # said where the list is empty
    findings: tuple[FindingView, ...]
    no_findings: str  # said where the list is empty
    blame: BlameView
    pictures: tuple[PictureView, ...]
    no_pictures: str  # why they are missing, "" where they are not
    explorer: ExplorerView | None
    ranges: Table
    steps: Table
    steps_line: str
    checks: Table
    failed_checks: tuple[str, ...]
    facts: Table
    formats: Table
    limits: tuple[str, ...]  # what could not be observed, one sentence each
    no_limits: str  # said where the list is empty
    stand_ins: Table  # pinned and opaque ops
    glossary: tuple[tuple[str, str], ...]
    count_line: str
