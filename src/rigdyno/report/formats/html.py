"""The report as one page that opens without a network: tables, figures, and what stands behind them."""

from __future__ import annotations

from rigdyno.report.formats._html.answer import Chapter
from rigdyno.report.formats._html.whole import page_of_chapters
from rigdyno.report.page import Page
from rigdyno.schema.view import View


def render(view: View, _page: Page) -> str:
    return page_of_chapters([Chapter(view)])
