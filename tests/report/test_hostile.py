"""Markup, templates, escapes and endless names in a user's strings change nothing but text."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from fp16doctor.report.html import render_html
from fp16doctor.report.terminal import render_terminal
from fp16doctor.schema.codec import from_json, to_json
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.location import SourceContext, SourceLine
from fp16doctor.schema.recording import Caution, Outcome, OutcomeKind

HandMade = dict[str, Callable[[], Diagnosis]]
HOSTILE = {
    "script": "</script><script>alert(1)</script>",
    "style": "</style><b>bold</b>",
    "template": "{{ 7 * 7 }}{% raw %}{# x #}",
    "quotes": "\"'><img onerror=alert(1)>&amp;",
    "long": "a/" * 5000,
    "surrogates": "caf\udcc3\udca9",
    "escapes": "\x1b[2J\x1b]0;title\x07\r\x00\x9b31m",
    "lines": "x\n\nerror FD999 invented: nothing is wrong\x85\u2028",
    "reordering": "\u202egnp.exe\u2066",
    "markup": "[bold red]x[/bold red] :smile:",
    "wide": "模型.层",
}


# What a drawing is made of; where its parts stand depends on the width of its labels.
DRAWN = {"svg", "g", "path", "defs", "style", "use", "text", "tspan", "rect", "line", "image"}
DRAWN |= {"clippath", "title", "lineargradient", "stop"}
# A text to paste has one of them for each of its lines.
LINES = [[("class", name)] for name in ("same", "added", "gone")]


class Skeleton(HTMLParser):
    """Everything of a page but its text and what its drawings hold."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[object] = []
        self._drawing = False
        self._lines = 0  # lines of a text to paste that are open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._drawing:
            assert tag in DRAWN
            assert not any(name.startswith("on") for name, _ in attrs)
            return
        self._drawing = tag == "svg"
        if tag == "span" and attrs in LINES:
            self._lines += 1
            return
        self.parts.append((tag, [] if self._drawing else attrs))

    def handle_endtag(self, tag: str) -> None:
        if tag == "span" and self._lines:
            self._lines -= 1
        elif not self._drawing:
            self.parts.append(tag)
        self._drawing = self._drawing and tag != "svg"


def skeleton(page: str) -> list[object]:
    parser = Skeleton()
    parser.feed(page)
    return [part for part in parser.parts if part not in (("code", []), "code")]


def poisoned(base: Diagnosis, text: str) -> Diagnosis:
    """The overflow sample with ``text`` wherever a user's own string can stand."""
    line = SourceLine(text, 1, text, text)
    finding = base.findings[0]
    assert finding.site
    site = replace(finding.site, module_path=text, module_class=text, source=line, caller=line)
    finding = replace(
        finding,
        what=f"`{text}` output reaches 1.84e5",
        cause=text,
        advice=text,
        site=site,
        cause_site=site,
        chain=(site, site),
        repeats=(site,),
    )
    remedy = replace(base.prescriptions[0].remedy, title=text, change=text, target=(text,))
    outcome = Outcome(OutcomeKind.RAISED, 1, text, text, line, site)
    return replace(
        base,
        run=replace(base.run, script=text, argv=(text, text), device=text, outcome=outcome),
        findings=(finding,),
        prescriptions=(replace(base.prescriptions[0], remedy=remedy),),
        ranges=(replace(base.ranges[0], module_path=text, module_class=text),),
        warnings=(Caution("slug", text),),
        context=(SourceContext(text, 1, 1, (text, text)),),
    )


@pytest.fixture
def base(hand_made: HandMade) -> Diagnosis:
    return hand_made["overflow"]()


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_leaves_the_page_as_it_is(text: str, base: Diagnosis) -> None:
    page = render_html(poisoned(base, text))
    assert skeleton(page) == skeleton(render_html(poisoned(base, "plain")))
    page.encode("utf-8")


@pytest.mark.parametrize("name", ["script", "style", "template", "quotes", "markup", "wide"])
def test_printable_hostile_text_is_shown_as_written(name: str, base: Diagnosis) -> None:
    page = render_html(poisoned(base, HOSTILE[name]))
    assert HOSTILE[name] in html.unescape(page)
    assert HOSTILE[name] in terminal(poisoned(base, HOSTILE[name]), width=10**6)


def terminal(diagnosis: Diagnosis, width: int = 100, *, verbose: bool = True) -> str:
    return render_terminal(diagnosis, color=False, width=width, outputs=None, verbose=verbose)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_neither_moves_the_cursor_nor_fakes_a_line(text: str, base: Diagnosis) -> None:
    shown = terminal(poisoned(base, text), width=10**6)
    assert shown.replace("\n", "").replace("\u00a0", " ").isprintable()
    heads = [line for line in shown.splitlines() if line.startswith("error")]
    assert len(heads) == 1
    assert heads[0].startswith("error FD101 ")


def test_an_endless_name_does_not_flood_the_terminal(base: Diagnosis) -> None:
    assert len(terminal(poisoned(base, HOSTILE["long"]), verbose=False)) < 12_000
    assert HOSTILE["long"] in render_html(poisoned(base, HOSTILE["long"]))


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_survives_json(text: str, base: Diagnosis) -> None:
    diagnosis = poisoned(base, text)
    back = from_json(to_json(diagnosis))
    assert render_html(back) == render_html(diagnosis)
    assert back.run == diagnosis.run


def test_backticks_make_code_and_nothing_else(base: Diagnosis) -> None:
    page = render_html(poisoned(base, "`<b>`"))
    assert "<b>" not in page
    assert "<code>&lt;b&gt;</code>" in page
