"""Test the HTML builder: every text is escaped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reading_pages import read
from rigdyno.report.html.markup import Markup, embed_code, escape_text, join_markup, spell_invisible, tag


def test_texts_and_attributes_are_escaped():
    made = tag("p", "a < b & c", title='say "it\'s" <so>')
    assert made == '<p title="say &quot;it&#x27;s&quot; &lt;so&gt;">a &lt; b &amp; c</p>'


def test_markup_is_not_escaped_twice_and_none_is_left_out():
    made = tag("ul", [tag("li", word) for word in ("a", "b")], None, tag("br"))
    assert made == "<ul><li>a</li><li>b</li><br></ul>"
    assert isinstance(join_markup((made, "x")), Markup)


def test_attributes_that_are_none_or_false_are_left_out():
    assert tag("th", "x", class_="num", data_sort=None, hidden=False, open=True) == '<th class="num" open>x</th>'


@pytest.mark.parametrize("name", ["onclick", "onload", "style", "src", "srcdoc", "formaction", "ping", "srcset"])
def test_attributes_that_run_or_load_something_are_rejected(name):
    with pytest.raises(ValueError, match="no attribute"):
        tag("p", "x", **{name: "alert(1)"})


@pytest.mark.parametrize("href", ["javascript:alert(1)", "https://example.org", "//example.org", "x", "#", "# x", ""])
def test_a_link_to_another_page_is_rejected(href):
    with pytest.raises(ValueError, match="stays on the page"):
        tag("a", "x", href=href)
    assert tag("a", "x", href="#run-reasons")


@pytest.mark.parametrize("name", ["script", "p onload", "p>", "", "P"])
def test_invalid_and_script_elements_are_rejected(name):
    with pytest.raises(ValueError, match="no element"):
        tag(name, "x")


def test_an_attribute_name_with_markup_is_rejected():
    with pytest.raises(ValueError, match="no attribute"):
        tag("p", "x", **{"x onload": "alert(1)"})


def test_embedded_code_with_an_end_tag_is_rejected():
    with pytest.raises(ValueError, match="end early"):
        embed_code("script", "'</SCRIPT>'")
    with pytest.raises(ValueError, match="end early"):
        embed_code("style", "<!--")


@pytest.mark.parametrize("sign", ["\u202e", "\u2028", "\x00", "\x1b", "\ud800", "\ufeff", "\u200f", "\U000e0041"])
def test_invisible_characters_are_shown_as_codes(sign):
    shown = escape_text(f"a{sign}b")
    assert sign not in shown
    assert shown.startswith("a\\")
    assert shown.encode("utf-8")


def test_other_writing_systems_are_unchanged():
    words = "Größe שלום مرحبا 数 \N{WOMAN}\u200d\N{PERSONAL COMPUTER}"
    assert escape_text(words) == words


@given(st.text(), st.text())
def test_a_parser_reads_any_text_back(words, title):
    element = read(tag("p", words, title=title)).one()
    assert element.name == "p"
    assert element.text() == spell_invisible(words)
    assert element.attributes == {"title": spell_invisible(title)}
