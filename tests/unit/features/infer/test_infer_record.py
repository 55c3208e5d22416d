"""The rows, the record and the observer's messages of blocks that are done, skipped or failed."""

import errno
import io

import pytest

from rigdyno.analyse.streams import check_rows
from rigdyno.engines.blockwise.boxes import Box
from rigdyno.engines.blockwise.journal import BlockCounts
from rigdyno.engines.blockwise.watching import Summary
from rigdyno.features.infer.record import BlockRows, BlockRun
from rigdyno.report.progress import ProgressBar, ProgressLines, SilentObserver
from rigdyno.schema.record import Completed, Facts, Failed
from rigdyno.schema.samples import CLOCK_JUMPED, STEP_FIELDS, Header, RowFile, read_rows
from rigdyno.schema.spec import INFER, Cell, RunPlan, RunSpec, assign_participants
from rigdyno.store.folder import RunFolder
from support import ManualClock, a_head, a_rank

SUMMARY = Summary(
    done=2, skipped=0, failed=0, failures=(), missing=0, voxels=2, predict_seconds=1.0, input_wait_seconds=0.0,
    writer_wait_seconds=0.0, wall_seconds=1.0,
)  # fmt: skip
BLOCK = Box((0, 0, 0), (10, 10, 10))  # 1000 voxels
NOTHING_KNOWN = Facts(unit="voxel")
CELL = Cell(
    name="01-infer",
    spec=RunSpec(workload="infer", launcher=INFER),
    participants=assign_participants(1, 1, "cpu"),
    seconds=100.0,
)


@pytest.fixture
def clock():
    return ManualClock()


class TestRows:
    @pytest.fixture
    def file(self, tmp_path):
        return RowFile(tmp_path / "steps.rows", Header(fields=STEP_FIELDS, kinds=("step",), participant=a_rank()))

    def written(self, tmp_path):
        header, rows = read_rows(tmp_path / "steps.rows")
        check_rows(header, rows)
        return rows

    def test_times_between_completions_share_out_the_time_that_passed(self, clock, file, tmp_path):
        """Three threads' blocks, done after 2.0, 2.1, 2.5 and 5.0 s, whenever each was begun."""
        began_ns, rows = clock.at_ns, BlockRows(file, clock)
        for seconds, voxels in ((2.0, 1000), (0.1, 1000), (0.4, 500), (2.5, 250)):
            clock.advance(seconds)
            rows.add(voxels)
        found = self.written(tmp_path)
        assert list(found["end_ns"] - found["start_ns"]) == [2_000_000_000, 100_000_000, 400_000_000, 2_500_000_000]
        assert list(found["items"]) == [1000, 1000, 500, 250]
        assert (found["start_ns"][0], found["end_ns"][-1]) == (began_ns, clock.at_ns)
        assert list(found["start_ns"][1:]) == list(found["end_ns"][:-1])
        assert not found["flags"].any()

    def test_blocks_that_are_done_at_the_same_moment_are_one_row_with_the_next(self, clock, file, tmp_path):
        rows = BlockRows(file, clock)
        for seconds in (1.0, 0.0, 0.0, 0.5):
            clock.advance(seconds)
            rows.add(100)
        found = self.written(tmp_path)
        assert list(zip(found["items"], found["steps"], strict=True)) == [(100, 1), (300, 3)]

    def test_a_clock_that_was_set_back_makes_no_row_that_runs_backwards(self, clock, file, tmp_path):
        rows = BlockRows(file, clock)
        clock.advance(5.0)
        rows.add(100)
        clock.jump(-2.0)
        rows.add(100)
        clock.advance(3.0)
        rows.add(100)
        found = self.written(tmp_path)
        assert list(found["items"]) == [100, 200]
        assert list(found["flags"]) == [0, CLOCK_JUMPED]


