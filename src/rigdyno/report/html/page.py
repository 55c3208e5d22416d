"""Build the whole HTML document: security policy, style, script and chapters."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from rigdyno import __version__
from rigdyno.report.drawing.style import COLOURS
from rigdyno.report.html.chapter import Chapter, ChapterPosition, render_campaign_card, render_chapter, render_runs_card
from rigdyno.report.html.markup import Markup, document, embed_code, join_markup, tag
from rigdyno.schema.view import View

# Colours of figures that are colours of the page, by their names there.
PAGE_COLOURS = {"ink": "ink", "muted": "soft", "grid": "line", "paper": "paper"}


def render_page(chapters: Sequence[Chapter], comparisons: Sequence[Chapter] = (), card: View | None = None) -> str:
    """Return the page: a single chapter, or several after a card with an entry for each and their comparisons."""
    alone = len(chapters) == 1 and card is None
    title = card.title if card else chapters[0].view.title if alone else f"{len(chapters)} runs side by side"
    inside = (
        [render_chapter(chapters[0], ChapterPosition())]
        if alone
        else _render_several(title, chapters, comparisons, card)
    )
    body = [
        tag("a", "To the answer", href="#main", class_="skip"),
        tag("main", inside, id="main"),
        _render_footer(),
        embed_code("script", _read_asset("script.js")),
    ]
    return document("en", _render_head(title), join_markup(body))


def _render_several(
    title: str, chapters: Sequence[Chapter], comparisons: Sequence[Chapter], card: View | None
) -> list[Markup | None]:
    positioned = [(each, ChapterPosition(f"run{number}", level=2)) for number, each in enumerate(chapters, 1)]
    compared = [(each, ChapterPosition(f"comparison{number}", level=2)) for number, each in enumerate(comparisons, 1)]
    anchors = [(position.anchor, each) for each, position in positioned]
    return [
        tag("header", tag("h1", title), [tag("p", rig, class_="rig-line") for rig in (card.rigs if card else ())]),
        render_campaign_card(card, anchors) if card else render_runs_card(anchors),
        *(render_chapter(each, position) for each, position in (*compared, *positioned)),
    ]


def _render_head(title: str) -> Markup:
    style, script = _read_asset("style.css") + _define_figure_colours(), _read_asset("script.js")
    # Nothing is loaded, and only these two can run or set styles: text of a run that got past all escaping would still
    # do nothing.
    policy = (
        f"default-src 'none'; script-src '{_hash_code(script)}'; style-src '{_hash_code(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return join_markup(
        (
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=policy),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("meta", name="generator", content=f"Rigdyno {__version__}"),
            tag("meta", name="referrer", content="no-referrer"),
            tag("title", f"{title} · Rigdyno"),
            embed_code("style", style),
        )
    )


def _define_figure_colours() -> str:
    """Define the colours of drawings for a light and a dark background; printing uses the light ones."""
    named = {name: pair for name, pair in COLOURS.items() if name not in PAGE_COLOURS}
    light, dark = ("".join(f"--figure-{name}: {pair[i]}; " for name, pair in named.items()) for i in (0, 1))
    own = "".join(f"--figure-{name}: var(--{own}); " for name, own in PAGE_COLOURS.items())
    return f":root {{ {own}{light}}}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n"


@cache
def _read_asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _hash_code(code: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()


def _render_footer() -> Markup:
    return tag("footer", tag("p", f"Made by Rigdyno {__version__}. This page is complete: it loads nothing."))
