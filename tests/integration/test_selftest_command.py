"""Test a real `rigdyno selftest`, with time only for its first trial."""

import getpass
import json
import socket

from driving import rigdyno


def test_the_report_file_says_what_worked(tmp_path):
    answer = rigdyno("selftest", "--budget", "0.1s", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "saved in rigdyno-selftest.json" in answer.stdout
    text = (tmp_path / "rigdyno-selftest.json").read_text()
    found = json.loads(text)
    results = [each["result"] for each in found["tried"]]
    assert results.count("works") == 1  # then the time was up
    assert results[-1] == "not tried"
    assert found["diagnosis"]["system"]["cpu"]["model"]
    assert f'"{socket.gethostname()}"' not in text
    assert f"/{getpass.getuser()}/" not in text
    assert [path.name for path in tmp_path.iterdir()] == ["rigdyno-selftest.json"]


def test_a_file_that_cannot_be_written_prints_one_line(tmp_path):
    answer = rigdyno("selftest", "--budget", "0.1s", "--file", "nowhere/result.json", cwd=tmp_path)
    assert answer.returncode == 2
    assert "Traceback" not in answer.stderr
    assert "nowhere" in answer.stderr
