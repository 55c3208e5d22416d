"""The folder for runs is the flag, else the variable, else the configuration file, else ./runs."""

from pathlib import Path

import pytest

from rigdyno.base.errors import BadValue
from rigdyno.store.location import VARIABLE, config_file, runs_root


def configure(text):
    config_file().parent.mkdir(parents=True)
    config_file().write_text(text)


def test_the_flag_wins_over_the_variable_over_the_configuration(monkeypatch):
    assert runs_root() == Path("runs")
    configure('runs = "/from/config"\n')
    assert runs_root() == Path("/from/config")
    monkeypatch.setenv(VARIABLE, "/from/variable")
    assert runs_root() == Path("/from/variable")
    assert runs_root(Path("/from/flag")) == Path("/from/flag")
    monkeypatch.setenv(VARIABLE, "")
    assert runs_root() == Path("/from/config")


def test_the_home_folder_may_be_written_as_a_tilde(monkeypatch):
    monkeypatch.setenv("HOME", "/home/of/somebody")
    configure('runs = "~/bench"\n')
    assert runs_root() == Path("/home/of/somebody/bench")


def test_without_a_configured_folder_the_default_is_used():
    configure("other = 1\n")
    assert runs_root() == Path("runs")


@pytest.mark.parametrize(
    ("text", "says"),
    [("# mine\nruns = 5\n", ":2: 'runs' must be a folder in quotes, not 5"), ('runs = ""\n', ":1: 'runs' must be"),
     ("runs = = 1", "line 1")],
)  # fmt: skip
def test_a_bad_configuration_names_file_and_line(text, says):
    configure(text)
    with pytest.raises(BadValue, match=says) as raised:
        runs_root()
    assert str(config_file()) in str(raised.value)