class Told(SilentObserver):
    def __init__(self):
        self.calls = []

    def planned(self, plan, folder):
        self.calls.append("planned")

    def started(self, cell):
        self.calls.append("started")

    def progress(self, progress):
        self.calls.append(progress)

    def noticed(self, words):
        self.calls.append(words)

    def finished(self, record):
        self.calls.append("finished")

    def over(self):
        self.calls.append("over")


def a_run(root, clock, observer=None, *, voxels=8000, blocks=8):
    head = a_head([CELL], plan=RunPlan(name="infer", cells=(CELL,)))
    return BlockRun(root, head, observer or SilentObserver(), clock, voxels, blocks)


def only_cell(root):
    (path,) = root.iterdir()
    (cell,) = RunFolder(path).cells([])
    return cell


def block_done(run):
    run.block_done(BLOCK, 0.1, 0.2, 0.1)


class TestRecord:
    def test_rows_sampler_and_facts(self, tmp_path, clock):
        run = a_run(tmp_path, clock)
        run.started(BlockCounts(8, 0, 0, 0))
        for _ in range(8):
            clock.advance(0.5)
            block_done(run)
        run.over(SUMMARY)
        path = run.end(None, NOTHING_KNOWN)
        cell = only_cell(tmp_path)
        [(_, rows)] = cell.steps()
        assert path == cell.folder.parent.parent
        assert (rows["items"].sum(), len(rows)) == (8000, 8)
        assert cell.record.outcome == Completed()
        assert cell.record.facts == NOTHING_KNOWN
        assert cell.record.exit_codes == {"node0": 0}
        assert cell.record.peak_memory_bytes > 10**6

    @pytest.mark.parametrize(
        ("error", "kind"), [(KeyboardInterrupt(), "interrupted"), (RuntimeError("1 / 0"), "exception"),
                            (RuntimeError("not enough memory: you tried"), "out_of_memory")],
    )  # fmt: skip
    def test_what_ended_it(self, error, kind, tmp_path, clock):
        run = a_run(tmp_path, clock)
        run.started(BlockCounts(8, 0, 0, 0))
        clock.advance(0.5)
        block_done(run)
        run.over(SUMMARY)
        assert run.end(error, NOTHING_KNOWN) is not None
        cell = only_cell(tmp_path)
        assert isinstance(cell.record.outcome, Failed)
        assert (cell.record.outcome.kind, cell.record.outcome.phase) == (kind, "measure")
        assert len(cell.steps()[0][1]) == 1
        log = cell.folder / "rank0" / "log.txt"
        assert log.exists() is (kind != "interrupted")
        assert kind == "interrupted" or str(error) in log.read_text()

    def test_answers_that_are_no_numbers_spoil_it(self, tmp_path, clock):
        run = a_run(tmp_path, clock)
        run.started(BlockCounts(8, 0, 0, 0))
        run.end(None, NOTHING_KNOWN, correct=False)
        assert only_cell(tmp_path).record.outcome.quality.correct is False

    def test_where_nothing_is_left_to_do_nothing_is_recorded(self, tmp_path, clock):
        told = Told()
        run = a_run(tmp_path, clock, told)
        run.started(BlockCounts(0, 7, 1, 0))
        run.over(SUMMARY)
        assert run.end(None, NOTHING_KNOWN) is None
        assert list(tmp_path.iterdir()) == []
        assert told.calls == ["over"]

    def test_blocks_that_failed_before_are_something_to_do(self, tmp_path, clock):
        run = a_run(tmp_path, clock)
        run.started(BlockCounts(0, 7, 0, 1))
        assert run.end(None, NOTHING_KNOWN) is not None

    def test_a_store_that_cant_be_written_costs_the_record_alone(self, tmp_path, clock, capsys):
        (tmp_path / "runs").write_text("in the way")
        told = Told()
        run = a_run(tmp_path / "runs", clock, told)
        run.started(BlockCounts(8, 0, 0, 0))
        clock.advance(1.0)
        block_done(run)
        run.over(SUMMARY)
        assert run.end(None, NOTHING_KNOWN) is None
        said = capsys.readouterr().err
        assert said.startswith("rigdyno: can't write ")
        assert said.endswith("; the volume is computed all the same, and no record is kept\n")
        assert said.count("\n") == 1
        assert told.calls[-1] == "over"
        assert told.calls[2].rate == 1000

    def test_a_head_that_cant_be_written_leaves_no_folder(self, tmp_path, clock, monkeypatch, capsys):
        def full(*_):
            raise OSError(errno.ENOSPC, "no space left on device")

        monkeypatch.setattr("os.fsync", full)
        run = a_run(tmp_path, clock)
        run.started(BlockCounts(8, 0, 0, 0))
        assert run.end(None, NOTHING_KNOWN) is None
        assert list(tmp_path.iterdir()) == []
        assert "the disk is full" in capsys.readouterr().err


