"""HTML that is safe by construction: every text becomes text, and only `tag` makes markup.

What comes out of a run folder is somebody's words: a label, a reason, a file's name. It never passes unescaped, never
becomes an attribute that runs or loads something, and signs that would change how the page reads are spelled out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Final

VOID: Final = frozenset(("meta", "br", "col"))
_NAME = re.compile(r"[a-z][a-zA-Z0-9]*")
_ATTRIBUTE = re.compile(r"[a-z][a-zA-Z0-9-]*")
# Those that run scripts or carry style, which the page's policy refuses anyway, or load something.
_FORBIDDEN = re.compile(r"on.*|style|src|srcset|srcdoc|action|formaction|ping|background|poster")
_HREF = re.compile(r"#[A-Za-z][\w-]*")
# Controls, marks that turn the direction of reading, separators that break lines in scripts, halves of characters.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff\U000e0000-\U000e007f]"
)


class Markup(str):
    """Text that is markup already. Only this module makes it of other text."""

    __slots__ = ()


Child = str | Markup | None | Iterable["Child"]
Value = str | int | float | bool | None


def text(words: str) -> Markup:
    return Markup(escape(spelled_out(words), quote=True))


def spelled_out(words: str) -> str:
    """With the code of each sign that nobody sees."""
    return _UNSEEN.sub(_spelled, words)


def _spelled(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def tag(name: str, /, *children: Child, **attributes: Value) -> Markup:
    """An element. Attributes are written as in Python: `class_`, `aria_label`; None and False leave one out."""
    if not _NAME.fullmatch(name) or name == "script":
        raise ValueError(f"no element may be called {name!r}")
    opening = f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    return Markup(opening if name in VOID else f"{opening}{together(children)}</{name}>")


def together(children: Iterable[Child]) -> Markup:
    return Markup("".join(_child(child) for child in children))


def _child(child: Child) -> str:
    if child is None or isinstance(child, Markup):
        return child or ""
    return text(child) if isinstance(child, str) else together(child)


def _attribute(key: str, value: Value) -> str:
    name = key.rstrip("_").replace("_", "-")
    if not _ATTRIBUTE.fullmatch(name) or _FORBIDDEN.fullmatch(name):
        raise ValueError(f"no attribute may be called {name!r}")
    if value is None or value is False:
        return ""
    if name == "href" and not _HREF.fullmatch(str(value)):
        raise ValueError("a link stays on the page")
    return f" {name}" if value is True else f' {name}="{text(str(value))}"'


def document(language: str, head: Markup, body: Markup) -> str:
    return f'<!doctype html>\n<html lang="{text(language)}">\n<head>{head}</head>\n<body>{body}</body>\n</html>\n'


def own_code(name: str, code: str) -> Markup:
    """The page's own style or script, which no word of a run ever enters."""
    if f"</{name}" in code.lower() or "<!--" in code:
        raise ValueError(f"the page's own {name} must not end early")
    return Markup(f"<{name}>{code}</{name}>")
