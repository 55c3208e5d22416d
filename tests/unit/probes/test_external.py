"""Tests of commands that print watts: configuration, reading without waiting, and their end with the reader."""

import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driving import is_alive, until
from rigdyno.base.errors import BadValue
from rigdyno.probes.external import External, parse_watts, read_meter_config
from support import ManualClock


def config(tmp_path, text):
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


def command(tmp_path, name, *lines):
    script = tmp_path / f"{name}.py"
    script.write_text("\n".join(["import os, sys, time", *lines]))
    return f"{sys.executable} {script}"


@pytest.mark.parametrize(
    ("text", "watts"),
    [
        ("43.5", 43.5),
        ("43,5 W", 43.5),
        ("power: 0.12 kW", 120.0),
        ("2500 mW now", 2.5),
        ("Instantaneous power reading: 224 Watts", 224.0),
        ("1e2", 100.0),
        ("-3 W", -3.0),  # nonsense, but what was printed: it is tagged where all readings are
        ("plug2 off", None),
        ("", None),
    ],
)
def test_the_first_number_of_a_line_is_taken(text, watts):
    assert parse_watts(text) == (None if watts is None else pytest.approx(watts))


@pytest.mark.parametrize(
    ("text", "path", "watts"),
    [
        ('{"apower": 61.2}', "apower", 61.2),
        ('{"meters": [{"power": 5}, {"power": 7}]}', "meters.1.power", 7.0),
        ('{"power": "61.2 W"}', "power", 61.2),
        ('{"power": true}', "power", None),
        ('{"other": 1}', "power", None),
        ("not json", "power", None),
        ("[1]", "5", None),
        ("[1]", "x", None),
    ],
)
def test_a_path_finds_the_number_in_json(text, path, watts):
    assert parse_watts(text, path) == watts


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.text(max_size=60), st.text(max_size=10))
def test_any_text_parses_without_an_error(text, path):
    found = parse_watts(text, path)
    assert found is None or isinstance(found, float)


def test_a_meter_may_be_a_string_or_a_table(tmp_path):
    meters = read_meter_config(
        config(
            tmp_path,
            'meters.plug = "watts --follow"\n'
            'meters.psu = { command = "ipmi", json = "power.watts", every = "2s", scope = "board" }\n',
        )
    )
    assert meters["plug"].words == ["watts", "--follow"]
    assert (meters["psu"].json, meters["psu"].every, meters["psu"].scope) == ("power.watts", "2s", "board")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("meters = 3", "a meter needs a name"),
        ("meters.plug = 3", "config.toml:1: meters.plug"),
        ('meters.plug = ""', "the command is empty"),
        ('meters.plug = "a \'b"', "No closing quotation"),
        ('meters.plug = { command = "x", every = "soon" }', "is not a duration"),
        ('meters.plug = { command = "x", scope = "house" }', "Invalid enum value"),
        ('meters.plug = { command = "x", evry = "1s" }', "evry"),
        ("meters.plug = ", "config.toml"),
    ],
)
def test_a_mistake_in_the_configuration_is_one_line_with_its_place(tmp_path, text, words):
    path = config(tmp_path, text)
    with pytest.raises(BadValue, match=words):
        read_meter_config(path)
    assert words in External(config=path).availability().reason


def test_a_missing_configuration_says_what_to_add(tmp_path):
    path = tmp_path / "config.toml"
    unavailable = External(config=path).availability()
    assert unavailable.fix == f'add to {path}: meters.plug = "COMMAND THAT PRINTS WATTS"'
    config(tmp_path, 'meters.plug = "no-such-command-here"')
    assert "no command 'no-such-command-here'" in External(config=path).availability().reason


