"""Every sample of every schema version renders, the same way each time, and needs no network."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fp16doctor.report.html import render_html
from fp16doctor.report.terminal import render_terminal
from fp16doctor.schema.codec import load, to_json
from fp16doctor.schema.diagnosis import Diagnosis

FOLDER = Path(__file__).parent.parent / "samples"
# Kept in step with hand_made.SAMPLES by the first test below.
NAMES = [
    "overflow", "logic-nan", "healthy", "healthy-with-warm-up", "raised", "raised-without-finding",
    "never-trained", "unexplained",
]  # fmt: skip
VOID = {"meta", "input"}
ALLOWED = {
    "lang", "charset", "name", "content", "class", "scope", "open", "id", "aria-labelledby",
    "aria-label", "aria-hidden", "role", "tabindex", "hidden", "type", "min", "max", "value",
    "step", "viewbox", "version", "data-column", "data-power", "href", "colspan",
}  # fmt: skip
HandMade = dict[str, Callable[[], Diagnosis]]
Golden = Callable[[str, str], None]


class Structure(HTMLParser):
    """Checks that every tag is closed in order and has no attribute that could load anything."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert tag not in ("link", "img", "iframe", "object", "base", "form")
        values = dict(attrs)
        assert not any(name.startswith("on") for name in values)
        if "svg" not in self.open:
            assert values.keys() <= ALLOWED
        link = values.get("href") or "#"
        assert link.startswith(("#", "data:image/png;base64,"))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def tags(page: str) -> list[str]:
    parser = Structure()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser.tags


def terminal(diagnosis: Diagnosis, *, verbose: bool = False, color: bool = False) -> str:
    return render_terminal(
        diagnosis,
        color=color,
        width=100,
        outputs=("fp16doctor-train.html", "fp16doctor-train.json"),
        verbose=verbose,
    )


def test_the_names_are_those_of_the_hand_made_diagnoses(hand_made: HandMade) -> None:
    assert list(hand_made) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_saved_samples_are_the_hand_made_diagnoses(
    name: str, hand_made: HandMade, golden: Golden
) -> None:
    golden(f"../samples/v1-{name}.json", to_json(hand_made[name]()))


@pytest.mark.parametrize("name", NAMES)
def test_the_terminal_text_is_as_accepted(name: str, hand_made: HandMade, golden: Golden) -> None:
    golden(f"report-{name}.txt", terminal(hand_made[name]()))


def test_the_verbose_text_is_as_accepted(hand_made: HandMade, golden: Golden) -> None:
    golden("report-overflow-verbose.txt", terminal(hand_made["overflow"](), verbose=True))


@pytest.mark.parametrize("name", ["overflow", "never-trained"])
def test_the_page_is_as_accepted(name: str, hand_made: HandMade, golden: Golden) -> None:
    page = render_html(hand_made[name]())
    for tag in ("style", "script", "svg"):  # drawings depend on the version of matplotlib
        page = re.sub(rf"<{tag}\b.*?</{tag}>", f"<{tag}></{tag}>", page, flags=re.DOTALL)
    golden(f"report-{name}.html", page)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_the_reloaded_json_is_byte_equal(name: str, hand_made: HandMade) -> None:
    page = render_html(hand_made[name]())
    assert page == render_html(load(FOLDER / f"v1-{name}.json")) == render_html(hand_made[name]())


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda p: p.stem)
def test_every_sample_renders_without_reference_to_the_outside(path: Path) -> None:
    page = render_html(load(path))
    assert page.startswith("<!DOCTYPE html>\n")
    tags(page)
    for word in ("http", "@import", "src="):
        assert word not in page
    assert set(re.findall(r"url\((.)", page)) <= {"#"}


@pytest.mark.parametrize("name", NAMES)
def test_colour_adds_nothing_but_colour(name: str, hand_made: HandMade) -> None:
    colored = terminal(hand_made[name](), color=True)
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[\d+m", "", colored) == terminal(hand_made[name]())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [1, 40, 200])
def test_every_width_says_the_same(name: str, width: int, hand_made: HandMade) -> None:
    text = render_terminal(hand_made[name](), color=False, width=width, outputs=None, verbose=True)
    wide = render_terminal(hand_made[name](), color=False, width=10**6, outputs=None, verbose=True)
    assert text.split() == wide.split()


FORBIDDEN = re.compile(
    r"\b(I|we|We|bad|unhealthy|unstable|huge|tiny|blow|explode|denormal|whitelist|blacklist)\b|!"
)


@pytest.mark.parametrize("name", NAMES)
def test_the_words_keep_to_the_house_style(name: str, hand_made: HandMade) -> None:
    text = terminal(hand_made[name](), verbose=True) + re.sub(
        r"<style>.*</style>|<!DOCTYPE html>", "", render_html(hand_made[name]()), flags=re.S
    )
    assert FORBIDDEN.findall(text) == []
