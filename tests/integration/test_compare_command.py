"""Test `rigdyno compare` from outside, on two real runs and on stored ones: exit codes, exports and terminals."""

import json

import jsonschema
import msgspec
import pytest

from driving import here, in_terminal, rigdyno
from rigdyno import cli
from rigdyno.schema.record import Facts
from rigdyno.schema.spec import Cell, DuelPlan, RunPlan
from rigdyno.schema.view import View
from rigdyno.store.folder import RunFolder
from stored_runs import ADDING, add_cell, stored_run

STEP = """
def step(size: int = 20000) -> int:
    total = 0
    for number in range(size):
        total += number
    return size
"""


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def old(runs):
    return stored_run(runs, "old", [30.0, 30.1, 29.9]).name


def test_two_real_runs_of_the_same_step_are_compared(tmp_path):
    (tmp_path / "train.py").write_text(STEP)
    for seed in ("0", "1"):
        command = ("run", "train.py:step", "--steps", "50", "--seed", seed, "--quiet", "--out", "runs")
        assert rigdyno(*command, cwd=tmp_path).returncode == 0
    one, two = sorted(path.name for path in (tmp_path / "runs").glob("[!.]*.*/"))
    answer = here("compare", one, two, "--json", cwd=tmp_path)
    assert answer.returncode in (0, 3), answer.stderr  # on a busy machine the figures may be INVALID, and say so
    view = json.loads(answer.stdout)
    jsonschema.validate(view, msgspec.json.schema(View))
    [found] = view["comparisons"]
    assert (found["what"], found["differences"]) == ("train.py:step", ["seed 0 -> 1"])
    if answer.returncode == 0:
        assert (found["answer"], found["reasons"][0]["code"]) == ("undecided", "one_process")


def test_a_regression_exits_with_4_only_with_fail_on(tmp_path, runs, old):
    slower = stored_run(runs, "new", [31.5, 31.6, 31.4]).name
    assert here("compare", old, slower, cwd=tmp_path).returncode == 0
    answer = here("compare", old, slower, "--fail-on", "slower=3%", cwd=tmp_path)
    assert answer.returncode == 4
    assert "REGRESSION" in answer.stdout
    assert here("compare", old, slower, "--fail-on", "slower=10%", cwd=tmp_path).returncode == 0
    assert here("compare", slower, old, "--fail-on", "slower=3%", cwd=tmp_path).returncode == 0


def test_undecided_is_reported_and_no_regression(tmp_path, runs, old):
    single = stored_run(runs, "new", [60.0]).name
    answer = here("compare", old, single, "--fail-on", "slower=3%", cwd=tmp_path)
    assert answer.returncode == 0
    words = " ".join(answer.stdout.split())
    assert "No regression found (--fail-on slower=3%). But 1 undecided" in words
    assert "--repeat 3 or more" in words


def test_runs_without_comparable_figures_exit_with_3(tmp_path, runs, old):
    images = stored_run(runs, "new", [30.0, 30.1], facts=Facts(unit="image")).name
    answer = here("compare", old, images, "--fail-on", "slower=3%", cwd=tmp_path)
    assert answer.returncode == 3
    assert "NOT_COMPARABLE" in answer.stdout
    assert "iterations and images have no ratio" in answer.stdout


def test_a_difference_within_the_noise_is_no_regression(tmp_path, runs, old, monkeypatch, capsys):
    """Pairs of the same step differ by 3 % in both directions, so a difference of 5 % proves nothing."""
    monkeypatch.chdir(tmp_path)
    itself = DuelPlan(what="x", names=("x", "x"), margin=0.01, least_pairs=4, budget_seconds=9, self_duel=True)
    path = stored_run(runs, "new", [31.5, 31.6, 31.4], plan=RunPlan(name="new", duel=itself))
    for pair, other_ms in enumerate((30.9, 29.1, 30.9, 29.1), start=1):
        for arm, mean_ms in (("a", 30.0), ("b", other_ms)):
            cell = Cell(name=f"pair{pair}{arm}", spec=ADDING, pair=pair, arm=arm)
            add_cell(RunFolder(path), cell, mean_ms, pair=pair, arm=arm)
    assert cli.main(["compare", old, path.name, "--fail-on", "slower=3%", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)["comparisons"]
    assert 0.04 < found["margin"] < 0.07
    assert found["answer"] != "slower"
    assert "so that is the margin" in found["reasons"][-1]["sentence"]


def test_a_duel_has_no_rates_to_compare(tmp_path, runs, old):
    duel = DuelPlan(what="tensor_add", names=("a", "b"), margin=0.01, least_pairs=4, budget_seconds=60)
    path = stored_run(runs, "duel", [30.0], plan=RunPlan(name="duel", duel=duel), pair=1, arm="a")
    for pair in ((old, path.name), (path.name, old)):
        answer = here("compare", *pair, cwd=tmp_path)
        assert answer.returncode == 3, answer.stderr
        assert "is a duel, which gives ratios and no rates" in " ".join(answer.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--fail-on", "slower"), "takes slower=SHARE"),
        (("--fail-on", "faster=3%"), "takes slower=SHARE"),
        (("--fail-on", "slower=x"), "not a share"),
        (("--fail-on", "slower=0.5%"), "margin"),
        (("--fail-on", "slower=300%"), "100 %"),
        (("--margin", "0"), "--margin"),
        (("--export", "benchr=x.json"), "did you mean 'bencher'?"),
        (("--export", "bencher"), "FORM=FILE"),
        (("--export", "bencher=nowhere/x.json"), "can't write nowhere/x.json"),
        (("--export", "bencher=runs"), "can't write runs"),
        (("--format", "xml"), "markdown"),
    ],
)
def test_wrong_use_prints_one_line_and_exits_with_2(arguments, words, tmp_path, runs, old, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    new = stored_run(runs, "new", [30.0]).name
    assert cli.main(["compare", old, new, *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err


@pytest.mark.parametrize(("other", "words"), [("runs/{}", "with itself"), ("nowhere", "no run folder at runs/nowhere")])
def test_a_second_run_is_needed(other, words, tmp_path, old, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["compare", old, other.format(old)]) == 2
    assert words in capsys.readouterr().err


def test_exports_are_written_completely(tmp_path, runs, old):
    new = stored_run(runs, "new", [31.5, 31.6, 31.4]).name
    exports = ("--export", "github-action-benchmark=gh.json", "--export", "bencher=bmf.json")
    answer = here("compare", old, new, "--fail-on", "slower=3%", *exports, cwd=tmp_path)
    assert answer.returncode == 4
    assert json.loads((tmp_path / "gh.json").read_text())[0]["unit"] == "it/s"
    assert "throughput" in json.loads((tmp_path / "bmf.json").read_text())["tensor_add variant=as_published"]
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_terminal_shows_colour_unless_disabled(tmp_path, runs, old):
    new = stored_run(runs, "new", [31.5, 31.6, 31.4]).name
    screen = in_terminal("compare", old, new, cwd=tmp_path, columns=80)
    plain = in_terminal("compare", old, new, cwd=tmp_path, columns=80, NO_COLOR="1")
    assert screen.code == plain.code == 0
    assert "\x1b[" in screen.text
    assert "\x1b[" not in plain.text
    assert max(map(len, plain.plain.splitlines())) <= 80
    assert plain.plain == here("compare", old, new, cwd=tmp_path).stdout
