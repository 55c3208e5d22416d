"""What a person reads of a run: the plan, lines in a pipe, what came of it."""

import errno
import io
from dataclasses import replace

import pytest

from rigdyno.engines.blockwise import Done, Plan
from rigdyno.engines.blockwise.boxes import Box
from rigdyno.engines.blockwise.grid import Grid
from rigdyno.engines.blockwise.journal import Counts
from rigdyno.engines.blockwise.normalising import Normalisation
from rigdyno.engines.blockwise.watching import Failure, Summary
from rigdyno.report.infer import Lines, done_lines, plan_lines, watcher_for
from rigdyno.report.page import Page
from support import ManualClock

PLAN = Plan(
    shape=(100, 1000, 1000), channels=1, block=(50, 500, 500), halo=(4, 4, 4), exact_halo=(24, 24, 24),
    halo_error=0.0042, halo_mean_error=0.00017, halo_places=12, backend="torch", alike=False, blocks=8,
    recomputation=1.234, products=10**12, memory_bytes=3_210_000_000, output_bytes=10**8, seconds=125.0,
    normalisation=Normalisation((99.5,), (20.25,), "256 places (0.67 of the volume)"),
    remarks=("the answer depends on how the volume is cut: it has InstanceNorm or GroupNorm",),
)  # fmt: skip
SUMMARY = Summary(
    done=8, skipped=0, failed=0, failures=(), missing=0, voxels=10**8, predict_seconds=90.0, input_wait_seconds=5.0,
    writer_wait_seconds=5.0, wall_seconds=100.0,
)  # fmt: skip


def text_of(lines):
    return " ".join(" ".join(lines).split())


def the_plan(plan=PLAN, width=80, resumed=False, output="out.zarr"):
    return plan_lines(plan, "net.pt2", output, Page(width=width), resumed=resumed)


def test_all_that_was_settled():
    text = text_of(the_plan())
    for words in (
        "100 x 1000 x 1000 voxels (100 Mvoxel), normalised: (value - 99.5) / 20.2, from 256 places",
        "network net.pt2, 1 channel, backend torch", "blocks 8 of 50 x 500 x 500",
        "halo 4 x 4 x 4 (exact is 24 x 24 x 24): off by 0.42% of the output's range at most, 0.00017 in the mean",
        "computed 1.23 times what the whole volume at once", "memory up to 3.21 GB", "disk up to 100 MB in out.zarr",
        "time about 2 min 5 s, 0.800 megavoxel/s", "note: the answer depends on how the volume is cut",
    ):  # fmt: skip
        assert words in text
    assert the_plan()[0] == "Plan:"
    assert the_plan(resumed=True)[0] == "Going on with what was begun there:"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"halo": (24, 24, 24), "halo_error": 0.0}, "halo 24 x 24 x 24, which is exact"),
        ({"halo_error": None}, "halo 4 x 4 x 4 as asked for (exact is 24 x 24 x 24)"),
        ({"halo_error": None, "exact_halo": None}, "as asked for (no halo is exact for this network)"),
        ({"normalisation": Normalisation((0.0, 0.0), (1.0, 1.0), "not normalised")}, "normalised: no"),
    ],
)
def test_halos_and_figures_in_words(changes, words):
    assert words in text_of(the_plan(replace(PLAN, **changes)))


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_is_wider_than_the_page(width):
    lines = the_plan(width=width, output="/a/very/long/place" * 20)
    lines += done_lines(failed_at(9, 9), "/a/very/long/place" * 20, Page(width=width))
    assert max(map(len, lines)) <= width


def failed_at(number, named):
    boxes = list(Grid((100, 100, 100), (10, 10, 10)))[:named]
    failures = tuple(Failure(box, "it is damaged") for box in boxes)
    summary = replace(SUMMARY, done=3, failed=named, failures=failures)
    return Done(PLAN, summary, Counts(0, 3, 0, number), 0, 0)


def test_all_is_well():
    lines = done_lines(Done(PLAN, SUMMARY, Counts(0, 8, 0, 0), 0, 0), "out.zarr", Page())
    assert text_of(lines) == (
        "8 blocks in 1 min 40 s: 1.00 megavoxel/s; 10.0% of it wasn't predicting. Saved in out.zarr"
    )


def test_nothing_was_left():
    idle = replace(SUMMARY, done=0, voxels=0)
    lines = done_lines(Done(PLAN, idle, Counts(0, 8, 0, 0), 0, 0), "out.zarr", Page())
    assert lines == ["Nothing was left to do.", "Saved in out.zarr"]


