"""`rigdyno watch` in a pipe, in a terminal, recorded, scraped over HTTP, and ended by Ctrl-C."""

import re
import signal
import sys
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from driving import ended, here, in_terminal, rigdyno, started, until
from rigdyno import __version__
from rigdyno.schema.samples import read_rows


@pytest.fixture
def plugged(tmp_path):
    """A wall meter that prints 43.5 W again and again, in a configuration of its own."""
    script = tmp_path / "plug.py"
    script.write_text("import time\nwhile True:\n    print('43.5 W', flush=True)\n    time.sleep(0.02)\n")
    folder = tmp_path / "config" / "rigdyno"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f'meters.plug = "{sys.executable} {script}"\n')
    return {"cwd": tmp_path, "XDG_CONFIG_HOME": str(tmp_path / "config")}


def test_a_line_for_every_reading_and_a_file_of_all(plugged):
    done = rigdyno("watch", "--interval", "0.1s", "--for", "1s", "--record", "meters.rows", **plugged)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) >= 2
    assert all(re.match(r"\d\d:\d\d:\d\d .*usage of \d+ cores? ", line) for line in lines)
    assert "power plug 43.5 W" in lines[-1]
    assert "rapl: " in done.stderr  # what isn't here, and why
    header, rows = read_rows(plugged["cwd"] / "meters.rows")
    assert len(rows) == len(lines)
    (plug,) = (channel for channel in header.channels if channel.quantity == "power")
    assert set(rows[plug.name][~(rows[plug.name] != rows[plug.name])]) == {43.5}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_real_scrape_and_a_clean_end(plugged, number):
    process = started("watch", "--interval", "0.05s", "--prometheus", "0", **plugged)
    pattern = re.compile(r"http://127\.0\.0\.1:\d+/metrics")
    address = next(found[0] for line in process.stderr if (found := pattern.search(line)))
    samples = {}

    def scraped():
        with urllib.request.urlopen(address, timeout=10) as answer:
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


def test_in_a_terminal_there_are_charts(plugged):
    screen = in_terminal("watch", "--interval", "0.1s", "--for", "1.5s", **plugged)
    assert screen.code == 0, screen.text
    assert re.search(r"power plug\s+[▁▂▃▄▅▆▇█·]*█.*43\.5 W", screen.text)


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
def test_bad_input_is_one_line(tmp_path, arguments, words):
    (tmp_path / "config.toml").write_text("")
    done = here("watch", *arguments, cwd=tmp_path, XDG_CONFIG_HOME=str(tmp_path / "none"))
    assert done.returncode == 2
    complaints = [line for line in done.stderr.splitlines() if words in line]
    assert len(complaints) == 1
    assert "Traceback" not in done.stderr


def test_without_the_extra_there_is_the_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    done = here("watch", "--prometheus", "0", cwd=tmp_path)
    assert done.returncode == 2
    assert "pip install 'rigdyno[prometheus]'" in done.stderr
