from __future__ import annotations

import signal

import pytest

from rigdyno.contracts import Exit
from rigdyno.runner.outcome import Evidence, outcome_of
from rigdyno.runner.worker import failure
from rigdyno.schema.record import Completed, Failed, Quality, Skipped, WorkerReport


def evidence(tmp_path, *, reports=(), exit_codes=(0,), **changes):
    fields = {
        "reports": dict(enumerate(reports)), "exits": tuple(map(Exit, exit_codes)), "timed_out_after": None,
        "oom_killed": False, "folder": tmp_path, "began_stepping": True,
    }  # fmt: skip
    return Evidence(**{**fields, **changes})


def test_a_report_counts_more_than_the_exit_code(tmp_path):
    """Some processes abort on leaving, after everything is done and written."""
    report = WorkerReport(outcome=Completed(quality=Quality(correct=True)))
    outcome = outcome_of(evidence(tmp_path, reports=(report,), exit_codes=(-signal.SIGABRT,)))
    assert outcome == Completed(quality=Quality(correct=True))


def test_one_failed_rank_fails_the_cell(tmp_path):
    failed = Failed(kind="exception", phase="build", message="ValueError: no")
    reports = (WorkerReport(outcome=Completed()), WorkerReport(outcome=failed))
    assert outcome_of(evidence(tmp_path, reports=reports, exit_codes=(1,), world_size=2)) == failed


def test_a_rank_without_a_report_fails_the_cell(tmp_path):
    reports = (WorkerReport(outcome=Completed()),)
    outcome = outcome_of(evidence(tmp_path, reports=reports, exit_codes=(0, -signal.SIGSEGV), world_size=2))
    assert isinstance(outcome, Failed)
    assert outcome.kind == "signal"
    assert "SIGSEGV" in outcome.message


COMPLETED = WorkerReport(outcome=Completed())
MISSING_ITS_PEER = WorkerReport(outcome=Failed(kind="exception", phase="measure", message="connection closed by peer"))


def test_a_lost_rank_is_named_and_not_what_the_others_say_about_it(tmp_path):
    exits = (Exit(-signal.SIGKILL, 1), Exit(1, 0))
    outcome = outcome_of(evidence(tmp_path, reports=(MISSING_ITS_PEER,), exits=exits, world_size=2))
    assert outcome == Failed(kind="signal", phase="measure", message="rank 1 was lost: SIGKILL: killed from outside")


def test_the_rank_that_failed_first_says_why(tmp_path):
    root = Failed(kind="exception", phase="build", message="ValueError: no")
    exits = (Exit(1, 1), Exit(1, 0))
    reports = (MISSING_ITS_PEER, WorkerReport(outcome=root))
    assert outcome_of(evidence(tmp_path, reports=reports, exits=exits, world_size=2)) == root


def test_ranks_that_abort_after_all_is_done_have_completed(tmp_path):
    exits = (Exit(-signal.SIGABRT, 1),)
    assert outcome_of(evidence(tmp_path, reports=(COMPLETED, COMPLETED), exits=exits, world_size=2)) == Completed()


def test_a_time_out_names_the_ranks_that_did_not_come(tmp_path):
    outcome = outcome_of(evidence(tmp_path, reports=(COMPLETED,), timed_out_after=90.0, world_size=3))
    assert isinstance(outcome, Failed)
    assert outcome.message == "no end after 1 min 30 s; still missing: ranks 1, 2"


def test_torchrun_that_can_not_even_start_is_quoted(tmp_path):
    (tmp_path / "torchrun.log").write_text("RendezvousConnectionError: the port is taken\n")
    outcome = outcome_of(evidence(tmp_path, exit_codes=(1,), began_stepping=False, world_size=2))
    assert isinstance(outcome, Failed)
    assert "the port is taken" in outcome.message


def test_what_the_built_workload_refuses_is_skipped(tmp_path):
    skipped = Skipped(reason="scripting doesn't fold it")
    assert outcome_of(evidence(tmp_path, reports=(WorkerReport(outcome=skipped),))) == skipped


@pytest.mark.parametrize("number", [signal.SIGILL, signal.SIGKILL, signal.SIGBUS, signal.SIGFPE])
def test_a_signal_is_named(tmp_path, number):
    outcome = outcome_of(evidence(tmp_path, exit_codes=(-number,)))
    assert isinstance(outcome, Failed)
    assert outcome.kind == "signal"
    assert outcome.message.startswith(number.name)


def test_a_kill_by_the_kernel_for_want_of_memory_is_told_from_any_other(tmp_path):
    outcome = outcome_of(evidence(tmp_path, exit_codes=(-signal.SIGKILL,), oom_killed=True))
    assert isinstance(outcome, Failed)
    assert outcome.kind == "out_of_memory"


def test_a_time_out_is_told_from_the_signal_that_ended_it(tmp_path):
    outcome = outcome_of(evidence(tmp_path, exit_codes=(-signal.SIGTERM,), timed_out_after=90.0))
    assert outcome == Failed(kind="timeout", phase="measure", message="no end after 1 min 30 s")


def test_a_worker_that_dies_before_it_can_report_is_quoted(tmp_path):
    (tmp_path / "worker.0.log").write_bytes(b"Traceback\nImportError: libfoo.so \xff missing\n")
    outcome = outcome_of(evidence(tmp_path, exit_codes=(1,), began_stepping=False))
    assert isinstance(outcome, Failed)
    assert outcome.kind == "exit"
    assert "ImportError: libfoo.so" in outcome.message


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), "out_of_memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"), "out_of_memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "out_of_memory"),
        (ValueError("bad"), "exception"),
        (SystemExit(3), "exception"),
    ],
)
def test_what_a_workload_raises(error, kind):
    outcome = failure(error, "measure")
    assert outcome.kind == kind
    assert outcome.phase == "measure"
    assert type(error).__name__ in outcome.message
    assert "\n" not in outcome.message
