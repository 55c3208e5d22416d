"""Test output on a real pseudo-terminal: bars, colours and widths."""

import re

import pytest

from driving import ANY_CODE, in_terminal

COLOUR = re.compile(r"\x1b\[[0-9;]*[1-9][0-9;]*m")  # a reset alone is no colour
LIVE = r"[\d,.]+ step/s, [\d.]+ s left"
STEP = """
import time
from pathlib import Path

def step():
    # Keep running, slowly, until the bar has shown a live figure.
    time.sleep(0.002 if Path("seen").exists() else 0.1)
"""


def run_until_seen(folder, **changes):
    """Run a step that ends soon after the terminal has shown its rate."""
    (folder / "train.py").write_text(STEP)
    command = ("run", "train.py:step", "--budget", "60s", "--steps", "100")
    return in_terminal(*command, cwd=folder, pattern=LIVE, react=lambda pid: (folder / "seen").touch(), **changes)


@pytest.fixture(scope="module")
def coloured(tmp_path_factory):
    return run_until_seen(tmp_path_factory.mktemp("coloured"))


@pytest.fixture(scope="module")
def uncoloured(tmp_path_factory):
    return run_until_seen(tmp_path_factory.mktemp("uncoloured"), NO_COLOR="1")


def list_shown_lines(text: str) -> list[str]:
    """Return the lines on the screen; each part of a line that was overwritten counts as one."""
    return [part for line in text.split("\n") for part in ANY_CODE.sub("", line).split("\r")]


def test_the_bar_shows_live_figures_and_restores_the_cursor(coloured):
    assert coloured.code == 0, coloured.text
    assert "1/1 train.step" in coloured.text
    assert re.search(LIVE, ANY_CODE.sub("", coloured.text))
    assert "\x1b[?25l" in coloured.text  # the cursor is hidden while the bar is drawn ...
    assert coloured.text.rindex("\x1b[?25h") > coloured.text.rindex("\x1b[?25l")  # ... and shown again


def test_no_color_disables_colours(coloured, uncoloured):
    assert COLOUR.search(coloured.text)
    assert uncoloured.code == 0, uncoloured.text
    assert COLOUR.findall(uncoloured.text) == []
    assert "1/1 train.step" in uncoloured.text


@pytest.mark.parametrize("screen", ["coloured", "uncoloured"])
def test_no_line_is_wider_than_the_terminal(screen, request):
    lines = list_shown_lines(request.getfixturevalue(screen).text)
    assert [line for line in lines if len(line) > 80] == []


def test_a_dumb_terminal_gets_no_codes(tmp_path):
    screen = in_terminal("list", cwd=tmp_path, TERM="dumb")
    assert screen.code == 0
    assert "\x1b" not in screen.text


@pytest.mark.parametrize(
    ("columns", "arguments"),
    [(60, ("list",)), (60, ("leaderboard", "device")), (80, ("--help",)), (80, ("run", "--help"))],
)
def test_output_fits_narrow_terminals(arguments, columns, tmp_path):
    screen = in_terminal(*arguments, cwd=tmp_path, columns=columns)
    assert screen.code == 0
    assert [line for line in list_shown_lines(screen.text) if len(line) > columns] == []


def test_a_dry_run_fits_80_columns_and_writes_nothing(tmp_path):
    screen = in_terminal("run", "device", "--dry-run", cwd=tmp_path)
    assert screen.code == 0
    assert "disk: about" in screen.text
    assert [line for line in list_shown_lines(screen.text) if len(line) > 80] == []
    assert list(tmp_path.iterdir()) == []
