"""Parse a page like a browser, for tests that check its markup."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

from rigdyno import __version__

VOID = {"meta", "br", "col"}


@dataclass
class Element:
    name: str
    attributes: dict[str, str | None]
    children: list[Element | str] = field(default_factory=list)

    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text() for child in self.children)

    def all(self, name: str | None = None, **wanted: str) -> Iterator[Element]:
        """Below it, in the page's order; `class_` has one of its classes."""
        for child in self.children:
            if isinstance(child, Element):
                if (name is None or child.name == name) and all(child.has(key, value) for key, value in wanted.items()):
                    yield child
                yield from child.all(name, **wanted)

    def has(self, key: str, value: str) -> bool:
        found = self.attributes.get(key.rstrip("_").replace("_", "-")) or ""
        return value in found.split() if key == "class_" else found == value

    def one(self, name: str | None = None, **wanted: str) -> Element:
        (found,) = self.all(name, **wanted)
        return found


class Reader(HTMLParser):
    """A parser that fails on elements that aren't closed in order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self._open = [self.root]

    def handle_starttag(self, tag, attrs):
        element = Element(tag, dict(attrs))
        assert len(element.attributes) == len(attrs), f"<{tag}> has an attribute twice"
        self._open[-1].children.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag, attrs):
        self._open[-1].children.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open[-1].name == tag, f"</{tag}> closes <{self._open[-1].name}>"
        self._open.pop()

    def handle_data(self, data):
        self._open[-1].children.append(data)

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data!r}")


def read(page: str) -> Element:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader._open == [reader.root]
    return reader.root


def without_code(page: str) -> str:
    """Return the page line by line, without its style, its script and their hashes."""
    bare = re.sub(r"<(style|script)>.*?</\1>", r"<\1></\1>", page, flags=re.DOTALL)
    bare = re.sub(r"sha256-[A-Za-z0-9+/=]+", "sha256-...", bare).replace(__version__, "...")
    return bare.replace("><", ">\n<")
