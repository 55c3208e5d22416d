"""Test `rigdyno watch` in a pipe and a terminal, with recording, scraping over HTTP, and Ctrl-C."""

import os
import re
import signal
import sys
import urllib.request

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from driving import ANY_CODE, ended, here, in_terminal, started, until
from rigdyno import __version__
from rigdyno.schema.samples import read_rows


@pytest.fixture
def wall_meter(tmp_path):
    """Return a configuration with a wall meter that prints 43.5 W again and again."""
    script = tmp_path / "plug.py"
    script.write_text("import time\nwhile True:\n    print('43.5 W', flush=True)\n    time.sleep(0.02)\n")
    folder = tmp_path / "config" / "rigdyno"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f'meters.plug = "{sys.executable} {script}"\n')
    return {"cwd": tmp_path, "XDG_CONFIG_HOME": str(tmp_path / "config")}


def test_each_reading_is_a_line_and_is_recorded(wall_meter):
    process = started("watch", "--interval", "0.1s", "--record", "meters.rows", **wall_meter)
    lines = []
    while "power plug 43.5 W" not in (line := process.stdout.readline()) or "usage of" not in line:
        lines.append(line)
    process.send_signal(signal.SIGINT)
    lines += [line, *process.stdout]
    code, _, err = ended(process)
    assert code == 130, err
    assert all(re.match(r"\d\d:\d\d:\d\d .*(usage of \d+ cores? |host: )", line) for line in lines)
    assert all("plug 43.5 W" in line or "external: " in line for line in lines)
    assert "rapl: " in err  # a probe that can't be read is named with the reason
    header, rows = read_rows(wall_meter["cwd"] / "meters.rows")
    assert len(rows) - len(lines) in (0, 1)  # it may be interrupted between recording and printing
    (plug,) = (channel for channel in header.channels if channel.quantity == "power")
    assert set(rows[plug.name][~np.isnan(rows[plug.name])]) == {43.5}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_metrics_are_scraped_and_a_signal_ends_it_cleanly(wall_meter, number):
    process = started("watch", "--interval", "0.05s", "--prometheus", "0", **wall_meter)
    pattern = re.compile(r"http://127\.0\.0\.1:\d+/metrics")
    address = next(found[0] for line in process.stderr if (found := pattern.search(line)))
    samples = {}

    def scraped():
        with urllib.request.urlopen(address, timeout=60) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        found = [each for family in families for each in family.samples]
        samples.update({(each.name, each.labels.get("rail"), each.labels.get("probe")): each for each in found})
        return ("rigdyno_power_watts", "plug", None) in samples

    until(scraped, "a scrape holds the plug's power")
    power = samples["rigdyno_power_watts", "plug", None]
    assert power.value == 43.5
    assert power.labels == {"device": "wall", "rail": "plug", "scope": "wall", "sensor": "external"}
    assert samples["rigdyno_probe_up", None, "external"].value == 1.0
    assert samples["rigdyno_build_info", None, None].labels["version"] == __version__
    usage = [each for key, each in samples.items() if key[0] == "rigdyno_utilization_ratio"]
    assert usage
    assert all(0 <= each.value <= 1 for each in usage)
    process.send_signal(number)
    code, _, err = ended(process)
    assert code == 130
    assert "Traceback" not in err


def test_a_terminal_shows_charts(wall_meter):
    pattern = r"power plug\s+[▁▂▃▄▅▆▇█·]*█.*43\.5 W"
    screen = in_terminal(
        "watch", "--interval", "0.1s", pattern=pattern, react=lambda pid: os.kill(pid, signal.SIGINT), **wall_meter
    )
    assert screen.code == 130, screen.text
    assert re.search(pattern, ANY_CODE.sub("", screen.text))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--interval", "soon"), "'soon' is not a duration"),
        (("--interval", "1ms"), "at least 0.05 s"),
        (("--listen", "0.0.0.0"), "add --prometheus PORT"),
        (("--prometheus", "99999"), "99999 is not in the range"),
        (("--record", "missing/folder/x.rows", "--for", "1s"), "can't write missing/folder/x.rows"),
        (("--record", "config.toml", "--for", "1s"), "exists already"),
        (("--prometheus", "0", "--listen", "192.0.2.1"), "can't listen on 192.0.2.1"),
    ],
)
def test_bad_input_is_reported_in_one_line(tmp_path, arguments, words):
    (tmp_path / "config.toml").write_text("")
    done = here("watch", *arguments, cwd=tmp_path, XDG_CONFIG_HOME=str(tmp_path / "none"))
    assert done.returncode == 2
    complaints = [line for line in done.stderr.splitlines() if words in line]
    assert len(complaints) == 1
    assert "Traceback" not in done.stderr


def test_a_missing_extra_names_the_pip_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    done = here("watch", "--prometheus", "0", cwd=tmp_path)
    assert done.returncode == 2
    assert "pip install 'rigdyno[prometheus]'" in done.stderr
