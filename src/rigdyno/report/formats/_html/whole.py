"""The document: its policy, its style and script, and the chapters."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from rigdyno import __version__
from rigdyno.report.figures._style import NAMED
from rigdyno.report.formats._html.answer import Chapter, campaign_card, runs_card
from rigdyno.report.formats._html.chapter import Place, chapter
from rigdyno.report.formats._html.markup import Markup, document, own_code, tag, together
from rigdyno.schema.view import View

# A figure's colours that are the page's own.
OF_THE_PAGE = {"ink": "ink", "muted": "soft", "grid": "line", "paper": "paper"}


def page_of_chapters(chapters: Sequence[Chapter], comparisons: Sequence[Chapter] = (), card: View | None = None) -> str:
    """One chapter is the page. Several come below a card with a line for each, and what their comparisons say."""
    alone = len(chapters) == 1 and card is None
    title = card.title if card else chapters[0].view.title if alone else f"{len(chapters)} runs side by side"
    inside = [chapter(chapters[0], Place())] if alone else _several(title, chapters, comparisons, card)
    body = [
        tag("a", "To the answer", href="#main", class_="skip"),
        tag("main", inside, id="main"),
        _footer(),
        own_code("script", _own("script.js")),
    ]
    return document("en", _head(title), together(body))


def _several(
    title: str, chapters: Sequence[Chapter], comparisons: Sequence[Chapter], card: View | None
) -> list[Markup | None]:
    placed = [(each, Place(f"run{number}", level=2)) for number, each in enumerate(chapters, 1)]
    against = [(each, Place(f"comparison{number}", level=2)) for number, each in enumerate(comparisons, 1)]
    anchors = [(place.anchor, each) for each, place in placed]
    return [
        tag("header", tag("h1", title), [tag("p", rig, class_="rig-line") for rig in (card.rigs if card else ())]),
        campaign_card(card, anchors) if card else runs_card(anchors),
        *(chapter(each, place) for each, place in (*against, *placed)),
    ]


def _head(title: str) -> Markup:
    style, script = _own("style.css") + _figure_colours(), _own("script.js")
    # Nothing is loaded, and nothing runs or styles but these two: words of a run that got past everything else would
    # still do nothing.
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return together(
        (
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=policy),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("meta", name="generator", content=f"Rigdyno {__version__}"),
            tag("meta", name="referrer", content="no-referrer"),
            tag("title", f"{title} · Rigdyno"),
            own_code("style", style),
        )
    )


def _figure_colours() -> str:
    """Those of drawings, for a light and for a dark ground; paper prints as the light one."""
    named = {name: pair for name, pair in NAMED.items() if name not in OF_THE_PAGE}
    light, dark = ("".join(f"--figure-{name}: {pair[i]}; " for name, pair in named.items()) for i in (0, 1))
    own = "".join(f"--figure-{name}: var(--{own}); " for name, own in OF_THE_PAGE.items())
    return f":root {{ {own}{light}}}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n"


@cache
def _own(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _hash(code: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()


def _footer() -> Markup:
    return tag("footer", tag("p", f"Made by Rigdyno {__version__}. This page is complete: it loads nothing."))
