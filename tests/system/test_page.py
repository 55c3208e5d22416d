"""Tests of the page in a real browser: it loads nothing, cuts no text, and can be used without a mouse."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from chromium import Chromium

from driving import here
from figures_of_every_kind import EVERY
from hostile_run import hostile_run
from rigdyno.report.formats.html import render
from rigdyno.report.text import Page
from rigdyno.schema.record import Failed
from rigdyno.schema.view import View
from rigdyno.store.campaign import CampaignFolder, CampaignHead, LeftOut, SuiteRun
from stored_duels import stored_duel, stored_suite
from stored_runs import made_up_rank, stored_ranks, stored_run
from support import NOW

AXE = Path(os.environ.get("RIGDYNO_AXE", Path(__file__).parents[2] / ".venv/axe/node_modules/axe-core/axe.min.js"))
PHASES_MS = {"data": 1, "forward": 20, "backward": 60, "communication": 10, "optimizer": 5}
BROKEN = Failed(kind="exception", phase="measure", message="ValueError: the batch is empty")
WIDTHS = (360, 1440)
NAMES = ("suite", "scaling", "duel", "two", "hostile", "failed", "campaign")

# Words that stick out of the window, or of a box that hides what sticks out.
CUT = """
(() => {
  const found = [], wide = document.documentElement.clientWidth;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, above = node.parentElement;
    if (!node.data.trim() || above.closest('.skip, script, title, [hidden]') || !above.checkVisibility()) continue;
    if (getComputedStyle(above.closest('thead') || above).clipPath !== 'none') continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      if (box.left < -0.5 || box.right > wide + 0.5) found.push([node.data.slice(0, 40), box.left, box.right]);
    }
    for (let each = above; each; each = each.parentElement) {
      const hides = /hidden|clip/.test(getComputedStyle(each).overflowX);
      if (hides && each.scrollWidth > each.clientWidth + 1) found.push([node.data.slice(0, 40)]);
    }
  }
  return found;
})()
"""

# Whatever a click or a focus has queued has run by the second frame.
TWO_FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if shutil.which("chromium") is None:
        pytest.skip("there is no chromium")
    found = Chromium(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Render each page once; return the files by name."""
    root = tmp_path_factory.mktemp("pages")
    runs = {
        "suite": [stored_suite(root, [1.001, 0.999, 1.0, 1.002])],
        "scaling": [stored_ranks(root, [made_up_rank(**PHASES_MS)] * 2, suite="scaling")],
        "duel": [stored_duel(root, [0.95, 0.951, 0.949, 0.95, 0.952, 0.948])],
        "two": [stored_run(root, "old", [20.0, 20.1, 19.9]), stored_run(root, "new", [25.0, 25.1, 24.9])],
        "hostile": [hostile_run(root)],
        "failed": [stored_run(root, "failed", [20.0], outcome=BROKEN)],
        "campaign": [stored_campaign(root)],
    }
    for name, paths in runs.items():
        answer = here("report", *map(str, paths), "--html", f"{name}.html", cwd=root)
        assert answer.returncode == 0, answer.stderr
    return {name: root / f"{name}.html" for name in runs}


