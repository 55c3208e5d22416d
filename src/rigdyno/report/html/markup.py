"""Build HTML that is safe by construction: every text is escaped, and only `tag` makes markup.

Texts from a run folder are untrusted: labels, reasons, file names. They never pass unescaped, never become an attribute
that runs or loads something, and characters that would change how the page reads are written as their codes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Final

VOID: Final = frozenset(("meta", "br", "col"))

_NAME = re.compile(r"[a-z][a-zA-Z0-9]*")

_ATTRIBUTE = re.compile(r"[a-z][a-zA-Z0-9-]*")

# Attributes that run scripts, set styles or load something; the policy of the page forbids these too.
_FORBIDDEN = re.compile(r"on.*|style|src|srcset|srcdoc|action|formaction|ping|background|poster")

_HREF = re.compile(r"#[A-Za-z][\w-]*")

# Control characters, marks that change the reading direction, separators that break lines in scripts, surrogates.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff\U000e0000-\U000e007f]"
)


class Markup(str):
    """Text that is markup. Only this module converts text to it."""

    __slots__ = ()


Child = str | Markup | None | Iterable["Child"]

Value = str | int | float | bool | None


def escape_text(words: str) -> Markup:
    return Markup(escape(spell_invisible(words), quote=True))


def spell_invisible(words: str) -> str:
    """Replace invisible characters by their codes."""
    return _INVISIBLE.sub(_spell_character, words)


def _spell_character(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def tag(name: str, /, *children: Child, **attributes: Value) -> Markup:
    """Return an element. Attributes are Python names: `class_`, `aria_label`; None and False leave one out."""
    if not _NAME.fullmatch(name) or name == "script":
        raise ValueError(f"no element may be called {name!r}")
    opening = f"<{name}{''.join(_render_attribute(key, value) for key, value in attributes.items())}>"
    return Markup(opening if name in VOID else f"{opening}{join_markup(children)}</{name}>")


def join_markup(children: Iterable[Child]) -> Markup:
    return Markup("".join(_render_child(child) for child in children))


def _render_child(child: Child) -> str:
    if child is None or isinstance(child, Markup):
        return child or ""
    return escape_text(child) if isinstance(child, str) else join_markup(child)


def _render_attribute(key: str, value: Value) -> str:
    name = key.rstrip("_").replace("_", "-")
    if not _ATTRIBUTE.fullmatch(name) or _FORBIDDEN.fullmatch(name):
        raise ValueError(f"no attribute may be called {name!r}")
    if value is None or value is False:
        return ""
    if name == "href" and not _HREF.fullmatch(str(value)):
        raise ValueError("a link stays on the page")
    return f" {name}" if value is True else f' {name}="{escape_text(str(value))}"'


def document(language: str, head: Markup, body: Markup) -> str:
    return (
        f'<!doctype html>\n<html lang="{escape_text(language)}">\n<head>{head}</head>\n<body>{body}</body>\n</html>\n'
    )


def embed_code(name: str, code: str) -> Markup:
    """Return the style or script of the page itself, which never contains text of a run."""
    if f"</{name}" in code.lower() or "<!--" in code:
        raise ValueError(f"the page's own {name} must not end early")
    return Markup(f"<{name}>{code}</{name}>")
