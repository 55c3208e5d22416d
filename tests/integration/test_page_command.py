"""Test `rigdyno report --html`: the file, the browser, and error messages."""

import stat

import pytest

from driving import here, rigdyno
from reading_pages import read
from stored_runs import stored_run
from support import a_stored_run

pytestmark = pytest.mark.usefixtures("without_drawing")


@pytest.fixture
def run(tmp_path):
    return a_stored_run(tmp_path / "runs", suite="device", label="my box")


def test_one_file_is_written_and_named(run, tmp_path):
    answer = here("report", str(run), "--html", "report.html", cwd=tmp_path)
    assert answer.returncode == 0
    assert answer.stdout.startswith("Wrote report.html, ")
    assert answer.stderr == ""
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "my box" in read(page).text()
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "runs"}


def test_without_a_name_the_newest_run_is_shown(run, tmp_path):
    assert here("report", "--html", "report.html", cwd=tmp_path).returncode == 0
    assert run.name in read((tmp_path / "report.html").read_text(encoding="utf-8")).text()


def test_format_html_prints_the_same_page(run, tmp_path):
    here("report", str(run), "--html", "report.html", cwd=tmp_path)
    answer = here("report", str(run), "--format", "html", cwd=tmp_path)
    assert answer.stdout == (tmp_path / "report.html").read_text(encoding="utf-8")


def test_an_existing_page_is_replaced(run, tmp_path):
    (tmp_path / "report.html").write_text("x" * 1_000_000)
    here("report", str(run), "--html", "report.html", cwd=tmp_path)
    assert (tmp_path / "report.html").read_text(encoding="utf-8").endswith("</html>\n")


def test_an_extra_column_is_shown(run, tmp_path):
    here("report", str(run), "--html", "report.html", "--column", "torch", cwd=tmp_path)
    headers = [cell.text() for cell in read((tmp_path / "report.html").read_text(encoding="utf-8")).all("th")]
    assert "torch" in headers


def browser(folder, code):
    """Return a command that records its arguments."""
    script = folder / "browser"
    script.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$1\" >> {folder}/opened\nexit {code}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


def test_open_starts_the_browser_with_the_file(run, tmp_path):
    command = browser(tmp_path, 0)
    answer = rigdyno("report", str(run), "--html", "my report.html", "--open", cwd=tmp_path, BROWSER=f"{command} %s")
    assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "opened").read_text() == (tmp_path / "my report.html").as_uri() + "\n"


def test_a_missing_browser_is_reported_and_the_page_is_written(run, tmp_path):
    command = browser(tmp_path, 1)
    away = {"PATH": str(tmp_path), "DISPLAY": "", "WAYLAND_DISPLAY": "", "BROWSER": f"{command} %s"}
    answer = rigdyno("report", str(run), "--html", "report.html", "--open", cwd=tmp_path, **away)
    assert answer.returncode == 0
    assert answer.stderr == "rigdyno: warning: no browser could be started; open report.html in one\n"
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--open",), "add --html report.html"),
        (("--html", "a.html", "--format", "csv"), "leave out --format and --output"),
        (("--html", "a.html", "--output", "b"), "leave out --format and --output"),
        (("--html", "nowhere/a.html"), "can't write nowhere/a.html"),
        (("--html", "a.html", "--column", "nonsense"), "no column named 'nonsense'"),
    ],
)
def test_wrong_use_prints_one_line(run, tmp_path, arguments, said):
    answer = here("report", str(run), *arguments, cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1
    assert said in answer.stderr
    assert not (tmp_path / "a.html").exists()


def test_an_empty_store_is_reported(tmp_path):
    answer = here("report", "--html", "report.html", cwd=tmp_path)
    assert answer.returncode == 2
    assert "there is no run in" in answer.stderr


def test_a_damaged_run_does_not_hide_the_others(run, tmp_path):
    broken = stored_run(tmp_path / "runs", "broken", [20.0])
    (broken / "head.json").write_text("{")
    answer = here("report", str(run), str(broken), "--html", "report.html", cwd=tmp_path)
    assert answer.returncode == 0
    assert "skipped" in answer.stderr
    only = here("report", str(broken), str(broken), "--html", "none.html", cwd=tmp_path)
    assert only.returncode == 2
    assert only.stderr.splitlines()[-1] == "rigdyno: none of these runs can be read, so there is no page"


def test_a_damaged_file_is_named(run, tmp_path):
    steps = run / "cells/01-test/rank0/steps.rows"
    steps.write_bytes(steps.read_bytes()[:40])
    answer = here("report", str(run), "--html", "report.html", cwd=tmp_path)
    assert answer.returncode == 0
    assert "ends inside its header" in read((tmp_path / "report.html").read_text(encoding="utf-8")).text()


def test_the_closing_lines_name_the_page(run, tmp_path):
    answer = here("report", f"runs/{run.name}", cwd=tmp_path)
    assert f"\n  rigdyno report runs/{run.name} --html report.html --open\n" in answer.stdout