def stored_campaign(root):
    """Store a campaign of one suite that ran and one that can't run."""
    folder = CampaignFolder.create(root, "all", NOW)
    run = stored_suite(folder.path, [1.001, 0.999, 1.0, 1.002])
    left_out = LeftOut(suite="privacy", reason="opacus is not installed; try pip install 'rigdyno[peers]'")
    head = CampaignHead(
        rigdyno_version="0.1.0", created_at="2026-01-02T03:04:05+00:00", label="my box", rig="Test CPU, 2 cores",
        budget_seconds=900.0, runs=(SuiteRun(suite="device", run=run.name, seconds=60.0),), left_out=(left_out,),
    )  # fmt: skip
    folder.write_head(head)
    return folder.path


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_the_page_makes_no_request_and_cuts_no_text(browser, pages, name, width):
    browser.open(pages[name], width=width)
    browser.ask("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    assert browser.ask("document.scrollingElement.scrollWidth") <= width
    assert browser.ask(CUT) == []
    assert browser.requests() == [pages[name].as_uri()]
    assert browser.complaints() == []


@pytest.mark.parametrize(("name", "dark"), [*((name, False) for name in NAMES), ("two", True), ("hostile", True)])
def test_axe_finds_no_violation(browser, pages, name, dark):
    browser.open(pages[name], width=1440, dark=dark)
    browser.ask("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    assert barriers(browser) == []


def barriers(browser):
    """Return the violations that axe finds, after checking that it has looked at the page."""
    browser.ask(AXE.read_text(encoding="utf-8") + "; null")
    wrong = "r.violations.map(v => [v.id, v.impact, v.nodes[0].html])"
    found = browser.ask(f"axe.run().then(r => ({{passed: r.passes.length, wrong: {wrong}}}))")
    assert found["passed"] > 10
    return found["wrong"]


def test_a_hostile_run_does_nothing_when_it_is_used(browser, pages):
    """Pointing, focusing, sorting and printing cause no dialog, no request and no message."""
    browser.open(pages["hostile"], width=1440)
    for x in range(150, 1300, 90):
        for y in range(100, 900, 90):
            browser.point(x, y)
    browser.ask("document.querySelectorAll('[tabindex]').forEach(each => { each.focus(); })")
    browser.ask("document.querySelectorAll('button, summary').forEach(each => { each.click(); })")
    browser.call("Page.printToPDF")
    browser.ask(TWO_FRAMES)
    assert browser.requests() == [pages["hostile"].as_uri()]
    assert browser.complaints() == []
    assert browser.ask("document.querySelectorAll('main script, main img, main iframe, main style').length") == 0


def focused(browser):
    return browser.ask("document.activeElement.textContent.trim()")


def first_column(browser):
    return browser.ask("[...document.querySelector('tbody').rows].map(row => row.cells[0].textContent)")


def test_tables_are_sorted_with_the_keyboard(browser, pages):
    browser.open(pages["duel"], width=1440)
    before = first_column(browser)
    for _ in range(20):
        browser.press("Tab")
        if focused(browser) == "change from A to B":
            break
    assert browser.ask("getComputedStyle(document.activeElement).outlineStyle") != "none"
    orders = []
    for expected in ("descending", "ascending", None):
        browser.press("Enter")
        header = "document.activeElement.closest('th')"
        assert browser.ask(f"{header}.getAttribute('aria-sort')") == expected
        orders.append(first_column(browser))
    assert (orders[0][0], orders[0][-1]) == (orders[1][-1], orders[1][0]) == ("pair 5", "pair 6")  # 0.952, 0.948
    assert orders[2] == before


def test_tips_open_by_keyboard_and_close_with_escape(browser, pages):
    browser.open(pages["duel"], width=1440)
    tip = "document.getElementById('tip')"
    for _ in range(30):
        browser.press("Tab")
        if browser.ask("document.activeElement.dataset.tip !== undefined"):
            break
    first = browser.ask(f"{tip}.textContent")
    assert browser.ask(f"{tip}.hidden") is False
    assert "n = " in first
    assert browser.ask("document.activeElement.getAttribute('aria-describedby')") == "tip"
    browser.press("ArrowRight")
    assert browser.ask(f"{tip}.textContent") != first
    browser.press("Escape")
    assert browser.ask(f"{tip}.hidden") is True
    browser.press("ArrowLeft")
    assert browser.ask(f"{tip}.textContent") == first
    browser.press("Tab")
    assert browser.ask("document.activeElement.closest('table')") is None  # a table is one stop


def test_tips_stay_inside_the_window(browser, pages):
    browser.open(pages["scaling"], width=360)
    box = browser.ask(
        """[...document.querySelectorAll('[data-tip]')].map(mark => {
             mark.focus(); const box = document.getElementById('tip').getBoundingClientRect();
             return [box.left, box.right, box.width] })"""
    )
    assert len(box) > 20
    assert all(left >= 0 and right <= 360 and wide > 0 for left, right, wide in box)


def test_the_page_is_readable_without_scripts(browser, pages):
    browser.open(pages["suite"], width=360, scripts=False)
    text = browser.call("DOM.getDocument", depth=-1)["root"]
    words = " ".join(_texts(text))
    assert "tensor add, as published" in words
    assert "sha256" in words
    assert browser.complaints() == []


def _texts(node):
    if node["nodeName"] in ("SCRIPT", "STYLE"):
        return
    if node.get("nodeValue"):
        yield node["nodeValue"]
    for child in node.get("children", ()):
        yield from _texts(child)


def test_folded_sections_are_printed(browser, pages):
    browser.open(pages["suite"], width=1000, media="print")
    folded = "[...document.querySelectorAll('details.folded')].map(each => each.lastElementChild.checkVisibility())"
    assert browser.ask(folded) == [True, True]
    browser.open(pages["suite"], width=1000)
    assert browser.ask(folded) == [False, False]


def test_dark_mode_follows_the_readers_preference(browser, pages):
    colours = []
    for dark in (False, True):
        browser.open(pages["suite"], width=1440, dark=dark)
        colours.append(browser.ask("getComputedStyle(document.body).backgroundColor"))
    assert colours == ["rgb(255, 255, 255)", "rgb(18, 22, 27)"]


# Finds marks whose middle is outside their plot, and words that stick out of their drawing.
OUTSIDE = r"""
(() => {
  const found = [], frame = /^M0,0h[1-9][\d.]*v[1-9][\d.]*h-[\d.]+Z$/;
  const isFrame = each => frame.test(each.getAttribute('d') || '') && each.getAttribute('role') !== 'img';
  const sticksOut = (box, whole, by) => box.left < whole.left - by || box.right > whole.right + by
    || box.top < whole.top - by || box.bottom > whole.bottom + by;
  for (const svg of document.querySelectorAll('svg')) {
    if (!svg.checkVisibility()) continue;
    for (const text of svg.querySelectorAll('text')) {
      const words = text.textContent.trim();
      const box = text.getBoundingClientRect();
      if (words && sticksOut(box, svg.getBoundingClientRect(), 1.5)) found.push(['out', words]);
      if (words.includes('\u2026')) found.push(['cut', words]);
    }
    for (const mark of svg.querySelectorAll('[role=img]')) {
      let plot = null;
      for (let group = mark.parentElement; group !== svg && !plot; group = group.parentElement) {
        plot = [...group.children].find(isFrame);
      }
      const box = mark.getBoundingClientRect();
      const middle = new DOMRect((box.left + box.right) / 2, (box.top + box.bottom) / 2, 0, 0);
      const outside = !plot || sticksOut(middle, plot.getBoundingClientRect(), 1);
      if (outside) found.push(['mark', mark.getAttribute('aria-label')]);
    }
  }
  return found;
})()
"""


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory):
    """Render a page with a figure of every kind."""
    file = tmp_path_factory.mktemp("figures") / "figures.html"
    file.write_text(render(View(title="Every kind", figures=tuple(EVERY.values())), Page()), encoding="utf-8")
    return file


@pytest.mark.parametrize("width", WIDTHS)
def test_marks_are_inside_their_axes_and_words_inside_their_drawings(browser, every_kind, width):
    browser.open(every_kind, width=width)
    assert browser.ask("[...document.querySelectorAll('svg')].filter(each => each.checkVisibility()).length") == 10
    assert browser.ask(OUTSIDE) == []
    assert browser.ask("document.scrollingElement.scrollWidth") <= width
    assert browser.ask(CUT) == []
    assert browser.complaints() == []


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_no_violation_in_figures(browser, every_kind, dark):
    browser.open(every_kind, width=1440, dark=dark)
    assert barriers(browser) == []


def test_drawings_follow_light_and_dark(browser, every_kind):
    """The greys and the colours of marks differ between the light and the dark page."""
    seen = []
    for dark in (False, True):
        browser.open(every_kind, width=1440, dark=dark)
        seen.append(browser.ask("getComputedStyle(document.querySelector('svg text')).fill"))
        seen.append(browser.ask("getComputedStyle(document.querySelector('svg [role=img]')).fill"))
    assert len(set(seen)) == 4


def test_a_tip_is_shown_on_hover_and_on_focus(browser, every_kind):
    browser.open(every_kind, width=1440)
    mark = "[...document.querySelectorAll('svg')].find(each => each.checkVisibility()).querySelector('[role=img]')"
    label = browser.ask(f"{mark}.scrollIntoView({{block: 'center'}}), {mark}.getAttribute('aria-label')")
    box = browser.ask(f"(box => [box.left + box.width / 2, box.top + box.height / 2])({mark}.getBoundingClientRect())")
    browser.point(*box)
    assert browser.ask("document.getElementById('tip').textContent") == label
    browser.point(5, 5)
    assert browser.ask("document.getElementById('tip').hidden") is True
    browser.ask(f"{mark}.focus()")
    assert browser.ask("document.getElementById('tip').textContent") == label
    browser.press("End")
    assert browser.ask("document.getElementById('tip').textContent") != label
