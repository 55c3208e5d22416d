"""Test `rigdyno report --figures` from outside."""

from xml.etree import ElementTree

import pytest

from driving import here
from rigdyno import catalogue
from rigdyno.base.errors import MissingExtra
from rigdyno.report.drawing.draw import write_figures
from stored_runs import stored_run
from support import a_stored_run


@pytest.fixture
def run(tmp_path):
    return a_stored_run(tmp_path / "runs", suite="device", label="my <b>box</b>")


def test_every_figure_is_written_as_svg_and_png_and_named(run, tmp_path):
    answer = here("report", str(run), "--figures", "new/figures", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    names = {"tensor-add", "time-01-test", "steps-01-test"}
    assert set(answer.stdout.split()) == {f"new/figures/{name}.{end}" for name in names for end in ("svg", "png")}
    for name in names:
        ElementTree.parse(tmp_path / f"new/figures/{name}.svg")
        assert (tmp_path / f"new/figures/{name}.png").read_bytes().startswith(b"\x89PNG")
    again = here("report", str(run), "--figures", "new/figures", "--dark", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "#0d1117" in (tmp_path / "new/figures/tensor-add.svg").read_text()


def test_a_foreign_file_is_not_replaced(run, tmp_path):
    (tmp_path / "figures").mkdir()
    theirs = tmp_path / "figures" / "steps-01-test.png"
    theirs.write_bytes(b"my holidays")
    answer = here("report", str(run), "--figures", "figures", cwd=tmp_path)
    assert answer.returncode == 2
    assert "figures/steps-01-test.png exists and was not written by Rigdyno" in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert theirs.read_bytes() == b"my holidays"
    assert [path.name for path in theirs.parent.iterdir()] == [theirs.name]


def test_a_folder_that_cannot_be_created_prints_one_line(run, tmp_path):
    (tmp_path / "file").write_text("")
    answer = here("report", str(run), "--figures", "file/inside", cwd=tmp_path)
    assert answer.returncode == 2
    assert "can't write file/inside" in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_without_the_extra_the_pip_command_is_printed(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"drawing figures can't run: altair .* pip install 'rigdyno\[figures\]'"):
        list(write_figures((), tmp_path / "figures"))
    assert not (tmp_path / "figures").exists()


def test_figures_of_several_runs_have_separate_folders(tmp_path):
    paths = [stored_run(tmp_path / "runs", name, [30.0]) for name in ("one", "two")]
    answer = here("report", *map(str, paths), "--figures", "figures", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {path.name for path in paths}