def test_a_command_that_keeps_printing_is_kept_open(tmp_path):
    starts = tmp_path / "starts"
    go = tmp_path / "go"
    text = command(
        tmp_path,
        "plug",
        f"open({str(starts)!r}, 'a').write('x')",
        "print('10 W', flush=True)",
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)",
        "print('noise\\n20 W', flush=True)",
        "time.sleep(60)",
    )
    probe = External(config=config(tmp_path, f'meters.plug = "{text}"'))
    (channel,) = probe.open(list)
    assert (channel.scope, channel.extent, channel.title) == ("wall", "whole", "plug")
    try:
        values = []
        until(lambda: values.append(probe.read()[0]) or values[-1] == 10.0)
        assert math.isnan(probe.read()[0])  # nothing new
        go.touch()
        until(lambda: values.append(probe.read()[0]) or values[-1] == 20.0)
        assert starts.read_text() == "x"
    finally:
        probe.close()


def test_a_command_that_ends_is_run_again(tmp_path):
    count = tmp_path / "count"
    text = command(
        tmp_path, "poll", f"open({str(count)!r}, 'a').write('x')", f"print(len(open({str(count)!r}).read()))"
    )
    probe = External(config=config(tmp_path, f'meters.poll = {{ command = "{text}", every = "10ms" }}'))
    probe.open(list)
    try:
        values = []
        until(lambda: values.append(probe.read()[0]) or values[-1] >= 3.0)
    finally:
        probe.close()


def test_a_failing_command_is_tried_less_and_less_often(tmp_path):
    clock, count = ManualClock(), tmp_path / "count"
    text = command(tmp_path, "bad", f"open({str(count)!r}, 'a').write('x')", "sys.exit(1)")
    probe = External(clock, config(tmp_path, f'meters.bad = "{text}"'))
    probe.open(list)
    for tries, wait in ((1, 0.0), (2, 2.0), (3, 4.0)):
        clock.advance(wait)
        until(lambda tries=tries: (probe.read(), count.exists() and len(count.read_text()) == tries)[1])
        until(lambda: probe.read() and probe._commands[0]._reader is None)
        assert all(math.isnan(probe.read()[0]) for _ in range(5))
        assert len(count.read_text()) == tries
    probe.close()


def test_a_killed_reader_leaves_no_command_running(tmp_path):
    pid_file = tmp_path / "pid"
    text = command(tmp_path, "plug", f"open({str(pid_file)!r}, 'w').write(str(os.getpid()))", "time.sleep(600)")
    path = config(tmp_path, f'meters.plug = "{text}"')
    reader = (
        "import time, pathlib\nfrom rigdyno.probes.external import External\n"
        f"probe = External(config=pathlib.Path({str(path)!r}))\nprobe.open(list)\n"
        "while True:\n    probe.read()\n    time.sleep(0.01)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", reader])
    try:
        until(lambda: pid_file.exists() and pid_file.read_text().isdigit())
    finally:
        child.kill()
        child.wait()
    until(lambda: not is_alive(int(pid_file.read_text())))


def test_closing_ends_what_the_command_started(tmp_path):
    pid_file = tmp_path / "pid"
    inner = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    text = command(
        tmp_path,
        "outer",
        "import subprocess",
        f"subprocess.Popen([sys.executable, '-c', {inner!r}])",
        "time.sleep(600)",
    )
    probe = External(config=config(tmp_path, f'meters.plug = "{text}"'))
    probe.open(list)
    until(lambda: (probe.read(), pid_file.exists() and pid_file.read_text().isdigit())[1])
    probe.close()
    until(lambda: not is_alive(int(pid_file.read_text())))


def test_a_document_of_many_lines_is_read_once_the_command_ends(tmp_path):
    text = command(tmp_path, "pretty", "import json", "print(json.dumps({'psu': [{'watts': 61.5}]}, indent=2))")
    line = f'meters.psu = {{ command = "{text}", json = "psu.0.watts", every = "10ms" }}'
    probe = External(config=config(tmp_path, line))
    probe.open(list)
    try:
        until(lambda: probe.read()[0] == 61.5)
    finally:
        probe.close()


def test_a_huge_number_is_infinite():
    assert parse_watts(f'{{"w": {10**400}}}', "w") == math.inf
    assert parse_watts("9" * 400) == math.inf
