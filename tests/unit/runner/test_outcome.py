from __future__ import annotations

import signal

import pytest

from rigdyno.contracts import Exit, Left
from rigdyno.runner.collect import ExitEvidence, classify_exit
from rigdyno.runner.worker import failure
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.record import Completed, Failed, Quality, Skipped, WorkerReport
from support import a_rank


def evidence(tmp_path, *, reports=(), exits=(), world_size=1, lost=None, out_of_memory=(), **changes):
    fields = {
        "reports": {f"rank{rank}": report for rank, report in enumerate(reports)},
        "ranks": [a_rank(number) for number in range(world_size)],
        "left": Left(exits=exits, lost=lost, out_of_memory=out_of_memory),
        "timed_out_after": None,
        "folder": CellFolder(tmp_path),
        "began_stepping": True,
    }
    return ExitEvidence(**{**fields, **changes})


def ended(code):
    """The only process, with this exit code."""
    return (Exit(code, "rank0"), Exit(0, "node0"))


def test_a_report_counts_more_than_the_exit_code(tmp_path):
    """Some processes abort on leaving, after everything is done and written."""
    report = WorkerReport(outcome=Completed(quality=Quality(correct=True)))
    outcome = classify_exit(evidence(tmp_path, reports=(report,), exits=ended(-signal.SIGABRT)))
    assert outcome == Completed(quality=Quality(correct=True))


def test_one_failed_rank_fails_the_cell(tmp_path):
    failed = Failed(kind="exception", phase="build", message="ValueError: no")
    reports = (WorkerReport(outcome=Completed()), WorkerReport(outcome=failed))
    assert classify_exit(evidence(tmp_path, reports=reports, exits=(Exit(1),), world_size=2)) == failed


def test_a_rank_without_a_report_fails_the_cell(tmp_path):
    reports = (WorkerReport(outcome=Completed()),)
    outcome = classify_exit(evidence(tmp_path, reports=reports, exits=(Exit(0), Exit(-signal.SIGSEGV)), world_size=2))
    assert isinstance(outcome, Failed)
    assert outcome.kind == "signal"
    assert "SIGSEGV" in outcome.message


COMPLETED = WorkerReport(outcome=Completed())
MISSING_ITS_PEER = WorkerReport(outcome=Failed(kind="exception", phase="measure", message="connection closed by peer"))


def test_a_lost_rank_is_named_and_not_what_the_others_say_about_it(tmp_path):
    exits = (Exit(-signal.SIGKILL, "rank1"), Exit(1, "rank0"))
    outcome = classify_exit(evidence(tmp_path, reports=(MISSING_ITS_PEER,), exits=exits, world_size=2))
    assert outcome == Failed(kind="signal", phase="measure", message="rank 1 was lost: SIGKILL: killed from outside")


def test_a_rank_that_got_sigterm_is_not_the_first_failure(tmp_path):
    root = Failed(kind="exception", phase="build", message="ValueError: no")
    exits = (Exit(-signal.SIGTERM, "rank0"), Exit(1, "rank1"))
    found = evidence(tmp_path, exits=exits, world_size=2)
    found.reports["rank1"] = WorkerReport(outcome=root)
    assert classify_exit(found) == root


def test_the_rank_that_failed_first_says_why(tmp_path):
    root = Failed(kind="exception", phase="build", message="ValueError: no")
    exits = (Exit(1, "rank1"), Exit(1, "rank0"))
    reports = (MISSING_ITS_PEER, WorkerReport(outcome=root))
    assert classify_exit(evidence(tmp_path, reports=reports, exits=exits, world_size=2)) == root


def test_ranks_that_abort_after_all_is_done_have_completed(tmp_path):
    exits = (Exit(-signal.SIGABRT, "rank1"),)
    assert classify_exit(evidence(tmp_path, reports=(COMPLETED, COMPLETED), exits=exits, world_size=2)) == Completed()


def test_a_time_out_names_the_ranks_that_did_not_come(tmp_path):
    outcome = classify_exit(evidence(tmp_path, reports=(COMPLETED,), timed_out_after=90.0, world_size=3))
    assert isinstance(outcome, Failed)
    assert outcome.message == "no end after 1 min 30 s; still missing: ranks 1, 2"


def test_a_node_that_is_lost_is_what_happened_unless_everybody_had_reported(tmp_path):
    lost = "node 1 (beta) is gone"
    outcome = classify_exit(evidence(tmp_path, reports=(MISSING_ITS_PEER,), lost=lost, world_size=2))
    assert outcome == Failed(kind="node_lost", phase="measure", message=lost)
    assert classify_exit(evidence(tmp_path, reports=(COMPLETED, COMPLETED), lost=lost, world_size=2)) == Completed()


def test_a_sampler_that_died_is_not_blamed_for_the_cell(tmp_path):
    outcome = classify_exit(evidence(tmp_path, exits=(Exit(-signal.SIGKILL, "node0"), Exit(1, "rank0"))))
    assert outcome == Failed(kind="exit", phase="measure", message="left no report, exit code 1")


def test_torchrun_that_can_not_even_start_is_quoted(tmp_path):
    (tmp_path / "node0").mkdir()
    (tmp_path / "node0" / "launcher.log").write_text("RendezvousConnectionError: the port is taken\n")
    outcome = classify_exit(evidence(tmp_path, exits=(Exit(1),), began_stepping=False, world_size=2))
    assert isinstance(outcome, Failed)
    assert "the port is taken" in outcome.message


def test_what_the_built_workload_refuses_is_skipped(tmp_path):
    skipped = Skipped(reason="scripting doesn't fold it")
    assert classify_exit(evidence(tmp_path, reports=(WorkerReport(outcome=skipped),))) == skipped


@pytest.mark.parametrize("number", [signal.SIGILL, signal.SIGKILL, signal.SIGBUS, signal.SIGFPE])
def test_a_signal_is_named(tmp_path, number):
    outcome = classify_exit(evidence(tmp_path, exits=ended(-number)))
    assert isinstance(outcome, Failed)
    assert outcome.kind == "signal"
    assert outcome.message.startswith(number.name)


def test_a_kill_by_the_kernel_for_want_of_memory_is_told_from_any_other(tmp_path):
    outcome = classify_exit(evidence(tmp_path, exits=ended(-signal.SIGKILL), out_of_memory=(0,)))
    assert isinstance(outcome, Failed)
    assert outcome.kind == "out_of_memory"
    elsewhere = classify_exit(evidence(tmp_path, exits=ended(-signal.SIGKILL), out_of_memory=(1,)))
    assert isinstance(elsewhere, Failed)
    assert elsewhere.kind == "signal"


def test_a_time_out_is_told_from_the_signal_that_ended_it(tmp_path):
    outcome = classify_exit(evidence(tmp_path, exits=ended(-signal.SIGTERM), timed_out_after=90.0))
    assert outcome == Failed(kind="timeout", phase="measure", message="no end after 1 min 30 s")


def test_a_worker_that_dies_before_it_can_report_is_quoted(tmp_path):
    (tmp_path / "rank0").mkdir()
    (tmp_path / "rank0" / "log.txt").write_bytes(b"Traceback\nImportError: libfoo.so \xff missing\n")
    outcome = classify_exit(evidence(tmp_path, exits=ended(1), began_stepping=False))
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
def test_an_exception_of_a_workload_is_classified(error, kind):
    outcome = failure(error, "measure")
    assert outcome.kind == kind
    assert outcome.phase == "measure"
    assert type(error).__name__ in outcome.message
    assert "\n" not in outcome.message
