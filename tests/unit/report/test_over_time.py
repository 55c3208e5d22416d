"""Test the plots of `rigdyno show`: one per kind and rank, with where and why the warm-up was cut."""

import re

import numpy as np
import pytest

from rigdyno import api
from rigdyno.report.over_time import MOST_PLOTS, draw_steps_over_time
from rigdyno.report.text import Page
from rigdyno.schema.record import Skipped
from rigdyno.schema.samples import STEP_FIELDS, Header, RowFile
from rigdyno.schema.spec import assign_participants
from rigdyno.store.folder import StoredCell
from scripted_rows import noisy, step_rows
from support import a_rank, a_record, a_stored_run, rows_path


@pytest.fixture
def drawn(tmp_path):
    """Return a function that draws a cell whose ranks took the given steps."""

    def lines(*ranks, kinds=("step",), width=80, **changes):
        for rank, rows in enumerate(ranks):
            file = RowFile(
                rows_path(tmp_path, name=f"rank{rank}"),
                Header(fields=STEP_FIELDS, kinds=kinds, participant=a_rank(rank)),
            )
            file.append(rows.tobytes())
            file.close()
        return list(
            draw_steps_over_time(
                StoredCell(
                    a_record(participants=assign_participants(max(1, len(ranks)), 1, "cpu"), **changes), tmp_path
                ),
                Page(width=width),
            )
        )

    return lines


def words(lines):
    return " ".join(" ".join(lines).split())


def test_dots_are_hollow_before_the_cut_and_filled_after_it(drawn):
    lines = drawn(step_rows([0.02] * 100 + [0.01] * 300))  # two of five seconds
    plot = lines[2:10]
    (cut,) = {line.index("│") for line in plot if "│" in line}
    assert cut - 10 == pytest.approx(68 * 2 / 5, abs=1)
    assert sum(line[10:cut].count("◦") for line in plot) == cut - 10
    assert sum(line[cut:].count("•") for line in plot) == 78 - cut
    said = r"│ steady from here; 10\d steps \(2.\d\d s\) of 400 were cut: the beginning was slower than the rest"
    assert re.search(said, words(lines))


def test_nothing_is_marked_where_nothing_was_cut(drawn):
    lines = drawn(step_rows([0.01] * 50))
    assert "│" not in "".join(lines)
    assert lines[-1].strip() == "steady from the first step"


def test_the_warm_up_of_the_meter_is_named_as_the_reason(drawn):
    lines = drawn(step_rows([0.001] * 200, steps=7, warm_up=20))
    assert "20 blocks (20.0 ms) of 200 were cut: the meter was still warming up" in words(lines)


def test_a_stream_that_is_never_steady_says_so(drawn):
    lines = drawn(step_rows(noisy(300) * np.linspace(1, 1.6, 300)))
    assert "never settled: step times rise all the way" in words(lines)


def test_three_steps_are_drawn_at_their_times(drawn):
    lines = drawn(step_rows([1.0, 0.5, 0.5]))  # their middles: 0.5, 1.25 and 1.75 s
    assert lines[-1].strip() == "3 steps are too few to tell; it takes 5"
    fast, slow = [line for line in lines if "•" in line]
    assert [fast.index("•") - 10, fast.rindex("•") - 10] == [int(1.25 / 1.75 * 67.5), 67]
    assert slow.index("•") - 10 == int(0.5 / 1.75 * 67.5)
    assert lines[-2].endswith("1.8 s")


def test_a_cell_without_steps_says_so(drawn):
    assert drawn() == ["rate over time: no step was recorded"]
    assert drawn(step_rows([])) == ["rate over time: no step was recorded"]


def test_a_skipped_cell_draws_nothing(drawn):
    assert drawn(outcome=Skipped(reason="no GPU")) == []


def test_every_kind_and_rank_has_a_plot(drawn):
    rows = step_rows([0.01] * 60)
    rows["kind"] = np.arange(60) % 2
    lines = drawn(rows, rows, kinds=("read", "copy"))
    titles = [line for line in lines if line.startswith("rate over time")]
    assert [title.partition(" (")[0] for title in titles] == [
        "rate over time, read, rank 0",
        "rate over time, copy, rank 0",
        "rate over time, read, rank 1",
        "rate over time, copy, rank 1",
    ]


def test_the_number_of_plots_is_limited(drawn):
    lines = drawn(*[step_rows([0.01] * 20)] * (MOST_PLOTS + 2))
    assert sum(line.startswith("rate over time") for line in lines) == MOST_PLOTS
    assert lines[-1] == "and 2 more, not drawn"


def test_damaged_rows_give_a_reason_instead_of_a_plot(drawn):
    rows = step_rows([0.01] * 20)
    rows["end_ns"][3] = 0
    (line,) = drawn(rows)
    assert line.startswith("rate over time: can't be drawn: time runs backwards")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_plot_fits_the_page(drawn, width):
    rows = step_rows(noisy(300) * np.linspace(2, 1, 300), items=1e12)
    lines = drawn(rows, width=width)
    assert max(map(len, lines)) <= width


def test_show_ends_with_the_plot(tmp_path):
    from rigdyno.report.show import describe_run_in_full

    run = api.load(a_stored_run(tmp_path))
    text = describe_run_in_full(run.head, run.cells, run.view(), Page(width=80))
    assert text.endswith("steady from the first step\n")
