"""Render a view as one JSON document; docs/view.schema.json describes it."""

from __future__ import annotations

import msgspec

from rigdyno.report.text import Page
from rigdyno.schema.view import View


def render(view: View, _page: Page) -> str:
    return msgspec.json.format(msgspec.json.encode(view), indent=2).decode() + "\n"
