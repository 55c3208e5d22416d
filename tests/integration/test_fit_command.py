"""Test `rigdyno fit` with real processes: one exceeds its memory limit, one never fits, one is resumed."""

from __future__ import annotations

import shutil

import pytest

from driving import here, only_run, records, said_in_one_line
from rigdyno.features.fit import plan as plan_fit
from rigdyno.schema.record import Completed, Failed, Skipped

MB = 10**6
HUNGRY = """
kept = []

def step(size: int = 1, mode: str = "smallest") -> int:
    # Far too much above 60, as if another algorithm were used there.
    wanted = size * 4_000_000 if size <= 60 else 3_000_000_000
    if not kept:
        kept.append(bytearray(wanted))
        kept[0][::4096] = b"x" * len(kept[0][::4096])
    return size
"""


@pytest.fixture(scope="module")
def fit_result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    (folder / "hungry.py").write_text(HUNGRY)
    what = ("hungry.py:step", "--option", "size", "--set", "mode=largest")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_fit, "SECONDS", 0.5)  # these tests are about the search, not the rates
        answer = here("fit", *what, "--memory", "1.2GB", "--sizes", "2", cwd=folder)
    return folder, answer


def test_an_attempt_out_of_memory_does_not_end_the_search(fit_result):
    folder, answer = fit_result
    assert answer.returncode == 0, answer.stderr
    kept = records(only_run(folder))
    tries = [record for record in kept if record.attempt_of is not None]
    ended = [record for record in tries if isinstance(record.outcome, Failed)]
    assert ended
    assert {record.outcome.kind for record in ended} == {"out_of_memory"}
    assert len(tries) <= 8
    largest, half = (record for record in kept if record.attempt_of is None)
    assert 45 <= largest.spec.options["size"] <= 60
    assert isinstance(largest.outcome, Completed)
    assert half.spec.options["size"] == largest.spec.options["size"] // 2
    assert half.spec.options["mode"] == "largest"  # a text option is not searched


def test_the_largest_size_is_printed(fit_result):
    _, answer = fit_result
    assert "What fits into 1.20 GB" in answer.stdout
    assert "fits into 1.20 GB, found in" in " ".join(answer.stdout.split())


def test_resume_repeats_only_the_missing_attempts(fit_result, tmp_path):
    """The last attempt and what followed it are deleted: only those are repeated."""
    folder, _ = fit_result
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    run = only_run(tmp_path)
    before = {record.cell: record.started_at for record in records(run)}
    last = max(name for name in before if "-try" in name)
    gone = [name for name in before if "-try" not in name] + [last]
    for name in gone:
        shutil.rmtree(run.path / "cells" / name)
    answer = here("run", "--resume", str(run.path), cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    after = {record.cell: record.started_at for record in records(only_run(tmp_path))}
    assert all(after[name] == before[name] for name in before if name not in gone)
    assert {name for name in after if "-try" not in name} == {name for name in before if "-try" not in name}


def test_a_limit_below_the_size_of_the_process_is_skipped_with_a_reason(tmp_path):
    (tmp_path / "hungry.py").write_text(HUNGRY)
    answer = here("fit", "hungry.py:step", "--option", "size", "--memory", "60MB", "--sizes", "1", cwd=tmp_path)
    assert answer.returncode == 3
    *_, last = [record for record in records(only_run(tmp_path)) if record.attempt_of is None]
    assert isinstance(last.outcome, Skipped)
    assert last.outcome.reason.startswith("even size=1 ")
    assert last.outcome.reason.endswith("doesn't fit into 60.0 MB")


def test_an_invalid_size_prints_one_line(tmp_path):
    answer = here("fit", "mnist_cnn", "--memory", "many", cwd=tmp_path)
    assert answer.returncode == 2
    said_in_one_line((answer.stdout, answer.stderr), "'many' is not a size", tmp_path)
