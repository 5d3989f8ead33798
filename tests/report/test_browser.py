"""The page in a real browser: slider, copy button, keyboard, contrast, and no request."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fp16doctor.report.explorer import explorer
from fp16doctor.report.html import render_html
from fp16doctor.schema.diagnosis import Diagnosis

HandMade = dict[str, Callable[[], Diagnosis]]
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
OPTIONS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="needs Chromium (Debian: apt install chromium)"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        running = play.chromium.launch(executable_path=BROWSER, args=OPTIONS)
        yield running
        running.close()


@pytest.fixture
def opened(browser: Any, hand_made: HandMade, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens the page of a hand-made diagnosis; what it logs or asks for fails the test."""
    said: list[str] = []
    contexts = []

    def open_page(name: str = "overflow", *, long: bool = False, **options: Any) -> Any:
        path, diagnosis = tmp_path / f"{name}.html", hand_made[name]()
        shown = with_long_paste(diagnosis) if long else diagnosis
        path.write_text(render_html(shown), encoding="utf-8")
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("request", lambda request: _note(said, request.url))
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []


def _note(said: list[str], url: str) -> None:
    if not url.startswith(("file:", "data:")):
        said.append(f"request: {url}")


def test_the_slider_says_what_the_diagnosis_holds(
    opened: Callable[..., Any], hand_made: HandMade
) -> None:
    page, diagnosis = opened(), hand_made["overflow"]()
    view, scales = explorer(diagnosis), diagnosis.gradient_scales
    assert view is not None
    assert scales is not None
    slider = page.get_by_role("slider")
    assert slider.input_value() == str(view.power)
    frame = page.locator("rect.window")
    before = frame.bounding_box()["x"]
    said = []
    slider.focus()
    page.keyboard.press("Home")
    for _ in scales.shares:
        said.append(page.locator(".said").inner_text())
        page.keyboard.press("ArrowRight")
    assert said == [sentence for _, sentence in json.loads(view.data)]
    shares = [[s.overflow, s.subnormal, s.flushed] for s in scales.shares]
    assert [numbers for numbers, _ in json.loads(view.data)] == shares
    assert frame.bounding_box()["x"] < before  # a larger scale moves the frame to smaller numbers


def test_the_copy_button_copies(opened: Callable[..., Any]) -> None:
    page = opened(permissions=["clipboard-read", "clipboard-write"])
    block = page.locator("pre.paste").first
    button = page.get_by_role("button", name="copy").first
    button.focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == block.text_content()
    assert block.text_content().endswith("\n")  # patch asks for a whole last line


def with_long_paste(diagnosis: Diagnosis) -> Diagnosis:
    cure = diagnosis.prescriptions[0]
    text = "\n".join(f"value_{i} = {i}" for i in range(40))
    cure = replace(cure, remedy=replace(cure.remedy, change=text))
    return replace(diagnosis, prescriptions=(cure, *diagnosis.prescriptions[1:]))


def test_a_long_paste_scrolls_in_its_box_and_is_copied_whole(opened: Callable[..., Any]) -> None:
    page = opened(long=True, permissions=["clipboard-read", "clipboard-write"])
    box = page.get_by_role("region", name="code to paste 1")
    assert box.bounding_box()["height"] < 450
    box.focus()
    page.keyboard.press("End")
    page.wait_for_function("document.querySelector('.box').scrollTop > 0")
    page.get_by_role("button", name="copy").first.click()
    page.get_by_role("button", name="copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").endswith("value_39 = 39\n")


def test_on_paper_nothing_is_cut_off(opened: Callable[..., Any]) -> None:
    page = opened(long=True)
    page.emulate_media(media="print")
    fits = "e => e.scrollHeight <= e.clientHeight + 2"
    assert page.locator(".box").evaluate(fits)


def test_a_card_leads_to_its_cure(opened: Callable[..., Any]) -> None:
    page = opened()
    page.locator(".card a").first.click()
    assert page.evaluate("location.hash") == "#cure-1"
    assert page.locator("#cure-1").is_visible()


def test_folds_open_by_keyboard(opened: Callable[..., Any]) -> None:
    page = opened()
    fold = page.query_selector("details:not([open])")
    inside = fold.query_selector(":scope > :nth-child(2)")
    assert not inside.is_visible()
    fold.query_selector("summary").focus()
    page.keyboard.press("Enter")
    assert inside.is_visible()


def test_without_scripts_the_page_says_the_same(opened: Callable[..., Any]) -> None:
    page = opened(java_script_enabled=False)
    assert page.locator(".said").inner_text().startswith("loss scale 2")
    assert not page.get_by_role("slider").is_visible()
    assert page.get_by_role("button").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["overflow", "healthy", "logic-nan"])
def test_the_page_is_accessible(opened: Callable[..., Any], name: str, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = opened(name, color_scheme=scheme, long=name == "overflow")
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_is_no_wider_than_the_screen(opened: Callable[..., Any], width: int) -> None:
    page = opened(viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
