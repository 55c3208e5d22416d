"""Render a view as one HTML page that needs no network: tables, figures, and the evidence behind them."""

from __future__ import annotations

from rigdyno.report.html.chapter import Chapter
from rigdyno.report.html.page import render_page
from rigdyno.report.text import Page
from rigdyno.schema.view import View


def render(view: View, _page: Page) -> str:
    return render_page([Chapter(view)])
