"""The table of all verdict rules is complete, and docs/measuring.md shows it."""

import os
import re
from pathlib import Path

import rigdyno
from rigdyno.analyse.validity.rules import RULES
from rigdyno.analyse.validity.thresholds import VERDICT_RULES, markdown_table

DOCS = Path(__file__).parents[4] / "docs" / "measuring.md"


def test_every_rule_is_in_the_table():
    assert set(RULES) <= set(VERDICT_RULES)


def test_every_code_of_a_finding_is_in_the_table_and_no_other():
    sources = [path.read_text() for path in Path(rigdyno.__file__).parent.rglob("analyse/**/*.py")]
    found = {code for source in sources for code in re.findall(r'Finding\(\s*"[A-Z]+",\s*"(\w+)"', source)}
    assert found | set(RULES) == set(VERDICT_RULES)


def test_the_documentation_shows_the_table():
    text = DOCS.read_text(encoding="utf-8")
    shown = re.search(r"\| reason \| SUSPECT \| INVALID \|\n(?:\|.*\n)+", text)
    if os.environ.get("UPDATE_GOLDEN"):
        DOCS.write_text(text.replace(shown[0], markdown_table() + "\n"), encoding="utf-8")
    else:
        assert shown[0] == markdown_table() + "\n"
