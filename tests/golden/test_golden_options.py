"""The table of docs/options.md."""

import re
from pathlib import Path

from golden_files import HOW_TO_UPDATE, UPDATE

from rigdyno.plan.run_options import RUN_OPTIONS, RunOption
from rigdyno.plan.values import TEXT

PAGE = Path(__file__).parents[2] / "docs" / "options.md"
MARKED = re.compile(r"(<!-- The table is made of .*? -->\n)(.*?)(<!-- The end of the table. -->)", re.DOTALL)
TITLES = ("command line", "plan file", "Python", "in a duel", "`run all`", "value", "what it says")
HEAD = f"| {' | '.join(TITLES)} |\n{'|---' * len(TITLES)}|\n"


def table_of(options):
    return HEAD + "".join(f"| {' | '.join(cells(option))} |\n" for option in options)


def cells(option):
    shown = f"{option.flag} {option.metavar}" if option.metavar else option.flag
    arms = [*(["both arms"] if option.in_duel else []), *([f"{code(option.name)} of one"] if option.of_arm else [])]
    return [
        code(shown) if option.has_flag else "its argument" if option.name == "target" else "",
        code(option.name) if option.in_plan else "",
        code(option.python_name) if option.in_python else "",
        ", ".join(arms),
        "yes" if option.in_campaign else "",
        option.kind.words.removesuffix(" in quotes") + bounds(option),
        option.help,
    ]


def code(text):
    return f"`{text}`".replace("|", "\\|")


def bounds(option):
    if option.most is None:
        return "" if option.least is None else f", at least {option.least}"
    most = "2**63 - 1" if option.most == 2**63 - 1 else option.most
    return f", {option.least} to {most}"


def test_the_table_of_options_is_up_to_date():
    text = PAGE.read_text(encoding="utf-8")
    made = MARKED.sub(lambda found: found[1] + table_of(RUN_OPTIONS) + found[3], text)
    if UPDATE:
        PAGE.write_text(made, encoding="utf-8")
        text = made
    assert MARKED.search(text), "docs/options.md has lost the marks around its table"
    assert text == made, HOW_TO_UPDATE


def test_a_new_option_adds_a_line():
    made_up = RunOption(name="nick_name", kind=TEXT, help="What friends call it.", metavar="A|B", of_arm=True)
    line = (
        "| `--nick-name A\\|B` | `nick_name` | `nick_name` | `nick_name` of one |  | text | What friends call it. |\n"
    )
    assert table_of((*RUN_OPTIONS, made_up)).endswith(line)
