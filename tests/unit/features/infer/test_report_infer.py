"""The printed report of an inference: the details of its plan, what its record says, which blocks are missing."""

from dataclasses import replace

import pytest

from rigdyno.engines.blockwise import Done, Plan
from rigdyno.engines.blockwise.boxes import Grid
from rigdyno.engines.blockwise.journal import BlockCounts
from rigdyno.engines.blockwise.normalising import Normalisation
from rigdyno.engines.blockwise.watching import Failure, Summary
from rigdyno.features.infer.report import detail_lines, facts_of, failures_of, view_without_record
from rigdyno.report.formats import csv, terminal
from rigdyno.report.generic import make_totals_table
from rigdyno.report.text import Page
from rigdyno.schema.record import Total
from rigdyno.schema.view import View

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
ALL_TO_DO, ALL_DONE = BlockCounts(8, 0, 0, 0), BlockCounts(0, 8, 0, 0)


def text_of(lines):
    return " ".join(" ".join(lines).split())


def the_plan(plan=PLAN, width=80, resumed=False, output="out.zarr"):
    return detail_lines(plan, "net.pt2", output, Page(width=width), resumed=resumed)


def test_all_that_was_settled():
    text = text_of(the_plan())
    for words in (
        "volume 100 x 1000 x 1000 voxels (100 Mvoxel)", "values normalised: (value - 99.5) / 20.2, from 256 places",
        "network net.pt2, 1 channel, backend torch", "blocks 8 of 50 x 500 x 500, about 800 kvoxel/s",
        "halo 4 x 4 x 4 (exact is 24 x 24 x 24): off by 0.42% of the output's range at most, 0.00017 in the mean",
        "computed 1.23 times what the whole volume at once", "disk up to 100 MB in out.zarr",
        "note: the answer depends on how the volume is cut",
    ):  # fmt: skip
        assert words in text
    assert "going on" not in text
    assert the_plan(resumed=True)[0].startswith("  going on with what was begun in out.zarr")


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
    assert max(map(len, the_plan(width=width, output="/a/very/long/place" * 20, resumed=True))) <= width


def test_what_is_counted_is_a_number_with_its_unit():
    facts = facts_of(ALL_TO_DO, SUMMARY, Done(PLAN, SUMMARY, ALL_DONE, 0, 0))
    assert (facts.unit, facts.notes) == ("voxel", ())
    assert facts.totals == {
        "blocks": Total(value=8), "voxels": Total(value=1e8, unit="voxel"), "time": Total(value=100, unit="s"),
        "predicting": Total(value=90, unit="s"), "waiting for input": Total(value=5, unit="s"),
        "waiting for writers": Total(value=5, unit="s"),
    }  # fmt: skip
    view = View(title="infer", tables=(make_totals_table(facts.totals),))
    assert "infer,Totals,predicting,total,measured,90.0,,,s," in csv.render(
        View(title="infer", tables=view.tables, saved_in=("infer",)), Page()
    )
    assert "1 min 40 s" in terminal.render(view, Page())


def test_everything_that_isnt_quite_well():
    summary = replace(SUMMARY, done=5, skipped=2, missing=1, failed=1)
    facts = facts_of(ALL_TO_DO, summary, Done(PLAN, summary, BlockCounts(0, 5, 2, 1), 1234, 5))
    assert facts.notes == (
        "2 blocks skipped: the mask is empty there",
        "1 block with chunks that were never stored, read as the fill value",
        "1,234 values lay outside of the output's range and were clipped; see --range",
        "5 answers of the network weren't numbers; look at its weights and at the input",
        "1 block couldn't be read; mend the input and run the same command again",
    )
    rare = {name: total.value for name, total in facts.totals.items() if total.unit == ""}
    assert rare == {
        "blocks": 5, "blocks skipped": 2, "blocks that couldn't be read": 1, "blocks with chunks never stored": 1,
        "values clipped": 1234, "answers that weren't numbers": 5,
    }  # fmt: skip


def test_a_part_of_a_volume_says_so():
    """Two were there and one had failed; of the other six, this process did four, and another one two."""
    before, summary = BlockCounts(5, 2, 0, 1), replace(SUMMARY, done=4)
    facts = facts_of(before, summary, Done(PLAN, summary, ALL_DONE, 0, 0))
    assert facts.notes == (
        "went on with what was begun before: 2 of 8 blocks were there already",
        "2 blocks done by other processes meanwhile: the figures are of this one alone",
    )


def test_one_that_was_stopped_tells_what_it_did():
    facts = facts_of(BlockCounts(6, 2, 0, 0), replace(SUMMARY, done=3), None)
    assert facts.totals["blocks"].value == 3
    assert facts.notes == ("went on with what was begun before: 2 of 8 blocks were there already",)


def test_no_path_is_kept_in_the_record():
    done = failed_at(3, 3)
    facts = facts_of(ALL_TO_DO, done.summary, done)
    assert "/home/somebody" not in " ".join(facts.notes)
    assert "/home/somebody" in " ".join(failures_of(done))


def failed_at(number, named):
    boxes = list(Grid((100, 100, 100), (10, 10, 10)))[:named]
    failures = tuple(Failure(box, "/home/somebody/raw.zarr is damaged") for box in boxes)
    summary = replace(SUMMARY, done=3, failed=named, failures=failures)
    return Done(PLAN, summary, BlockCounts(0, 3, 0, number), 0, 0)


@pytest.mark.parametrize(
    ("number", "named", "more"), [(1, 1, 0), (5, 5, 0), (9, 9, 4), (9, 2, 7), (6, 0, 6), (0, 0, 0)]
)
def test_blocks_that_failed_are_named_also_if_others_met_them(number, named, more):
    sentences = failures_of(failed_at(number, named))
    assert sum("is damaged" in sentence for sentence in sentences) == min(named, 5)
    assert [sentence for sentence in sentences if "more" in sentence] == ([f"and {more} blocks more"] if more else [])


def test_without_a_record_the_same_is_said():
    done = Done(PLAN, SUMMARY, ALL_DONE, 7, 0)
    view = view_without_record(facts_of(ALL_TO_DO, SUMMARY, done), nothing_left=False)
    text = terminal.render(view, Page())
    assert "1 min 40 s" in text
    assert "7 values lay outside" in text
    idle = replace(SUMMARY, done=0, voxels=0)
    nothing = view_without_record(facts_of(ALL_DONE, idle, Done(PLAN, idle, ALL_DONE, 0, 0)), nothing_left=True)
    assert terminal.render(nothing, Page()) == "infer\n\nNothing was left to do.\n"