def test_everything_that_isnt_quite_well():
    done = Done(PLAN, replace(SUMMARY, missing=1), Counts(0, 6, 2, 0), 1234, 5)
    text = text_of(done_lines(done, "out.zarr", Page()))
    assert "2 blocks skipped: the mask is empty there." in text
    assert "1 block with chunks that were never stored, read as the fill value." in text
    assert "1,234 values lay outside of the output's range and were clipped; see --range." in text
    assert "5 answers of the network weren't numbers" in text


@pytest.mark.parametrize(("number", "named", "more"), [(1, 1, None), (5, 5, None), (9, 9, 4), (9, 2, 7), (6, 0, 6)])
def test_blocks_that_failed_are_named_also_if_others_met_them(number, named, more):
    lines = done_lines(failed_at(number, named), "out.zarr", Page())
    assert sum("it is damaged" in line for line in lines) == min(named, 5)
    assert any(f"{number} block" in line and "couldn't be read; mend the input" in line for line in lines)
    assert [line.strip() for line in lines if "more" in line] == ([f"and {more} more"] if more else [])
    assert lines[-1] == "What is there was saved in out.zarr"


def test_lines_in_a_pipe_every_so_often():
    clock, stream = ManualClock(), io.StringIO()
    plan = replace(PLAN, shape=(100, 100, 100), block=(1, 100, 100), blocks=100)
    watcher = watcher_for(plan, clock, quiet=False, stream=stream)
    assert isinstance(watcher, Lines)
    watcher.started(Counts(90, 10, 0, 0))
    for number in range(90):
        clock.advance(0.5)
        watcher.block_done(Box((number, 0, 0), (number + 1, 100, 100)), 0.1, 0.2, 0.1)
    lines = stream.getvalue().splitlines()
    assert lines[0] == " 11%  0.0200 megavoxel/s, 44 s left"
    assert lines[-1] == " 96%  0.0200 megavoxel/s, 2.0 s left"
    assert 15 <= len(lines) <= 20
    assert max(map(len, lines)) < 80
    assert "\x1b" not in stream.getvalue()


def test_what_the_mask_skips_counts_as_done_but_not_for_the_rate():
    clock, stream = ManualClock(), io.StringIO()
    plan = replace(PLAN, shape=(2, 100, 100), block=(1, 100, 100), blocks=2)
    watcher = watcher_for(plan, clock, quiet=False, stream=stream)
    watcher.started(Counts(2, 0, 0, 0))
    watcher.block_skipped(Box((0, 0, 0), (1, 100, 100)))
    clock.advance(1.0)
    watcher.block_done(Box((1, 0, 0), (2, 100, 100)), 0.1, 0.2, 0.1)
    assert stream.getvalue() == "100%  0.0100 megavoxel/s, 0.0 s left\n"


def test_a_failure_is_said_at_once_in_one_line():
    stream = io.StringIO()
    watcher = watcher_for(PLAN, ManualClock(), quiet=False, stream=stream)
    watcher.started(Counts(8, 0, 0, 0))
    watcher.block_failed(Box((0, 0, 0), (1, 2, 3)), ValueError("a chunk\n  is damaged"))
    assert stream.getvalue() == "can't read [0:1, 0:2, 0:3]: a chunk is damaged\n"


def test_quiet_says_nothing():
    stream = io.StringIO()
    watcher = watcher_for(PLAN, ManualClock(), quiet=True, stream=stream)
    watcher.started(Counts(8, 0, 0, 0))
    watcher.block_done(Box((0, 0, 0), (50, 500, 500)), 0.1, 0.2, 0.1)
    watcher.block_failed(Box((0, 0, 0), (1, 2, 3)), ValueError("damaged"))
    watcher.waiting_for_others(3)
    watcher.over(SUMMARY)
    assert stream.getvalue() == ""


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


@pytest.mark.parametrize("tty", [False, True])
def test_a_run_goes_on_if_nobody_listens_any_more(tty):
    watcher = watcher_for(PLAN, ManualClock(), quiet=False, stream=Gone(tty))
    watcher.started(Counts(8, 0, 0, 0))
    for _ in range(3):
        watcher.block_done(Box((0, 0, 0), (50, 500, 500)), 0.1, 0.2, 0.1)
    watcher.block_failed(Box((0, 0, 0), (1, 2, 3)), ValueError("damaged"))
    watcher.waiting_for_others(3)
    watcher.over(SUMMARY)
    assert watcher.share == pytest.approx(3 / 8)