class TestObserver:
    def test_progress_counts_what_was_there_and_the_rate_only_what_was_done(self, tmp_path, clock):
        told = Told()
        run = a_run(tmp_path, clock, told)
        run.started(BlockCounts(6, 2, 0, 0))
        run.block_skipped(BLOCK)
        clock.advance(2.0)
        block_done(run)
        assert told.calls[:2] == ["planned", "started"]
        (progress,) = told.calls[2:]
        assert (progress.share, progress.rate, progress.unit) == (0.5, 500.0, "voxel")
        assert progress.left_seconds == pytest.approx(4000 / 500)
        run.end(None, NOTHING_KNOWN)
        assert told.calls[3:] == ["finished", "over"]

    def test_at_most_twice_a_second(self, tmp_path, clock):
        told = Told()
        run = a_run(tmp_path, clock, told, voxels=10**6, blocks=1000)
        run.started(BlockCounts(1000, 0, 0, 0))
        for _ in range(100):
            clock.advance(0.1)
            block_done(run)
        run.end(None, NOTHING_KNOWN)
        assert 18 <= len(told.calls) - 4 <= 20

    def test_a_block_that_cant_be_read_is_said_at_once_in_one_line(self, tmp_path, clock):
        told = Told()
        run = a_run(tmp_path, clock, told)
        run.started(BlockCounts(8, 0, 0, 0))
        run.block_failed(Box((0, 0, 0), (1, 2, 3)), ValueError("a chunk\n  is damaged"))
        assert told.calls[2] == "can't read [0:1, 0:2, 0:3]: a chunk is damaged"
        run.end(None, NOTHING_KNOWN)

    def test_waiting_for_others_is_said(self, tmp_path, clock):
        told = Told()
        run = a_run(tmp_path, clock, told)
        run.started(BlockCounts(8, 0, 0, 0))
        clock.advance(1.0)
        run.waiting_for_others(1)
        assert told.calls[2].figure == "waiting for 1 block of other processes"
        run.end(None, NOTHING_KNOWN)


class Gone(io.StringIO):
    """A pipe whose reader has gone, or a terminal that was closed."""

    def __init__(self, tty):
        super().__init__()
        self.isatty = lambda: tty
        self.error = OSError(errno.EIO, "no terminal") if tty else BrokenPipeError()

    def write(self, text):
        raise self.error

    def flush(self):
        raise self.error


@pytest.mark.parametrize("kind", [ProgressBar, ProgressLines])
def test_it_goes_on_if_nobody_listens_any_more(kind, tmp_path, clock):
    run = a_run(tmp_path, clock, kind(Gone(tty=kind is ProgressBar)))
    run.started(BlockCounts(8, 0, 0, 0))
    for _ in range(3):
        clock.advance(70.0)
        block_done(run)
    run.block_failed(BLOCK, ValueError("damaged"))
    run.waiting_for_others(3)
    run.over(SUMMARY)
    assert run.end(None, NOTHING_KNOWN) is not None
    [(_, rows)] = only_cell(tmp_path).steps()
    assert len(rows) == 3
